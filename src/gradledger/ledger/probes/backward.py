"""Reverse passes: `torch.autograd.backward` (and with it `Tensor.backward`) and `torch.autograd.grad`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradledger.core import passes
from gradledger.core.events import AliasWritten, Backward, Clear, Comparison, LeafSeen, NonFinite
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _comparisons, _provenance, _site, _terms, _values, _writes
from gradledger.ledger._graph import Walk, walk
from gradledger.ledger._identity import FollowedTable
from gradledger.ledger._operations import Value
from gradledger.ledger._pass import Pass, tensors_in
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._registry import Registry
from gradledger.ledger._session import Session

MAX_COMPARISONS = 8
MAX_FILLED = 4096
_is_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
_GRAD = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.trace = session.trace
        self.running = 0
        self.entered: list[int] = []  # roots of the pass that runs, when it is one of `autograd.grad`
        self.last = 0
        self.roots: FollowedTable[torch.Tensor] = FollowedTable()
        self.walked: dict[int, tuple[int, set[int]]] = {}  # backward -> (root number, term tokens)
        self.seen_leaves: set[int] = set()
        self.filled: set[int] = set()  # leaves that reverse passes wrote, while no optimizer holds anything
        self.non_finite: set[str] = set()
        self.blind = False  # a pass whose graph is cut at every block: there is no graph from the loss to walk
        self.told: list[Pass | None] = []
        self.working = 0

    # ------------------------------------------------------------------ while dozing

    def skip_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """A reverse pass like those before, from the same instruction, with a finite root, need not be looked at."""
        return self.recorder.doze.asleep and self._skip("backward", args[0] if args else kwargs.get("tensors"))

    def skip_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """The same for `autograd.grad`: as in an inner loop, or in a penalty on gradients."""
        if not self.recorder.doze.asleep:
            return False
        given = dict(zip(_GRAD, args, strict=False)) | kwargs
        create, count = bool(given.get("create_graph")), len(tensors_in(given.get("inputs")))
        return self._skip("grad", given.get("outputs"), create, count)

    def _skip(self, method: str, root: Any, *more: object) -> bool:
        recorder = self.recorder
        if self.running:
            return False
        try:
            if isinstance(root, (list, tuple)) and len(root) == 1:
                root = root[0]
            if isinstance(root, torch.Tensor):
                with torch._C.DisableTorchFunction():
                    blind = root.numel() != 1 or root.device.type != "cpu" or root.is_complex()
                    # (inside vmap or a functional transform there is no value to look at)
                    plain = blind or _is_wrapped(root) or math.isfinite(root.item())
                    shape = (root.requires_grad, root.is_leaf)
            else:
                plain, shape = True, (True, False)
            if plain and recorder.passes((method, _site.mark(2), *shape, *more), self.last + 1):
                self.last += 1
                recorder.backwards += 1
                return True
        except Exception as error:
            recorder.fail("doze", error)
            recorder.doze.forbidden = True
        if recorder.doze.asleep:
            recorder.wake()
        return False

    # ------------------------------------------------------------------ passes that a sweep walks itself

    def begins(self, roots: Sequence[Any]) -> None:
        """A sweep is about to fill gradients, block by block, below what the wrappers see."""
        recorder = self.recorder
        self.told.append(None)
        if not recorder.enabled:
            return
        if recorder.abroad:
            recorder.train_abroad()
            return
        with recorder.guard("sweep begins"):
            if recorder.doze.asleep:
                recorder.wake()
            recorder.doze.forbidden = True
            self.blind = self.trace.swept = True
            try:
                self.told[-1] = self._before("backward", {"tensors": list(roots)}, "tensors")
            finally:
                self.blind = False

    def ends(self, error: BaseException | None) -> None:
        """It is over."""
        one = self.told.pop() if self.told else None
        self.trace.swept = any(o is not None for o in self.told)
        if one is None:
            return
        with self.recorder.guard("sweep ends"):
            if error is None:
                self.after(one, None, (), {})
            else:
                self.raised(one, error, (), {})

    def works(self, on: bool) -> None:
        """Modules are called by a sweep: as those of a recomputation, their graphs are none of the program's."""
        self.working += 1 if on else -1
        self.trace.reversing = self.running > 0 or self.working > 0

    # ------------------------------------------------------------------ before

    def before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pass | None:
        names = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
        return self._before("backward", {**dict(zip(names, args, strict=False)), **kwargs}, "tensors")

    def before_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pass | None:
        given = {**dict(zip(_GRAD, args, strict=False)), **kwargs}
        one = self._before("grad", given, "outputs")
        if one is not None:
            one.inputs = tensors_in(given.get("inputs"))
        return one

    def _before(self, method: str, given: dict[str, Any], roots: str) -> Pass | None:
        if self.running:
            self.running += 1
            # under a mode `autograd.grad` calls itself by its name, once: the same pass, not one inside another
            again = method == "grad" and [id(t) for t in tensors_in(given.get(roots))] == self.entered
            self.recorder.doze.forbidden |= not again
            return None
        self.running = 1
        self.entered = [id(t) for t in tensors_in(given.get(roots))] if method == "grad" else []
        self.trace.reversing = True
        create = bool(given.get("create_graph"))
        retain = create if given.get("retain_graph") is None else bool(given["retain_graph"])
        one = self._begin(method, tensors_in(given.get(roots)), retain, create)
        one.seed = _values.number_of(tensors_in(given.get("grad_tensors")))
        return one

    def _begin(self, method: str, roots: list[torch.Tensor], retain: bool, create: bool) -> Pass:
        self.last += 1
        one = Pass(self.last, method, roots, retain, create, _site.here(2), _site.mark(2))
        # on error `running` must come down again even when what follows fails
        with self.recorder.guard("backward begin"):
            self._look_at_root(one)
        if method == "backward":
            self.session.before_backward()
            lost, by_hand = self.session.lifecycle.before_backward()
            if lost:
                self.session.emit_unseen(lost)
            if by_hand:
                tensors = tuple(dict.fromkeys(t for d in by_hand for t in d.tensors))
                self.recorder.emit(
                    Clear, NOWHERE, how="zero", optimizer=None, module=None, tensors=tensors, dropped=by_hand
                )
        return one

    def _look_at_root(self, one: Pass) -> None:
        if not one.roots:
            return
        root = one.roots[0]
        if _is_wrapped(root):
            return  # inside vmap or a functional transform: no value to look at
        if root.numel() == 1 and (root.device.type == "cpu" or self.recorder.detail) and not root.is_complex():
            one.value = float(root.detach().item())
        number = self.roots.find(root)
        standing = self.session.lifecycle.standing() if one.method == "backward" and (number or self.walked) else set()
        if number is not None:
            earlier = [b for b, (r, _) in self.walked.items() if r == number and b in standing]
            one.repeats = earlier[-1] if earlier else None
        if self.trace.active and not self.blind:
            self._look_in_detail(one, standing)
        self.walked = {b: w for b, w in self.walked.items() if b in standing or b > self.last - 8}
        if one.method == "backward":
            self.walked[one.number] = (self.roots.number(root), one.tokens)

    def _look_in_detail(self, one: Pass, standing: set[int]) -> None:
        # without an optimizer, what earlier passes filled is what the program updates itself
        trained = self.session.held or self.filled
        found = walk(one.roots)
        if not found.complete:
            return  # too large a graph: half a walk must not be taken for what the loss reaches
        one.walk = found
        for root in one.roots:
            value = self.trace.value_of(root)
            order = value.op.order if value.op else self.trace.order
            parts = _terms.unfold(self.trace, value.token)
            one.terms += _terms.describe(self.trace, parts, one.walk, trained, order)
            graphs = (self.trace.values.get(p.token) for p in parts if p.token is not None)
            one.tokens.update(v.token for v in graphs if v is not None and v.graph)
            if root is one.roots[0]:
                one.age = self.recorder.iteration - value.iteration
                if value.op is not None:
                    one.root_op, one.root_site = value.op.name, value.op.site
                    if not value.op.grad_on:
                        one.no_grad_site = value.op.site
            reaches = any(self.recorder.tensors.find(t) in trained for t in one.walk.leaves)
            if not reaches:
                one.cuts += _provenance.cuts_below(self.trace, value.token, trained)
                one.cuts += _provenance.exits_of_graphs(self.trace, trained, order)
            if len(one.comparisons) < MAX_COMPARISONS:
                self._comparisons(one, value)
        if standing:
            one.covers = tuple(
                b
                for b, (_, tokens) in self.walked.items()
                if b in standing and b != one.repeats and tokens & one.tokens
            )
        calls = []
        for call in self.trace.calls.values():
            if any(n in one.walk.nodes for n in call.nodes):
                call.walked = True
                calls.append(_provenance.call_ref(call, True))
        one.calls = tuple(calls)
        self._leaves_seen(one.walk)

    def _comparisons(self, one: Pass, value: Value) -> None:
        for op, left, right in _comparisons.comparisons(self.trace, value.token)[:MAX_COMPARISONS]:
            behind = (_provenance.leaf_behind(self.trace, token) for token in op.ins[:2])
            self.session.leaves_in_loss.update(leaf for leaf in behind if leaf is not None)
            zero = op.options.get("_zero")
            name = "difference" if op.name in ("sub", "rsub") else op.name
            number = one.number  # not `one` itself: that cycle would keep the graph alive

            def emit(
                number: int = number,
                op: Any = op,
                left: Any = left,
                right: Any = right,
                zero: Any = zero,
                name: str = name,
            ) -> None:
                self.recorder.emit(
                    Comparison,
                    op.site,
                    backward=number,
                    op=name,
                    left=left,
                    right=right,
                    value=0.0 if zero else None,
                )

            one.comparisons.append(emit)

    def _leaves_seen(self, graph: Walk) -> None:
        for leaf in graph.leaves:
            number = self.session.lifecycle.follow(leaf).number
            if number in self.seen_leaves:
                continue
            self.seen_leaves.add(number)
            if number in self.recorder.part(Registry).owners:
                continue
            self.recorder.emit(
                LeafSeen,
                self.session.leaf_sites.get(number, NOWHERE),
                tensor=number,
                shape=tuple(leaf.shape),
                is_parameter=isinstance(leaf, torch.nn.Parameter),
                fed_to=tuple(sorted(self.session.fed.get(number, ()))),
                in_loss=number in self.session.leaves_in_loss,
            )

    # ------------------------------------------------------------------ after

    def after(self, one: Pass | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.running = max(0, self.running - 1)
        self.trace.reversing = self.running > 0 or self.working > 0
        if one is not None:
            self._end(one, "")
            if one.method == "grad" and self.trace.active:
                self._grad_results(one, result)

    def raised(self, one: Pass | None, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.running = max(0, self.running - 1)
        self.trace.reversing = self.running > 0 or self.working > 0
        if one is not None:
            self._end(one, f"{type(error).__name__}: {error}"[:600])

    def _end(self, one: Pass, raised: str) -> None:
        self.recorder.backwards += 1
        if one.walk is None:
            for call in self.trace.calls.values():
                call.closed = call.closed or (
                    not call.walked and call.alive
                )  # what this pass walked was not looked at: cannot be judged
        if one.method == "backward":
            leaves = tuple(self.session.lifecycle.after_backward(one.number))
            if not self.session.held and len(self.filled) < MAX_FILLED:
                self.filled.update(leaves)
        else:
            leaves = tuple(n for t in one.inputs if (n := self.recorder.tensors.find(t)) is not None)
        root = one.root
        reached = tuple(self.recorder.tensor_id(t) for t in one.walk.leaves) if one.walk is not None else ()
        scaled = root is not None and self.session.is_scaled(root)
        values = one.facts(leaves, reached, raised, scaled)
        signature = one.signature(leaves, raised)
        shape = (root.requires_grad, root.is_leaf) if root is not None and len(one.roots) == 1 else (True, False)
        more = () if one.method == "backward" else (one.create, len(one.inputs))
        key = (one.method, one.mark, *shape, *more)
        self.recorder.note(Backward, one.site, signature, values, key=key)
        for emit in one.comparisons:
            emit()
        self._alias_writes(one)
        if one.value is not None and not math.isfinite(one.value):
            self.first_non_finite("loss", one.site)
            self.recorder.suspicious()
        self.session.differentiated()
        if root is not None and one.method == "backward":
            self.session.root_walked(root, one.site)
            if not raised:
                self.session.pass_walked(one.number, one.roots, one.site)
        if not self.recorder.optimizers and (one.method == "backward" or not one.create):
            self.recorder.iteration_without_optimizer()

    def first_non_finite(self, what: str, site: Site) -> None:
        if what in self.non_finite:
            return
        self.non_finite.add(what)
        op, op_site, reason = self.session.suspect()
        self.recorder.emit(NonFinite, site, what=what, op=op, op_site=op_site, reason=reason)

    def _alias_writes(self, one: Pass) -> None:
        if one.walk is None:
            return
        self.trace.alias_writes += _writes.written_arrays(self.trace)
        nodes = one.walk.nodes
        for write in list(self.trace.alias_writes):
            detached = write.alias.how in ("detach", "detach_")
            if write.base_node not in nodes and not (detached and write.below in nodes):
                continue
            self.trace.alias_writes.remove(write)
            # what was saved before the write torch itself guards, by the version that a detached tensor shares
            if detached and not _provenance.used_after(
                self.trace, write.alias.base, write.order, beside=write.whole
            ):
                continue
            self.recorder.emit(
                AliasWritten,
                write.site,
                backward=one.number,
                op=write.op,
                alias_how=write.alias.how,
                alias_site=write.alias.site,
                base_op=write.base_op,
                base_site=write.base_site,
            )

    def _grad_results(self, one: Pass, result: Any) -> None:
        results = [t for t in tensors_in(result) if t is not None]
        more = {"create_graph": one.create, "wrt": tuple(self.trace.token_of(t) for t in one.inputs)}
        values = self.trace.enter_results(results, "autograd_grad", one.roots, one.site, **more)
        for value in values:
            value.grad_input = not one.create


def install(session: Session) -> Undo:
    """Watch every reverse pass."""
    probe = _Probe(session)
    session.first_non_finite = probe.first_non_finite
    recorder = session.recorder
    ends: dict[str, Any] = {"after": probe.after, "raised": probe.raised, "abroad": recorder.train_abroad}
    return together(
        observe(recorder, torch.autograd, "backward", skip=probe.skip_backward, before=probe.before_backward, **ends),
        observe(recorder, torch.autograd, "grad", skip=probe.skip_grad, before=probe.before_grad, **ends),
        passes.listen(probe),
    )
