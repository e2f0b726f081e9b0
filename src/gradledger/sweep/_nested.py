"""The other engine: the same plan under one plain backward, its segments as nested non-reentrant checkpoints of torch.

Same bits, same peak, same seconds as the explicit walk, and it composes with whatever hangs on a plain backward.  What
torch's checkpoint leaves open is closed here: random state per block (own generators too) and buffers that count once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gradledger.core import passes
from gradledger.core.errors import SweepError
from gradledger.sweep._ambient import Ambient
from gradledger.sweep._block import Blocks, place_of
from gradledger.sweep._facts import Facts, note_first_run
from gradledger.sweep._gradients import Gradients
from gradledger.sweep._parallel import Reduction
from gradledger.sweep._plan import Item, Keep, Plan, keeps
from gradledger.sweep._replay import Found, RandomState
from gradledger.sweep._state import clone_all, what


class Nested:
    """One step: forward under the plan, then one backward.  Used as `Walk` is."""

    def __init__(
        self, blocks: Blocks, facts: Sequence[Facts], plan: Plan, generators: Sequence[torch.Generator]
    ) -> None:
        self.blocks, self.facts, self._plan, self._generators = blocks, facts, plan, generators
        self._again = {keep.block for keep, depth in keeps(plan.items) if depth}
        self._found: dict[int, Found] = {}
        self._first: list[Found] = []
        self._random: RandomState | None = None
        self._told = False
        self._state: Any = None
        self.reduction: Reduction | None = None
        self._roots: tuple[Tensor, ...] = ()
        self._seeds: tuple[Tensor, ...] = ()

    def forward(self, x: Any) -> None:
        """Run the chain up to the input of the loss."""
        with passes.working():
            self._forward(x)

    def _forward(self, x: Any) -> None:
        self._random = RandomState(self._generators)
        self._ambient = Ambient()
        try:
            with torch.enable_grad():
                if self.reduction is not None:
                    x = self.reduction.before(x)
                self._state = self._items(self._plan.items[:-1], x)
        except BaseException:
            self.abandon()
            raise

    def loss(self, y: Any) -> Any:
        """The loss block."""
        try:
            with torch.enable_grad():
                return self._call(len(self.blocks) - 1, self._state, y)
        except BaseException:
            self.abandon()
            raise

    def output(self) -> Any:
        """The chain's output, with its graph."""
        return self._state

    def begin(self, roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
        """Where the backward starts."""
        self._roots, self._seeds = tuple(roots), tuple(seeds)
        if passes.anyone():
            self._told = True
            passes.begins(roots)

    def parameters(self) -> list[Tensor]:
        """Every parameter of the chain that is trained, each once."""
        found = {id(p): p for b in self.blocks for p in b.parameters() if p.requires_grad}
        found.update((id(p), p) for f in self.facts for p in f.parameters)
        return list(found.values())

    def reverse(self, gradients: Gradients) -> Iterator[int]:
        """One plain backward; nothing to yield."""
        only = gradients.only
        inputs = None if only is None else list(only.values())
        if inputs is None or inputs:
            with self._ambient.reverse() if self._ambient.autocast else nullcontext():
                torch.autograd.backward(self._roots, self._seeds, inputs=inputs)
        yield from ()

    def tell_ends(self, error: BaseException | None = None) -> None:
        """Tell whoever watches the program that the gradients are filled."""
        if self._told:
            self._told = False
            passes.ends(error)

    def abandon(self) -> None:
        """Buffers and random state as they were before the step."""
        for found in reversed(self._first):
            found.put_back()
        if self._random is not None:
            self._random.restore()
        self.tell_ends(sys.exc_info()[1])
        self.release()

    def release(self) -> None:
        """Let go of everything."""
        self._random = None  # a step that is over is not undone
        self.tell_ends()
        self._found.clear()
        self._first.clear()
        self._state, self._roots, self._seeds = None, (), ()

    # inside -------------------------------------------------------------------------------------------------------

    def _items(self, items: Sequence[Item], state: Any) -> Any:
        for item in items:
            if item.place is not None or any(k.place for k, _ in keeps((item,))):
                raise _no_place()
            if isinstance(item, Keep):
                state = self._call(item.block, state)
                continue
            flat, spec = pytree.tree_flatten(state)
            state = checkpoint(
                self._segment,
                item.items,
                spec,
                *flat,
                use_reentrant=False,
                preserve_rng_state=False,
                determinism_check="default",
            )
        return state

    def _segment(self, items: Sequence[Item], spec: Any, *flat: Any) -> Any:
        state = pytree.tree_unflatten(list(flat), spec)
        if self.facts[next(keeps(tuple(items)))[0].block].copies:  # the held input must outlive the write into it
            state = clone_all(state)
        return self._items(items, state)

    def _capture(self, i: int) -> AbstractContextManager[None]:
        found = self._found.get(i)
        if found is not None:
            return found.again()
        facts = self.facts[i]
        again = i in self._again
        if not again and facts.looked and not facts.buffers:
            return nullcontext()
        if again:
            found, first = note_first_run(self.blocks, i, facts, self._generators)
            self._found[i] = found
        else:
            named = facts.buffers if facts.looked else self.blocks[i].buffer_names()
            found, first = Found(named, None), nullcontext()
        self._first.append(found)
        return first

    def _call(self, i: int, *given: Any) -> Any:
        try:
            with self._capture(i):
                return self.blocks[i].call(*given)
        except SweepError:
            raise
        except Exception as error:
            if "_StopRecomputation" not in type(error).__name__:
                error.add_note(f"gradledger sweep: in {place_of(self.blocks, i)}, given {what(given[0])}")
            raise


def _no_place() -> SweepError:
    return SweepError(
        got="a plan that moves tensors out, with engine='autograd'",
        wanted="a plan that keeps or recomputes",
        where="Sweep(engine='autograd')",
        next_step="use engine='sweep', or torch.autograd.graph.save_on_cpu around a plain backward",
    )
