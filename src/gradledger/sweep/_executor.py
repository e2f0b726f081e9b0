"""Obeys a plan: runs, records and reverses the blocks of one step, and leaves everything as a plain backward would."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from gradledger.core import passes
from gradledger.core.errors import SweepError
from gradledger.sweep import _offload, _vjp
from gradledger.sweep._action import Action
from gradledger.sweep._ambient import Ambient
from gradledger.sweep._block import Blocks, place_of
from gradledger.sweep._facts import Facts, Watched, leaves_of, note_first_run, settle_shared
from gradledger.sweep._gradients import Gradients
from gradledger.sweep._halves import WeightHalf, WholeAgain, weight_half
from gradledger.sweep._parallel import Reduction
from gradledger.sweep._replay import Found, RandomState
from gradledger.sweep._state import Boundary, cut, data, look_at, open_up, what
from gradledger.sweep._tape import Recorded

Cotangents = tuple[Tensor | None, ...]


class Walk:
    """One step in motion: forward to the loss, then the reverse walk.

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
        self._away: _offload.Away | None = None
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
                with saved_tensors_hooks(_drop, _never):
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
            moved = self._tapes_out[i] = _offload.Saved(place, self._outside(), _offload.addresses(stay))
            return moved
        return nullcontext() if self.recording is None else self.recording(i)

    def _outside(self) -> _offload.Away:
        if self._away is None:
            parts = [(*b.parameters(), *(buffer for _, _, buffer in b.buffers())) for b in self.blocks]
            self._away = _offload.Away((*self.x.flat, *(t for part in parts for t in part)))
        return self._away

    def _move_out(self, i: int) -> None:
        """What tape i has saved, and its input leaves, which are not read again: only their shape is."""
        if i in self._tapes_out:
            self._tapes_out[i].move()
            for leaf in self.tape[i].leaves:
                if sys.getrefcount(leaf) <= _HANDLES and leaf.layout is torch.strided:
                    self._empty(i, leaf)

    def _let_go(self, i: int, leaves: tuple[Tensor, ...]) -> None:
        """Free the input tensors that no graph has saved: their leaves keep their shape, not their memory."""
        facts = self.facts[i]
        for k in facts.unsaved if self._again or self._places else facts.droppable:
            leaf = leaves[k]
            if sys.getrefcount(leaf) <= _HANDLES:  # else a block has kept it beside its graph
                self._empty(i, leaf)

    def _empty(self, i: int, leaf: Tensor) -> None:
        if _uses(leaf) == 2:  # Python's handle, and the leaf of the graph
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
            if copy.layout is torch.strided and _holders(copy) == 2 and _uses(copy) == 1
        ]
        facts.unsaved = tuple(unsaved)
        alone = [k for k in unsaved if _holders(leaves[k]) == 2 and i not in self._held]
        facts.droppable = tuple(alone)

    # reverse ------------------------------------------------------------------------------------------------------

    def begin(self, roots: Sequence[Tensor], seeds: Cotangents) -> None:
        """Say where the walk starts: the differentiable losses and the seed cotangent of each."""
        facts = self.facts[self.loss_at]
        ends, self._ends = self._ends, ()
        self.tape[self.loss_at] = Recorded(list(roots), ends)
        if not facts.looked:
            facts.single = len(roots) == 1 and roots[0].numel() == 1
            self._learn(self.loss_at, roots, ends)
        elif facts.capture:
            self._any_new(self.loss_at, roots, ends)
        if self._looking:
            settle_shared(self.facts)
        self.cotangents, self._made = seeds, False
        self.tell_begins(roots)
        self._current = None

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

    def parameters(self) -> list[Tensor]:
        """Every leaf that the walk may give a gradient, each once."""
        return list({id(p): p for f in self.facts for p in f.parameters}.values())

    def reverse(self, gradients: Gradients) -> Iterator[int]:
        """Walk back; yields each block, the loss first, before its product.

        The caller calls `product`, or leaves it to the walk.  A caller that stops early must call `abandon`.
        """
        self.gradients = gradients
        autocast = bool(self.ambient.autocast)
        for action in self._after:
            if self.on_action is not None:
                self.on_action(action)
            if action.kind != "reverse":
                with torch.enable_grad(), self.ambient.forward() if autocast else nullcontext():
                    self._do(action)
                continue
            i = action.block
            self._current = None
            if i in self._tapes_out:
                self._tapes_out.pop(i).land()
            yield i  # under no mode of ours: the caller's code runs here
            if i in self.tape:
                with torch.enable_grad(), self.reversing():
                    self.product(i)
            self._made = True
            if self.on_cotangent is not None:
                self.on_cotangent(i, self.cotangents)
        self._into_the_data()

    def reversing(self) -> AbstractContextManager[Any]:
        """What a product runs under: no autocast."""
        return self.ambient.reverse() if self.ambient.autocast else nullcontext()

    def product(self, i: int, *, tell: bool = False) -> list[tuple[Tensor, Tensor]]:
        """The vector-Jacobian product of block i: parameter gradients go in, the cotangent moves one boundary back.

        `tell`: return what it gave each parameter.
        """
        roots, d_out, leaves = self._open_product(i, keep=False)
        facts = self.facts[i]
        if not roots and not any(id(p) in self._partial for p in facts.shared):
            self.cotangents = (None,) * len(leaves)
        elif facts.capture or tell or i in self._emptied or self.gradients.only is not None:
            return self._captured(i, roots, d_out, leaves, last=not tell)
        else:
            if self._made:
                _vjp.hand_over(roots, d_out)
            self.cotangents = ()
            _vjp.accumulate(tuple(roots), tuple(d_out))
            self.cotangents = tuple(leaf.grad for leaf in leaves)
            for leaf in leaves:
                leaf.grad = None
        return []

    def product_to_repeat(self, i: int) -> tuple[tuple[_vjp.Root, ...], tuple[Tensor, ...]]:
        """The whole product with the graph kept; returns the roots and their cotangents, to take it once more.

        Nothing to take it from when the graph can be walked only once (a compiled block that reuses its memory).
        """
        roots, d_out, leaves = self._open_product(i, keep=False)
        with self.reversing():
            if not roots and not any(id(p) in self._partial for p in self.facts[i].shared):
                self.cotangents = (None,) * len(leaves)
                return (), ()
            own = tuple(roots), tuple(d_out)
            try:
                self._captured(i, list(roots), list(d_out), leaves, keep=True)
            except RuntimeError as error:
                if not _only_once(error):
                    raise
                self._captured(i, roots, d_out, leaves)
                return (), ()
        return own

    def product_of_input(self, i: int) -> WeightHalf | WholeAgain:
        """Only the input half of block i's product; returns the other half.

        Nothing is left for the other half when the graph can be walked only once: then both are taken at once.
        """
        roots, d_out, leaves = self._open_product(i, keep=False)
        facts = self.facts[i]
        with self.reversing():
            if not facts.capture:
                self._any_new(i, roots, leaves)
            whole = WholeAgain(tuple(roots), tuple(d_out), facts.parameters)
            if not (roots and leaves):
                self.cotangents = (None,) * len(leaves)
                return whole
            half = weight_half(roots, leaves, facts.parameters)
            try:
                self.cotangents = tuple(_vjp.capture(tuple(roots), tuple(d_out), leaves, keep=True))
            except RuntimeError as error:
                if not _only_once(error):
                    raise
                self._captured(i, roots, d_out, leaves)
                return WholeAgain((), (), ())
        return whole if half is None else half

    def _open_product(self, i: int, *, keep: bool) -> tuple[list[_vjp.Root], list[Tensor], tuple[Tensor, ...]]:
        recorded = self.tape[i] if keep else self.tape.pop(i)
        roots: list[_vjp.Root] = []
        d_out: list[Tensor] = []
        for root, d in zip(recorded.roots, self.cotangents, strict=True):
            if d is not None:
                roots.append(root)
                d_out.append(d)
        return roots, d_out, recorded.leaves

    def _captured(
        self,
        i: int,
        roots: list[_vjp.Root],
        d_out: list[Tensor],
        leaves: tuple[Tensor, ...],
        *,
        keep: bool = False,
        last: bool = False,
    ) -> list[tuple[Tensor, Tensor]]:
        """`last`: nobody reads `d_out` after this product."""
        facts = self.facts[i]
        if self.reduction is not None and self.reduction.by_accumulation:
            self.cotangents = tuple(_vjp.accumulate_and_observe(tuple(roots), tuple(d_out), leaves))
            return []
        if not facts.capture:  # not asked for when it was recorded
            self._any_new(i, roots, leaves)
        for parameter in facts.shared:
            part = self._partial.get(id(parameter))
            if part is not None:
                roots.append(parameter)
                d_out.append(part)
            if parameter._backward_hooks:
                raise SweepError(
                    got="a hook on a parameter that several blocks share: it would run once for each block",
                    wanted="the hook run once, on the whole gradient",
                    where=f"block {self.blocks[i].name}",
                    next_step="use register_post_accumulate_grad_hook, or Sweep(engine='autograd')",
                )
        parameters = facts.parameters
        if last and self._made:
            _vjp.hand_over(roots, d_out)
        self.cotangents = ()
        result = _vjp.capture(tuple(roots), tuple(d_out), leaves + parameters, keep=keep)
        self.cotangents = tuple(result[: len(leaves)])
        if not facts.shared and all(
            d is not None and i not in self._emptied and d.stride() == leaf.stride() and d.dtype == leaf.dtype
            for d, leaf in zip(self.cotangents, leaves, strict=True)
        ):
            facts.capture = len(leaves) > 1
        taken = (*d_out, *self.cotangents)
        shared = {id(p) for p in facts.shared}
        given: list[tuple[Tensor, Tensor]] = []
        for parameter, gradient in zip(parameters, result[len(leaves) :], strict=True):
            if gradient is None:
                continue
            given.append((parameter, gradient))
            if id(parameter) in shared and id(parameter) not in facts.last_use:
                self._partial[id(parameter)] = gradient
                continue
            self._partial.pop(id(parameter), None)
            self.gradients.add(parameter, gradient, taken)
        return given

    def _into_the_data(self) -> None:
        """Data that itself requires a gradient gets it, through whatever graph stands above it."""
        pairs = [(t, d) for t, d in zip(self._outer, self.cotangents, strict=True) if d is not None]
        if pairs and self.into_data:
            roots, d_out = tuple(t for t, _ in pairs), tuple(d for _, d in pairs)
            if self.gradients.only is None:
                _vjp.accumulate(roots, d_out)
            elif self.gradients.only:
                _vjp.accumulate_into(roots, d_out, tuple(self.gradients.only.values()), keep=False)
        self.cotangents = ()

    # the end ------------------------------------------------------------------------------------------------------

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


def _handles() -> int:
    with torch.inference_mode(False), torch.enable_grad():
        leaves = (torch.empty((), requires_grad=True),)
        graph = leaves[0].clone()
    leaf = leaves[0]
    count = sys.getrefcount(leaf)
    del graph
    return count


def _other_gradients(blocks: Blocks, i: int) -> SweepError:
    return SweepError(
        got="outputs of which others carry a gradient than at an earlier step",
        wanted="a block that does the same for inputs of the same kind, since it is recomputed",
        where=place_of(blocks, i),
        next_step="keep this block in the plan, or make the branch a property that shows (train or eval, a shape)",
    )


_HANDLES = _handles()
"""Python's references to an input leaf that a record and its graph hold, and nobody else."""


def _only_once(error: RuntimeError) -> bool:
    """Whether a graph refused to be kept: compiled backward passes write into what they saved ("donated buffers")."""
    return "donated buffer" in str(error)


def _holders(tensor: Tensor) -> int:
    """How many tensors share its memory, the handle of the question counted."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _uses(tensor: Any) -> int:
    """How many handles and graphs hold the tensor itself; Python's counts as one."""
    return int(tensor._use_count())


def _drop(_tensor: Tensor) -> None:
    return None


def _never(_packed: None) -> Tensor:
    raise AssertionError("the graph of a run that keeps nothing was walked")
