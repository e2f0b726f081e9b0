"""The two kinds of vectorised environments underneath `rl.env`: ale-py's C++ one, and gymnasium's over any environment.

A simulator only plays. Time limits, padding, episodes and restoring are the business of `rl.env.Lanes`, once for both.
Both reset a finished lane by themselves in the step that follows (gymnasium's NEXT_STEP), ignoring its action.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from gradledger.rl.errors import EnvError

# ale-py 0.12.1 returns a stale last frame at its own limit (in frames), so it is set out of reach and we count
# ourselves.
NO_LIMIT = 2**30


@dataclass(frozen=True)
class Played:
    """One step of all E lanes as the simulator gives it: frames (E, *O), the rest (E,); lives 0 if there are none."""

    frames: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    lives: NDArray[np.int64]


class Simulator(Protocol):
    """What `Lanes` needs: reset some or all lanes, send actions, receive what they brought.

    Promise that restoring rests on: after a reset with a seed, a lane's future is a function of that seed and of the
    actions and resets since, whatever happened before and in other lanes.
    """

    @property
    def lanes(self) -> int: ...
    @property
    def actions(self) -> int: ...
    @property
    def observation_shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def frame_skip(self) -> int: ...
    @property
    def settings(self) -> dict[str, Any]:
        """Everything the environment was built with, defaults included, for the run record."""
        ...

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64] | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Reset the lanes in `mask`, with one seed each or by their own random stream: frames (E, *O), lives (E,)."""
        ...

    def send(self, actions: NDArray[np.int64]) -> None: ...
    def receive(self) -> Played: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class AtariSpec:
    """An ALE game. Every default of ale-py's vector environment is stated here or in `AtariSimulator`.

    sticky: probability that the last action is repeated. noop_max: up to so many no-ops after a reset. fire_reset:
    press fire after a reset where the game waits for it. threads: of the C++ side, 0 for one per lane. The game ends
    when it is over, not when a life is lost; rewards are raw.
    """

    game: str = "pong"
    lanes: int = 8
    sticky: float = 0.0
    frame_skip: int = 4
    height: int = 84
    width: int = 84
    noop_max: int = 30
    fire_reset: bool = True
    full_actions: bool = False
    threads: int = 1


class AtariSimulator:
    """ale-py's `AtariVectorEnv`: skip, maximum, grayscale and resize happen in C++; no stack, no clipping."""

    def __init__(self, spec: AtariSpec) -> None:
        try:
            ale_py = importlib.import_module("ale_py")
            vector = importlib.import_module("ale_py.vector_env")
        except ImportError as missing:
            raise EnvError(
                got=f"no {missing.name}",
                wanted="ale-py with its vector environment",
                where="rl.simulators.AtariSimulator",
                next_step="pip install 'gradledger[rl]'",
            ) from missing
        if spec.game not in ale_py.roms.get_all_rom_ids():
            raise EnvError(
                got=f"game '{spec.game}'",
                wanted="the name of a ROM that ale-py ships, such as pong or ms_pacman",
                where="rl.simulators.AtariSimulator",
                next_step="list them with ale_py.roms.get_all_rom_ids()",
            )
        if spec.lanes < 1 or not 0.0 <= spec.sticky < 1.0 or spec.frame_skip < 1 or spec.noop_max < 0:
            raise EnvError(
                got=f"lanes={spec.lanes}, sticky={spec.sticky}, frame_skip={spec.frame_skip}, noop_max={spec.noop_max}",
                wanted="lanes and frame_skip of at least 1, sticky in [0, 1), noop_max of at least 0",
                where="rl.simulators.AtariSimulator",
                next_step="correct the AtariSpec",
            )
        self._spec = spec
        self._arguments: dict[str, Any] = {
            "batch_size": 0,
            "num_threads": spec.threads,
            "thread_affinity_offset": -1,
            "max_num_frames_per_episode": NO_LIMIT,
            "repeat_action_probability": spec.sticky,
            "full_action_space": spec.full_actions,
            "continuous": False,
            "continuous_action_threshold": 0.5,
            "autoreset_mode": "NextStep",
            "img_height": spec.height,
            "img_width": spec.width,
            "grayscale": True,
            "stack_num": 1,
            "frameskip": spec.frame_skip,
            "maxpool": True,
            "noop_max": spec.noop_max,
            "episodic_life": False,
            "life_loss_info": False,
            "reward_clipping": False,
            "use_fire_reset": spec.fire_reset,
        }
        self._version = str(ale_py.__version__)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._env: Any = vector.AtariVectorEnv(spec.game, spec.lanes, **self._arguments)
        self.lanes = spec.lanes
        self.actions = int(self._env.single_action_space.n)
        self.observation_shape = (spec.height, spec.width)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.frame_skip = spec.frame_skip

    @property
    def settings(self) -> dict[str, Any]:
        return {"simulator": "ale_py.AtariVectorEnv", "ale_py": self._version, **asdict(self._spec), **self._arguments}

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64] | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        frames, info = self._env.reset(seed=seeds, options={"reset_mask": mask})
        return frames[:, 0], info["lives"].astype(np.int64)

    def send(self, actions: NDArray[np.int64]) -> None:
        self._env.send(actions)

    def receive(self) -> Played:
        frames, rewards, terminated, _, info = self._env.recv()
        return Played(frames[:, 0], rewards.astype(np.float32), terminated, info["lives"].astype(np.int64))

    def close(self) -> None:
        self._env.close()


@dataclass(frozen=True)
class GymSpec:
    """Any registered gymnasium environment with discrete actions and one array observed. options: for its maker."""

    name: str = "CartPole-v1"
    lanes: int = 8
    options: tuple[tuple[str, Any], ...] = ()


class GymSimulator:
    """gymnasium's `SyncVectorEnv`, its own time limit taken off. `send` plays; `receive` returns."""

    def __init__(self, spec: GymSpec) -> None:
        try:
            gymnasium = importlib.import_module("gymnasium")
        except ImportError as missing:
            raise EnvError(
                got="no gymnasium",
                wanted="gymnasium",
                where="rl.simulators.GymSimulator",
                next_step="pip install 'gradledger[rl]'",
            ) from missing

        def make() -> Any:
            return gymnasium.make(spec.name, max_episode_steps=-1, **dict(spec.options))

        mode = gymnasium.vector.AutoresetMode.NEXT_STEP
        self._env: Any = gymnasium.vector.SyncVectorEnv([make] * spec.lanes, autoreset_mode=mode)
        space, shown = self._env.single_action_space, self._env.single_observation_space
        if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0 or shown.shape is None:
            raise EnvError(
                got=f"actions {space}, observations {shown}",
                wanted="Discrete actions that start at 0 and one array as observation",
                where=f"rl.simulators.GymSimulator of '{spec.name}'",
                next_step="wrap the environment so that it offers both",
            )
        self._spec = spec
        self._version = str(gymnasium.__version__)
        self._played: Played | None = None
        self._no_lives = np.zeros(spec.lanes, dtype=np.int64)
        self.lanes = spec.lanes
        self.actions = int(space.n)
        self.observation_shape = tuple(int(size) for size in shown.shape)
        self.dtype: np.dtype[Any] = np.dtype(shown.dtype)
        self.frame_skip = 1

    @property
    def settings(self) -> dict[str, Any]:
        limit = self._env.envs[0].spec.max_episode_steps
        return {
            "simulator": "gymnasium.vector.SyncVectorEnv",
            "gymnasium": self._version,
            "name": self._spec.name,
            "lanes": self.lanes,
            "autoreset_mode": "NextStep",
            "max_episode_steps": limit,
            "options": dict(self._spec.options),
        }

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64] | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        each: list[int | None] = [None] * self.lanes
        if seeds is not None:
            for lane, seed in zip(np.nonzero(mask)[0], seeds, strict=True):
                each[lane] = int(seed)
        frames, _ = self._env.reset(seed=each, options={"reset_mask": mask.copy()})
        return cast(NDArray[Any], frames), self._no_lives

    def send(self, actions: NDArray[np.int64]) -> None:
        frames, rewards, terminated, _, _ = self._env.step(actions)
        # The vector environment keeps writing into its own arrays of flags.
        self._played = Played(frames, rewards.astype(np.float32), terminated.copy(), self._no_lives)

    def receive(self) -> Played:
        if self._played is None:
            raise EnvError(
                got="receive",
                wanted="send before it",
                where="rl.simulators.GymSimulator",
                next_step="send the actions first",
            )
        played, self._played = self._played, None
        return played

    def close(self) -> None:
        self._env.close()
