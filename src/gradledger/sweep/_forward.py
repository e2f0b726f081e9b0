"""The forward half of a step: obeys a plan up to the loss, records what the reverse walk needs, and frees the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from gradledger.core import passes
from gradledger.core.errors import SweepError
from gradledger.sweep import _offload, _vjp
from gradledger.sweep._action import Action
from gradledger.sweep._ambient import Ambient
from gradledger.sweep._block import Blocks, place_of
from gradledger.sweep._facts import Facts, Watched, leaves_of, note_first_run
from gradledger.sweep._handles import HANDLES, holders, uses
from gradledger.sweep._parallel import Reduction
from gradledger.sweep._replay import Found, RandomState, keeping_nothing
from gradledger.sweep._shipment import Away, addresses
from gradledger.sweep._state import Boundary, cut, data, look_at, open_up, what
from gradledger.sweep._tape import Recorded

Cotangents = tuple[Tensor | None, ...]


class Forward:
    """One step in motion, forward to the loss; what is recorded on the way is walked back by `Walk`.

    Args:
        blocks: the chain, the loss last (it alone takes the target as a second argument).
        facts: what is known of each block; filled in by a block's first recorded run.
        generators: random generators of the user's that blocks draw from.
        actions: a schedule over the blocks.
    """

    def __init__(
        self, blocks: Blocks, facts: Sequence[Facts], actions: Sequence[Action], generators: Sequence[torch.Generator]
    ) -> None:
        self.blocks, self.facts, self.generators = blocks, facts, generators
        self.loss_at = len(blocks) - 1
        split = next(k for k, a in enumerate(actions) if a.kind == "record" and a.block == self.loss_at)
        self._before, self._after = actions[:split], actions[split + 1 :]
        self._again = {a.block for a in actions if a.kind == "run"}
        self._places = {a.block: a.place for a in actions if a.kind == "offload"}
        self._away: Away | None = None
        self.tape: dict[int, Recorded] = {}
        self._held: dict[int, Boundary] = {}
        self._found: dict[int, Found] = {}
        self._first: list[Found] = []
        self._tapes_out: dict[int, _offload.Saved] = {}
        self._held_out: dict[int, _offload.Moved] = {}
        self._current: Boundary | None = None
        self._at = 0
        self._partial: dict[int, Tensor] = {}
        self._looking = False
        self.quiet = False  # a step that is only measured is told to nobody
        self._told = False
        self._emptied: set[int] = set()
        self._made = False  # whether the cotangents at hand are the walk's own, not seeds that the caller may hold
        self._ends: tuple[Tensor, ...] = ()
        self._random: RandomState | None = None
        self._outer: tuple[Tensor, ...] = ()
        self.cotangents: Cotangents = ()
        self.into_data = True
        self.deferred: list[Any] = []
        self.reduction: Reduction | None = None
        self.on_action: Callable[[Action], None] | None = None
        self.recording: Callable[[int], AbstractContextManager[Any]] | None = None
        self.on_forward: Callable[[int, Boundary], None] | None = None
        self.on_cotangent: Callable[[int, Cotangents], None] | None = None

    # forward ------------------------------------------------------------------------------------------------------

    def forward(self, x: Any) -> None:
        """Run the chain on `x` up to the input of the loss."""
        with passes.working():
            self._forward(x)

    def _forward(self, x: Any) -> None:
        if torch.is_inference_mode_enabled():
            raise SweepError(
                got="a sweep inside torch.inference_mode",
                wanted="a mode in which gradients exist",
                where="Sweep.forward",
                next_step="leave inference_mode; to evaluate the model call its blocks",
            )
        self.ambient = Ambient()
        if any(f.random for f in self.facts):
            self._random = RandomState(self.generators)
        self.x = data(x if self.reduction is None else self.reduction.before(x), differentiate=True)
        self._outer = tuple({id(t): t for t, wanted in zip(self.x.flat, self.x.needs, strict=True) if wanted}.values())
        self._current = self.x
        try:
            with torch.enable_grad(), self.ambient.forward() if self.ambient.autocast else nullcontext():
                for action in self._before:
                    if self.on_action is not None:
                        self.on_action(action)
                    self._do(action)
        except BaseException:
            self.abandon()
            raise

    def loss(self, y: Any) -> Any:
        """Run the loss block on the chain's output and the target; returns what it returned, with its graph."""
        i, facts = self.loss_at, self.facts[self.loss_at]
        if self.on_action is not None:
            self.on_action(Action("record", i))
        try:
            with torch.enable_grad(), self.ambient.forward() if self.ambient.autocast else nullcontext():
                boundary = self._input(i)
                given, ends, flat = open_up(boundary, copies=facts.copies, fresh=boundary is self.x)
                self._ends = ends
                if facts.looked:
                    with self._capture(i), self._around(i, y):
                        loss = self._call(i, given, y)
                else:
                    with self._around(i, y):
                        loss = self._look(i, boundary, (given, y), flat)
                    self._unread(i, ends, flat)
                del given, flat
                self._current = boundary = None  # type: ignore[assignment]
                self._let_go(i, ends)
                return loss
        except BaseException:
            self.abandon()
            raise

    def output(self) -> Any:
        """The chain's output for a loss that the caller computes: detached, its tensors ask for gradients."""
        boundary = self._input(self.loss_at)
        state, self._ends, _ = open_up(boundary, copies=False, fresh=boundary is self.x)
        return state

    def _do(self, action: Action) -> None:
        kind, i = action.kind, action.block
        if kind == "record":
            self._record(i)
        elif kind == "run":
            self._run(i)
        elif kind == "hold":
            self._held[i] = self._input(i)
        elif kind == "drop":
            del self._held[i]
        elif kind == "offload":
            self._move_out(i)
        elif kind == "fetch":
            if i in self._tapes_out:  # not there: a loss that the caller computes
                self._tapes_out[i].fetch()
        elif kind == "offload_held":
            assert action.place is not None
            self._held_out[i] = _offload.Moved(self._held.pop(i), action.place, self._outside())
        elif kind == "fetch_held":
            self._held_out[i].fetch()
        else:
            raise AssertionError(kind)

    def _input(self, i: int) -> Boundary:
        if self._at == i and self._current is not None:
            return self._current
        moved = self._held_out.pop(i, None)
        if moved is not None:
            self._held[i] = moved.boundary()
        if i in self._held:
            return self._held[i]
        return self.x  # boundary 0: the data is always at hand

    def _capture(self, i: int) -> Any:
        """The context of one run of block i; its first run notes what it finds, later ones find the same."""
        facts = self.facts[i]
        found = self._found.get(i)
        if found is not None:
            return found.again()
        if i in self._again:
            found, first = note_first_run(self.blocks, i, facts, self.generators)
            self._found[i] = found
        elif facts.buffers or not facts.looked:
            found, first = Found(facts.buffers, None), nullcontext()
        else:
            return nullcontext()
        if found.buffers:
            self._first.append(found)
        return first

    def _call(self, i: int, *given: Any) -> Any:
        try:
            if not self.ambient.autocast:
                return self.blocks[i].call(*given)
            with self.ambient.one_block():
                return self.blocks[i].call(*given)
        except SweepError:
            raise
        except Exception as error:
            error.add_note(f"gradledger sweep: in {place_of(self.blocks, i)}, given {what(given[0])}")
            raise

    def _run(self, i: int) -> None:
        facts = self.facts[i]
        boundary = self._input(i)
        given = look_at(boundary, copies=facts.copies)
        with self._capture(i):
            # a block that is given nothing to differentiate says by its run alone whether its output carries a gradient
            if facts.no_grad and any(boundary.needs):
                with torch.no_grad():
                    out, _ = cut(self._call(i, given), facts.needs)
            else:
                opened, _, _ = open_up(boundary, copies=facts.copies, fresh=True)
                with keeping_nothing():
                    out, _ = cut(self._call(i, opened))
        self._advance(i, out)

    def _advance(self, i: int, out: Boundary) -> None:
        self._current, self._at = out, i + 1
        if self.on_forward is not None:
            self.on_forward(i + 1, out)

    def _record(self, i: int) -> None:
        facts = self.facts[i]
        boundary = self._input(i)
        fresh = i in self._held or boundary is self.x
        given, leaves, flat = open_up(boundary, copies=facts.copies, fresh=fresh)
        if facts.looked:
            with self._capture(i), self._around(i):
                result = self._call(i, given)
            out, roots = cut(result)
            if i in self._again and facts.no_grad and any(boundary.needs) and out.needs != facts.needs:
                raise _other_gradients(self.blocks, i)
            if facts.capture:
                self._any_new(i, roots, leaves)
        else:
            with self._around(i):
                result = self._look(i, boundary, (given,), flat)
            out, roots = cut(result)
            facts.needs, facts.single = out.needs, out.spec is None
            facts.large = any(r.nbytes >= _vjp.LARGE for r in roots)
            self._unread(i, leaves, flat)
            self._learn(i, roots, leaves)
        # edges of the graph in the place of the outputs: whoever needs their memory has saved it
        self.tape[i] = Recorded([r if r.is_leaf else get_gradient_edge(r) for r in roots], leaves)
        del given, flat, result, roots
        self._current = boundary = None  # type: ignore[assignment]
        self._let_go(i, leaves)
        self._advance(i, out)

    def _around(self, i: int, *given: Any) -> AbstractContextManager[Any]:
        """What surrounds the recording of block i: the plan will move what it saves out, or a profile looks at it."""
        place = self._places.get(i)
        if place is not None:
            block = self.blocks[i]  # its buffers may be other ones than at the start, where it is run again
            stay = (*block.parameters(), *(b for _, _, b in block.buffers()), *pytree.tree_leaves(given))
            moved = self._tapes_out[i] = _offload.Saved(place, self._outside(), addresses(stay))
            return moved
        return nullcontext() if self.recording is None else self.recording(i)

    def _outside(self) -> Away:
        if self._away is None:
            parts = [(*b.parameters(), *(buffer for _, _, buffer in b.buffers())) for b in self.blocks]
            self._away = Away((*self.x.flat, *(t for part in parts for t in part)))
        return self._away

    def _move_out(self, i: int) -> None:
        """What tape i has saved, and its input leaves, which are not read again: only their shape is."""
        if i in self._tapes_out:
            self._tapes_out[i].move()
            for leaf in self.tape[i].leaves:
                if sys.getrefcount(leaf) <= HANDLES and leaf.layout is torch.strided:
                    self._empty(i, leaf)

    def _let_go(self, i: int, leaves: tuple[Tensor, ...]) -> None:
        """Free the input tensors that no graph has saved: their leaves keep their shape, not their memory."""
        facts = self.facts[i]
        for k in facts.unsaved if self._again or self._places else facts.droppable:
            leaf = leaves[k]
            if sys.getrefcount(leaf) <= HANDLES:  # else a block has kept it beside its graph
                self._empty(i, leaf)

    def _empty(self, i: int, leaf: Tensor) -> None:
        if uses(leaf) == 2:  # Python's handle, and the leaf of the graph
            self._emptied.add(i)
            leaf.data = torch.empty((), dtype=leaf.dtype, device=leaf.device).expand(leaf.shape)

    # looking ------------------------------------------------------------------------------------------------------

    def _look(self, i: int, boundary: Boundary, given: tuple[Any, ...], flat: list[Any]) -> Any:
        watched = Watched(self.blocks[i], self.facts[i], self.generators)
        self._first.append(watched.found)
        result = self._call(i, *given)
        watched.ran(boundary, flat)
        return result

    def _learn(self, i: int, roots: Sequence[Tensor], leaves: tuple[Tensor, ...]) -> None:
        own = [p for p in self.blocks[i].parameters() if p.requires_grad and p.is_leaf]
        reached = leaves_of(roots, leaves)
        self._only_through_the_state(i, reached)
        self.facts[i].parameters = tuple({id(p): p for p in (*own, *reached)}.values())
        self.facts[i].looked = self._looking = True

    def _any_new(self, i: int, roots: Sequence[_vjp.Root], leaves: tuple[Tensor, ...]) -> None:
        """A block may reach another leaf at another call: a captured product must ask for it too."""
        facts = self.facts[i]
        known = {id(p) for p in facts.parameters}
        reached = leaves_of(roots, leaves)
        if any(id(p) not in known for p in reached):
            self._only_through_the_state(i, reached)
            own = [p for p in self.blocks[i].parameters() if p.requires_grad and p.is_leaf]
            facts.parameters = tuple({id(p): p for p in (*own, *reached)}.values())
            self._looking = True

    def _only_through_the_state(self, i: int, reached: Sequence[Tensor]) -> None:
        """A block whose graph reaches the input of another one has been handed something past the state."""
        inputs = {id(leaf): j for j, recorded in self.tape.items() if j != i for leaf in recorded.leaves}
        other = next((inputs[id(leaf)] for leaf in reached if id(leaf) in inputs), None)
        if other is not None:
            raise SweepError(
                got=f"a graph that leads into block {other} ({self.blocks[other].name}) past the state",
                wanted="whatever a later block uses handed on in the state, where the walk can cut it",
                where=place_of(self.blocks, i),
                next_step="return it beside the output, in a tuple, a dict or a class that torch.utils._pytree knows, "
                "instead of through a list, a closure or an object of your own; or detach it",
            )

    def _unread(self, i: int, leaves: tuple[Tensor, ...], flat: list[Any]) -> None:
        """Find which leaves this block's graph has not saved, and which the one before has not saved either.

        The block was given copies, so a copy that only this list holds was not saved; the memory of the leaf itself is
        held by the leaf and by the handle that asks, and by whoever saved it.
        """
        facts = self.facts[i]
        copies = {id(t): t for t in flat if isinstance(t, Tensor) and t.requires_grad}.values()
        if i == 0 or len(copies) != len(leaves):
            return
        unsaved = [
            k
            for k, copy in enumerate(copies)
            if copy.layout is torch.strided and holders(copy) == 2 and uses(copy) == 1
        ]
        facts.unsaved = tuple(unsaved)
        alone = [k for k in unsaved if holders(leaves[k]) == 2 and i not in self._held]
        facts.droppable = tuple(alone)

    # the end ------------------------------------------------------------------------------------------------------

    def tell_begins(self, roots: Sequence[Tensor] = ()) -> None:
        """Tell whoever watches the program that gradients are about to be filled."""
        if not self.quiet and not self._told and passes.anyone():
            self._told = True
            passes.begins(roots)

    def tell_ends(self, error: BaseException | None = None) -> None:
        """Tell that they are."""
        if self._told:
            self._told = False
            passes.ends(error)

    def abandon(self) -> None:
        """Undo a step that did not finish: buffers and random state as they were before it; nothing is held."""
        for found in reversed(self._first):
            found.put_back()
        if self._random is not None:
            self._random.restore()
        self.tell_ends(sys.exc_info()[1])
        self.release()

    def release(self) -> None:
        """Let go of every graph and tensor."""
        self._random = None  # a step that is over is not undone
        self.tell_ends()
        self.tape.clear()
        self._held.clear()
        self._found.clear()
        self._first.clear()
        for tape in self._tapes_out.values():
            tape.close()
        for held in self._held_out.values():
            held.close()
        self._tapes_out.clear()
        self._held_out.clear()
        if self._away is not None:
            self._away.close()
        self.deferred.clear()
        self._partial.clear()
        self._current = None
        self._ends = ()
        self.cotangents = ()


def _other_gradients(blocks: Blocks, i: int) -> SweepError:
    return SweepError(
        got="outputs of which others carry a gradient than at an earlier step",
        wanted="a block that does the same for inputs of the same kind, since it is recomputed",
        where=place_of(blocks, i),
        next_step="keep this block in the plan, or make the branch a property that shows (train or eval, a shape)",
    )
