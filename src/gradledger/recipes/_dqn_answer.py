"""From the bytes of a state to an action: the path that a caller takes, in stages, with what it refuses and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from gradledger import rl
from gradledger.core.errors import GradledgerError
from gradledger.recipes import _games

FRAME = (84, 84)


class StateError(GradledgerError):
    """A state that the network does not answer."""

    slug = "state"


@dataclass(frozen=True)
class Player:
    """A network that acts. shape, dtype: of one state, without the batch: (S, 84, 84) uint8, or (O,) of a gymnasium
    environment. precision: what it computes in."""

    net: nn.Sequential
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    precision: torch.dtype

    @property
    def bytes(self) -> int:
        """Of one state."""
        return math.prod(self.shape) * self.dtype.itemsize

    def values(self, states: NDArray[Any]) -> NDArray[np.float32]:
        """(B, *shape) -> (B, A) Q-values. Of one frame a state, the axis of the frames may be left out."""
        inputs = torch.from_numpy(np.ascontiguousarray(states)).view(-1, *self.shape)
        if self.dtype == np.uint8:
            inputs = rl.channels_last(inputs)
        else:
            inputs = inputs.to(self.precision)
        with torch.no_grad():
            return self.net(inputs).float().numpy()  # type: ignore[no-any-return]

    def greedy(self, states: NDArray[Any]) -> NDArray[np.int64]:
        """(B, *shape) -> (B,) the action of the highest value, the first of equals."""
        return np.asarray(self.values(states).argmax(axis=1), dtype=np.int64)


def load(weights: Path, args: Mapping[str, Any], *, dtype: str, precision: str | None = None) -> Player:
    """The network that a run left in `final.safetensors`, as it plays.

    Args:
        args: of the run, as its record has them. dtype: of a state's numbers. precision: "fp32" or "bf16"; default:
            what the run computed in.

    Raises:
        OSError, SafetensorError: no such file, or not what its name says.
    """
    tensors = load_file(weights)
    shape: tuple[int, ...]
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision or args["precision"]]
    dueling = bool(args.get("dueling", False))  # older records do not have it
    head = "advantage.bias" if dueling else "bias"
    if _games.is_rom(args["env"]):
        stack = int(args["stack"])
        actions, shape = len(tensors[f"5.{head}"]), (stack, *FRAME)
        net = rl.atari_q_network(actions, stack=stack, dueling=dueling, dtype=kind)
        for parameter in net.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    else:
        inputs, actions = tensors["0.0.weight"].shape[1], len(tensors[f"2.{head}"])
        net, shape = rl.mlp_q_network(inputs, actions, dueling=dueling, dtype=kind), (inputs,)
    net.load_state_dict(tensors)
    return Player(net, shape, np.dtype(dtype), kind)


# ----------------------------------------------------------------------------------------------------------- the path


def stages(player: Player) -> list[tuple[str, Callable[[Any], Any]]]:
    """The path as (name, function), each fed with what the one before it returned; the first gets bytes."""

    return [
        ("read", lambda raw: read(player, raw)),
        ("check", lambda state: checked(player, state)),
        ("model", lambda state: player.values(state[None])[0]),
        ("decide", lambda values: int(values.argmax())),
    ]


def answer(player: Player, raw: bytes) -> int:
    """The action for a state.

    Raises:
        StateError: see `read` and `checked`.
    """
    value: Any = raw
    for _, stage in stages(player):
        value = stage(value)
    return int(value)


def read(player: Player, raw: bytes) -> NDArray[Any]:
    """Bytes -> a state, (S, 84, 84) with the newest frame last, or (O,), least byte first.

    Raises:
        StateError: another number of bytes.
    """
    if len(raw) != player.bytes:
        shape = " x ".join(map(str, player.shape))
        raise _refused(f"{len(raw)} bytes", f"{player.bytes}: {shape} {player.dtype.name}, the newest frame last")
    return np.frombuffer(raw, dtype=player.dtype.newbyteorder("<")).reshape(player.shape).copy()


def checked(player: Player, state: NDArray[Any]) -> NDArray[Any]:
    """The state, when it can be one.

    Raises:
        StateError: numbers that are not finite; a newest frame of one grey value, which no game shows in play.
    """
    if player.dtype == np.uint8:
        newest = state[-1]
        if newest.min() == newest.max():
            raise _refused(f"a newest frame that is {newest.flat[0]} all over", "a picture of the game")
    elif not np.isfinite(state).all():
        raise _refused(f"numbers that are not finite at {np.flatnonzero(~np.isfinite(state)).tolist()}", "finite ones")
    return state


def malformed(player: Player, good: NDArray[Any]) -> dict[str, bytes]:
    """Name -> bytes of states that are none, made from a good one."""
    raw = np.ascontiguousarray(good).tobytes()
    found = {
        "no bytes": b"",
        "the last byte is missing": raw[:-1],
        "two states": raw + raw,
        "another type of number": np.ascontiguousarray(good).astype("<f8").tobytes(),
    }
    if player.dtype == np.uint8:
        blank = good.copy()
        blank[-1] = 0
        found["a black newest frame"] = np.ascontiguousarray(blank).tobytes()
        if len(good) > 1:
            found["frames in the wrong order"] = np.ascontiguousarray(good[::-1]).tobytes()
    else:
        hurt = good.copy()
        hurt[0] = np.nan
        found["not a number"] = hurt.tobytes()
    return found


def _refused(got: str, wanted: str) -> StateError:
    return StateError(got=got, wanted=wanted, where="dqn_atari, state", next_step="send a state as the run's card says")
