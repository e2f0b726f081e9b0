"""Measures a chain for a planner: seconds, bytes, what each graph saves, which blocks give the same bits run again.

Every measurement is a walk as the executor does it, on the user's own blocks and one batch.  Afterwards parameters,
`.grad`, buffers, plain attributes of the modules and the random states (torch, numpy, Python) are what they were; a
counter in a closure is not.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from gradledger.core.errors import SweepError
from gradledger.sweep._action import Action
from gradledger.sweep._cost import Costs
from gradledger.sweep._executor import Walk
from gradledger.sweep._facts import Facts, settle_shared
from gradledger.sweep._gradients import Gradients, without_hooks
from gradledger.sweep._memory import MemoryWatch, Span
from gradledger.sweep._plain_state import PlainState, hidden_tensor
from gradledger.sweep._replay import Found, RandomState
from gradledger.sweep._seed import roots_and_seeds
from gradledger.sweep._state import Boundary, same_bits
from gradledger.sweep._storages import Storages

NO_TARGET: Any = object()
"""In the place of a target where there is none yet (None is a target like any other)."""


def keep_all_actions(n: int) -> tuple[Action, ...]:
    """Record every block, then reverse every block."""
    return (*(Action("record", i) for i in range(n)), *(Action("reverse", i) for i in reversed(range(n))))


def _run_all(n: int) -> tuple[Action, ...]:
    return (*(Action("run", i) for i in range(n - 1)), Action("record", n - 1), Action("reverse", n - 1))


class Profiler:
    """One chain and one batch.

    Args:
        blocks, facts, generators: as `Walk` takes them; the facts are filled in.
        x, y: the batch.
        repeats: how often each time is taken (the least is used, for noise only adds).
    """

    def __init__(
        self, blocks: Any, facts: list[Facts], generators: Sequence[torch.Generator], x: Any, y: Any, repeats: int = 3
    ) -> None:
        self._blocks, self._facts, self._generators = blocks, facts, generators
        self._x, self._y, self._repeats = x, y, repeats
        self._modules = list({id(m): m for b in blocks for m in b.modules}.values())
        self.device = device_of(blocks, x)

    def measure(self) -> Costs:
        """Look, check that blocks can be replayed, and measure."""
        _materialised(self._blocks)
        with self._untouched():
            for _ in range(2):  # the second settles how cotangents are taken
                self._step(self._walk(keep_all_actions(len(self._blocks))))
            self.check_replay()
            seen = self._bytes()
            seconds = self._seconds()
        return self._costs(*seen, *seconds)

    def check(self) -> None:
        """Only look and check that blocks can be replayed; without a target the loss is left out."""
        _materialised(self._blocks)
        with self._untouched():
            walk = self._walk(keep_all_actions(len(self._blocks)))
            if self._y is NO_TARGET:
                walk.forward(self._x)
                settle_shared(self._facts)
                walk.abandon()
            else:
                self._step(walk)
                self._step(self._walk(keep_all_actions(len(self._blocks))))
            self.check_replay()

    # one walk -----------------------------------------------------------------------------------------------------

    def _walk(self, actions: tuple[Action, ...]) -> Walk:
        walk = Walk(self._blocks, self._facts, actions, self._generators)
        walk.into_data, walk.quiet = False, True
        return walk

    def _step(self, walk: Walk) -> None:
        """A whole step, its gradients thrown away."""
        walk.forward(self._x)
        loss = walk.loss(self._y)
        try:
            roots, seeds = roots_and_seeds(loss)
            del loss
            walk.begin(roots, seeds)
            del roots, seeds
            gradients = Gradients(walk.parameters())
        except BaseException:
            walk.abandon()
            raise
        try:
            for _ in walk.reverse(gradients):
                pass
        finally:
            gradients.undo()
            walk.abandon()

    @contextmanager
    def _untouched(self) -> Iterator[None]:
        """Everything a run changes on the modules and in the random streams is put back."""
        torch_random = RandomState(self._generators)
        python_random = random.getstate()
        numpy = sys.modules.get("numpy")
        numpy_random = numpy.random.get_state() if numpy is not None else None
        buffers = [Found(b.buffer_names(), None) for b in self._blocks]
        plain = PlainState(self._modules)
        try:
            with without_hooks(p for b in self._blocks for p in b.parameters()):
                yield
        finally:
            for found in reversed(buffers):
                found.put_back()
            plain.put_back()
            torch_random.restore()
            random.setstate(python_random)
            if numpy is not None:
                numpy.random.set_state(numpy_random)

    # replay -------------------------------------------------------------------------------------------------------

    def check_replay(self) -> None:
        """Run each block three times from the same state: may it be recomputed, and may it be run without recording?"""
        last = len(self._blocks) - 1
        for facts in self._facts[:-1]:
            facts.no_grad, facts.keep_reason = None, None
        actions: list[Action] = []
        for i in range(last):
            actions += [Action("hold", i), *[Action("run", i)] * 3, Action("record", i), Action("drop", i)]
        walk = self._walk((*actions, Action("record", last), Action("reverse", last)))
        outputs: list[list[Boundary]] = [[] for _ in range(last)]
        outside: list[Any] = [None]

        def before(action: Action) -> None:
            if action.kind == "run":
                i, runs = action.block, len(outputs[action.block])
                if runs == 1:
                    outside[0] = PlainState(self._blocks[i].modules), _streams()
                if runs == 2:
                    self._judge(i, outside[0], outputs[i])
                    self._facts[i].no_grad = True  # tried by the third run
            elif action.kind == "record":
                if action.block < last:
                    i = action.block
                    facts = self._facts[i]
                    facts.no_grad = same_bits(outputs[i][0].flat, outputs[i][2].flat) is None and _same_kind(outputs[i])
                    outputs[i].clear()

        walk.on_action = before
        walk.on_forward = lambda at, boundary: outputs[at - 1].append(boundary) if at <= last else None
        walk.forward(self._x)
        walk.abandon()

    def _judge(self, i: int, before: Any, outputs: list[Boundary]) -> None:
        """After the second run: has anything moved that we do not put back, and are the bits the same?"""
        facts, (plain, streams) = self._facts[i], before
        now = _streams()
        moved = next((name for name, state in streams.items() if now.get(name) != state), None) or plain.moved()
        difference = same_bits(outputs[0].flat, outputs[1].flat)
        hidden = hidden_tensor(outputs[0].flat)
        if hidden is not None:
            for one in self._facts[i : i + 2]:  # nor can the next be run again, whose input it is
                one.keep_reason = f"a {hidden} in the state holds tensors where the walk cannot cut them"
        elif facts.keep_reason is not None:
            pass
        elif moved:
            facts.keep_reason = f"{moved} moves with every run"
        elif difference:
            facts.keep_reason = f"run again from the same state, {difference}"

    # bytes --------------------------------------------------------------------------------------------------------

    def _bytes(self) -> tuple[Storages, list[Span], list[Span], list[Span], list[int]]:
        n = len(self._blocks)
        storages = Storages(self._modules, (self._x, self._y))
        walk = self._walk(keep_all_actions(n))
        walk.recording = storages.recording
        walk.on_forward = lambda at, boundary: storages.boundary(at, boundary)
        cotangents = [0] * (n + 1)

        def cotangent(i: int, values: Sequence[Tensor | None]) -> None:
            cotangents[i] = sum(t.numel() * t.element_size() for t in values if t is not None)

        walk.on_cotangent = cotangent
        self._step(walk)
        storages.forget()  # what it held would not have been freed on the way back
        walk = self._walk(keep_all_actions(n))
        gc.collect()
        with MemoryWatch(self.device) as watch:
            walk.on_action = lambda action: watch.mark(f"{action.kind} {action.block}")
            self._step(walk)
            watch.mark("end")
        del walk
        kept = {s.name: s for s in watch.spans}
        gc.collect()
        walk = self._walk(_run_all(n))
        with MemoryWatch(self.device) as watch:
            walk.on_action = lambda action: watch.mark(f"{action.kind} {action.block}")
            walk.forward(self._x)
            walk.abandon()
            watch.mark("end")
        ran = {s.name: s for s in watch.spans}
        return (
            storages,
            [ran[f"run {i}"] for i in range(n - 1)],
            [kept[f"record {i}"] for i in range(n)],
            [kept[f"reverse {i}"] for i in range(n)],
            cotangents,
        )

    # seconds ------------------------------------------------------------------------------------------------------

    def _seconds(self) -> tuple[list[float], list[float], list[float]]:
        n = len(self._blocks)
        taken: dict[str, list[float]] = {}
        for _ in range(self._repeats):
            for actions, whole in ((keep_all_actions(n), True), (_run_all(n), False)):
                walk = self._walk(actions)
                clock = _Clock(self.device, taken)
                walk.on_action = clock
                if whole:
                    self._step(walk)
                else:
                    walk.forward(self._x)
                    walk.abandon()
                clock.stop()
        least = {name: min(values) if len(values) < 5 else statistics.median(values) for name, values in taken.items()}
        return (
            [least[f"run {i}"] for i in range(n - 1)],
            [least[f"record {i}"] for i in range(n)],
            [least[f"reverse {i}"] for i in range(n)],
        )

    def _costs(
        self,
        storages: Storages,
        ran: list[Span],
        kept: list[Span],
        reversed_: list[Span],
        cotangents: list[int],
        run_s: list[float],
        record_s: list[float],
        reverse_s: list[float],
    ) -> Costs:
        n = len(self._blocks)
        counted: set[int] = set()
        grads = [0] * n
        for i in reversed(range(n)):
            for p in self._facts[i].parameters:
                if id(p) not in counted and p.requires_grad:
                    counted.add(id(p))
                    grads[i] += p.numel() * p.element_size()
        return storages.costs(
            [
                dict(
                    name=self._blocks[i].name,
                    forward_s=run_s[i] if i < n - 1 else record_s[i],
                    record_s=record_s[i],
                    reverse_s=reverse_s[i],
                    forward_peak=ran[i].rise if i < n - 1 else kept[i].rise,
                    record_peak=kept[i].rise,
                    reverse_peak=reversed_[i].rise,
                    grad_bytes=grads[i],
                    keep_reason=self._facts[i].keep_reason if i < n - 1 else None,
                )
                for i in range(n)
            ],
            cotangents,
            [span.after - span.before for span in kept],
        )


class _Clock:
    """Seconds of each action: a walk calls it at the start of each."""

    def __init__(self, device: torch.device, into: dict[str, list[float]]) -> None:
        self._device, self._into = device, into
        self._name, self._since = "", 0.0

    def __call__(self, action: Action) -> None:
        self.stop()
        self._name = f"{action.kind} {action.block}"
        self._since = time.perf_counter()

    def stop(self) -> None:
        """The running action ends."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if self._name:
            self._into.setdefault(self._name, []).append(time.perf_counter() - self._since)
        self._name = ""


def device_of(blocks: Any, x: Any) -> torch.device:
    """Where a chain computes: the device of its first parameter, else of its data."""
    for tensor in (*(p for b in blocks for p in b.parameters()), *torch.utils._pytree.tree_leaves(x)):
        if isinstance(tensor, Tensor):
            return tensor.device
    return torch.device("cpu")


def _same_kind(outputs: list[Boundary]) -> bool:
    return all(o.spec == outputs[0].spec and o.needs == outputs[0].needs for o in outputs)


def _materialised(blocks: Any) -> None:
    """A lazy module takes its shape and first values from the first batch: trying that out would leave a trace."""
    for block in blocks:
        for module in block.modules:
            if any(map(is_lazy, (*module._parameters.values(), *module._buffers.values()))):
                raise SweepError(
                    got=f"{type(module).__name__}, whose parameters have no shape yet",
                    wanted="a model that has been run once, since planning must leave no trace",
                    where=f"block {block.name}",
                    next_step="call the model once on a batch (under torch.no_grad()), then plan",
                )


def _streams() -> dict[str, Any]:
    """The random streams that are not torch's, as comparable values."""
    seen: dict[str, Any] = {"Python's random state": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        seen["numpy's random state"] = (kind, keys.tobytes(), *rest)
    return seen
