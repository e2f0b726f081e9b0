"""Proof on the user's own model: a sweep and the plain backward, each on a copy, compared bit for bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep._block import Blocks
from gradledger.sweep._copy import copy_blocks
from gradledger.sweep._replay import RandomState
from gradledger.sweep._seed import roots_and_seeds
from gradledger.sweep._state import count_unequal, describe, equal_bits, same_bits

if TYPE_CHECKING:
    from gradledger.sweep._sweep import Sweep


@dataclass(frozen=True)
class Verification:
    """What a comparison found; true if nothing differs.

    Attributes:
        steps: training steps taken.
        losses, gradients, nones, parameters, buffers, random_states: how many of each were compared, over all steps
            (`nones`: parameters that have no gradient on both sides).
        first: what differs first, by name and in figures; None if nothing does.
    """

    steps: int
    losses: int
    gradients: int
    nones: int
    parameters: int
    buffers: int
    random_states: int
    first: str | None

    def __bool__(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        compared = (
            f"{self.losses} losses, {self.gradients} gradients, {self.nones} parameters without one, "
            f"{self.parameters} parameters, {self.buffers} buffers, {self.random_states} random states"
        )
        if self.first is None:
            return f"equal bit for bit over {self.steps} step(s): {compared}"
        return f"differs: {self.first} (compared until then: {compared})"


class _Side:
    """One copy of the model, and the random streams that go on with it."""

    def __init__(self, blocks: Blocks, rate: float) -> None:
        self.blocks = copy_blocks(blocks)
        self.named = _names(self.blocks)
        parameters = [p for p in self.named.values() if p.requires_grad]
        self.optimizer = torch.optim.SGD(parameters, lr=rate) if parameters else None
        self.world = _World(self.blocks)

    def buffers(self) -> dict[str, Tensor]:
        return {
            f"buffer {name} of block {block.name}": buffer
            for block in self.blocks
            for number, (_, attribute, buffer) in enumerate(block.buffers())
            for name in [f"{attribute} ({number})"]
        }


class _World:
    """Every random stream, as one side left it."""

    def __init__(self, blocks: Blocks) -> None:
        self._generators = list({id(g): g for b in blocks for g in b.generators()}.values())
        self.keep()

    def keep(self) -> None:
        self.torch = RandomState(self._generators)
        self.python = random.getstate()
        numpy = sys.modules.get("numpy")
        self.numpy = None if numpy is None else numpy.random.get_state()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self.torch.restore()
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        yield
        self.keep()

    def differs(self, other: _World) -> str | None:
        if not torch.equal(self.torch.cpu, other.torch.cpu):
            return "torch's random state on the CPU"
        for (device, a), (_, b) in zip(self.torch.accelerators, other.torch.accelerators, strict=True):
            if not torch.equal(a, b):
                return f"torch's random state on device {device}"
        for k, ((_, a), (_, b)) in enumerate(zip(self.torch.own, other.torch.own, strict=True)):
            if not torch.equal(a, b):
                return f"the state of the model's own generator {k}"
        if self.python != other.python:
            return "Python's random state"
        if self.numpy is not None and other.numpy is not None and (self.numpy[1] != other.numpy[1]).any():
            return "numpy's random state"
        return None


def verify(sweep: Sweep, x: Any, y: Any, *, steps: int, rate: float = 1e-2) -> Verification:
    """Compare `sweep`'s way with the plain one over `steps` SGD steps on copies; see `Sweep.verify`.

    Raises:
        SweepError: the model gives other numbers when the plain way is run twice, so that nothing can be compared.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise SweepError(
            got=f"steps={steps!r}",
            wanted="a whole number of at least 1",
            where="Sweep.verify",
            next_step="leave it out",
        )
    before = _World(sweep.chain.blocks)
    counts = dict(losses=0, gradients=0, nones=0, parameters=0, buffers=0, random_states=0)
    first: str | None = None
    taken = 0
    try:
        plain, twin, mine = (_Side(sweep.chain.blocks, rate) for _ in range(3))
        other = sweep.on(mine.blocks)
        for _ in range(steps):
            wanted = _plain(plain, x, y)
            again = _plain(twin, x, y)
            difference = _compare(plain, twin, wanted, again, dict(counts))
            if difference is not None:
                raise SweepError(
                    got=f"a model that is not repeatable: run twice the plain way from the same state, {difference}",
                    wanted="equal numbers, or there is nothing to compare a sweep with",
                    where="Sweep.verify",
                    next_step="set torch.use_deterministic_algorithms(True), and let random numbers come from torch",
                )
            torch.clear_autocast_cache()
            with mine.world.going_on():
                got = other.backward(_fresh(x), y)
            taken += 1
            first = _compare(plain, mine, wanted, got, counts)
            if first is not None:
                break
            for side in (plain, twin, mine):
                if side.optimizer is not None:
                    side.optimizer.step()
                    side.optimizer.zero_grad()
    finally:
        with before.going_on():
            pass
    return Verification(steps=taken, first=first, **counts)


def _plain(side: _Side, x: Any, y: Any) -> Any:
    torch.clear_autocast_cache()  # one `with autocast` around several steps keeps casts of weights that have moved
    with side.world.going_on(), torch.enable_grad():
        state = _fresh(x)
        for block in side.blocks[:-1]:
            state = block.call(state)
        loss = side.blocks[-1].call(state, y)
        kinds = [k for k in ("cpu", "cuda") if torch.is_autocast_enabled(k)]
        roots, seeds = roots_and_seeds(loss)
        if not kinds:
            torch.autograd.backward(roots, seeds)
        for kind in kinds[:1]:
            with torch.autocast(kind, enabled=False):
                torch.autograd.backward(roots, seeds)
    return pytree.tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, _plain_mapping(loss))


def _plain_mapping(loss: Any) -> Any:
    return loss.to_dict() if hasattr(loss, "to_dict") and not isinstance(loss, Tensor) else loss


def _compare(a: _Side, b: _Side, loss_a: Any, loss_b: Any, counts: dict[str, int]) -> str | None:
    """The first thing that differs between two sides."""
    counts["losses"] += len(pytree.tree_leaves(loss_a))
    if (difference := same_bits(_plain_mapping(loss_a), _plain_mapping(loss_b))) is not None:
        return f"loss: {difference.replace('the output', 'it')}"
    for (name, p), q in zip(a.named.items(), b.named.values(), strict=True):
        if p.grad is None or q.grad is None:
            counts["nones"] += 1
            if (p.grad is None) != (q.grad is None):
                return f"gradient of {name}: None on one side only"
            continue
        counts["gradients"] += 1
        if not equal_bits(p.grad, q.grad):
            return f"gradient of {name}: {_figures(p.grad, q.grad)}"
    for (name, p), q in zip(a.named.items(), b.named.values(), strict=True):
        counts["parameters"] += 1
        if not equal_bits(p, q):
            return f"parameter {name}: {_figures(p, q)}"
    for (name, m), n in zip(a.buffers().items(), b.buffers().values(), strict=True):
        counts["buffers"] += 1
        if not equal_bits(m, n):
            return f"{name}: {_figures(m, n)}"
    counts["random_states"] += 1
    return a.world.differs(b.world)


def _figures(a: Tensor, b: Tensor) -> str:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{describe(a)} and {describe(b)}"
    largest = (a.detach().double() - b.detach().double()).abs().max().item() if a.numel() else 0.0
    return f"{count_unequal(a, b)} of {a.numel()} entries differ, by up to {largest:.3g}"


def _names(blocks: Blocks) -> dict[str, Tensor]:
    """Every parameter of the chain under one name, shared ones once."""
    names: dict[int, str] = {}
    found: dict[int, Tensor] = {}
    for block in blocks:
        for root in block.modules:
            for name, p in root.named_parameters():
                if id(p) not in found:
                    found[id(p)] = p
                    names[id(p)] = f"{block.name}.{name}"
        for number, own in enumerate(block.tensors):
            if id(own) not in found:
                found[id(own)] = own
                names[id(own)] = f"{block.name}[{number}]"
    out: dict[str, Tensor] = {}
    for key, tensor in found.items():
        name = names[key]
        out[name if name not in out else f"{name}#{len(out)}"] = tensor
    return out


def _fresh(x: Any) -> Any:
    """The data for one run: a copy, so that a model that writes into it does so once."""
    return pytree.tree_map(
        lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t, x
    )
