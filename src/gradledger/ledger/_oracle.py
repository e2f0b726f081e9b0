"""The oracle: recomputes, on copies, the gradients of sampled iterations term by term, and explains consumed gradients.

A reverse pass is taken apart when it is over: each additive term of its loss is run again from the tape and walked by
itself.  At the step that uses it, the consumed gradient is written as a combination of these, of earlier passes, and
of what stood in `.grad` before.  Where a term cannot be made again exactly, the reason is recorded instead.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gradledger.core.events import Share
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _terms
from gradledger.ledger._explain import SLACK, Solution, Vector, solve
from gradledger.ledger._lifecycle import Leaf, grad_of
from gradledger.ledger._replay import Replay, Undisturbed
from gradledger.ledger._session import Session
from gradledger.ledger._tape import Reason, Tape, unseen

FIRST = 5  # iterations sampled from the start: gradients that nobody clears show within these
LENGTH = 2  # iterations sampled in a row: a loss of two optimizers may begin in the one before
MAX_TERMS = 16  # of one loss
MAX_KEPT = 40_000_000  # elements of gradients that are kept for a later step
MAX_COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Sampling:
    """The iterations that are sampled: the first ones, two in a row out of every `every`, and those in `also`."""

    every: int
    also: Container[int] = ()

    def __contains__(self, iteration: object) -> bool:
        return isinstance(iteration, int) and (
            iteration < FIRST or iteration % self.every < LENGTH or iteration in self.also
        )


@dataclass(slots=True)
class Column:
    """A term of a walked loss and its gradient.  `token`: the value that it is (0: a Python number)."""

    token: int
    kind: str
    op: str
    site: Site
    written: float
    gradient: Vector = field(default_factory=dict)
    backwards: tuple[int, ...] = ()
    more: int = 0


@dataclass(slots=True)
class Walked:
    """A reverse pass of a sampled iteration: its terms, or why they cannot be made again."""

    number: int
    site: Site
    columns: list[Column] | Reason
    size: int = 0

    def gradient(self, leaf: int) -> torch.Tensor | None:
        """The whole gradient of the pass at one leaf."""
        columns = self.columns if isinstance(self.columns, list) else []
        parts = [c.gradient[leaf] * c.written for c in columns if leaf in c.gradient]
        return torch.stack(parts).sum(0) if parts else None


@dataclass(slots=True)
class Explained:
    """What is said of the tensors of one step that have one history."""

    tensors: tuple[int, ...]
    shares: tuple[Share, ...]
    solution: Solution


_profiling: Any = vars(torch.autograd)["_profiler_enabled"]  # not in torch's type annotations

_History = tuple[tuple[int, int], ...]  # (reverse pass, how often it was consumed), oldest first
_Members = list[tuple[Leaf, torch.Tensor]]  # leaves and their gradients


class Oracle:
    """One run's oracle.  `sampled`: whether this iteration is."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.trace = session.trace
        self.tape = Tape(session.trace)
        self.sampling = Sampling(session.oracle, session.recorder.attention.wanted)
        self.sampled = session.recorder.iteration in self.sampling
        self.passes: dict[int, Walked] = {}
        self.stood: dict[int, torch.Tensor] | None = None  # gradients before the first pass of this iteration
        self.stood_after = 0  # the last pass before it
        self.broken: Reason | None = None

    # ------------------------------------------------------------------ an iteration

    def begin(self, iteration: int) -> None:
        """An iteration begins."""
        before, self.sampled = self.sampled, iteration in self.sampling
        self.stood = None
        if not self.sampled:
            if before:
                self.tape.clear()
                self.passes.clear()
            return
        self.tape.turn(iteration)
        standing = self.session.lifecycle.standing()
        self.passes = {n: w for n, w in self.passes.items() if n in standing}

    def before_pass(self) -> None:
        """A reverse pass is about to write: keep what stands in the gradients, once an iteration."""
        if not self.sampled or self.stood is not None:
            return
        self.stood, self.stood_after = {}, self.session.lifecycle.latest
        left = MAX_KEPT
        for leaf in self.session.lifecycle.leaves.values():
            tensor = leaf.ref()
            gradient = grad_of(tensor) if tensor is not None else None
            if gradient is None or not leaf.fills or gradient.layout is not torch.strided:
                continue
            left -= gradient.numel()
            if left < 0:
                break
            self.stood[leaf.number] = gradient.detach().clone()

    def after_pass(self, number: int, roots: Sequence[torch.Tensor], site: Site) -> None:
        """A reverse pass has filled gradients: take its loss apart."""
        if not self.sampled:
            return
        try:
            columns = self._take_apart(roots, site)
        except Exception as error:  # out of memory, an operation that refuses: of no concern to the program
            columns = Reason("failed", f"{type(error).__name__}: {error}"[:200], site)
        walked = self.passes[number] = Walked(number, site, columns)
        if isinstance(columns, list):
            for column in columns:
                column.backwards = (number,)
                walked.size += sum(g.numel() for g in column.gradient.values())
        while sum(w.size for w in self.passes.values()) > MAX_KEPT and len(self.passes) > 1:
            del self.passes[next(iter(self.passes))]

    def _take_apart(self, roots: Sequence[torch.Tensor], site: Site) -> list[Column] | Reason:
        reason = self._prevented(site)
        if reason is not None:
            return reason
        columns: list[Column] = []
        for root in roots:
            if root.numel() != 1 or root.is_complex():
                return Reason("unseen", "the root of the pass is not one number", site)
            found = self._terms_of(root, site)
            if isinstance(found, Reason):
                return found
            columns += found
        if len(columns) > MAX_TERMS:
            return Reason("too large", f"the loss has more than {MAX_TERMS} terms", site)
        return columns

    def _prevented(self, site: Site) -> Reason | None:
        if self.broken is not None:
            return self.broken
        if not self.trace.active:
            text = next(iter(self.session.recorder.not_watched.values()), "single operations were not looked at")
            return Reason("unseen", text, site)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Reason("ranks", "ranks exchange gradients", site)
        if _profiling():
            return Reason("profiler", "a profiler is on", site)
        return None

    def _terms_of(self, root: torch.Tensor, site: Site) -> list[Column] | Reason:
        value = self.trace.value_of(root)
        top = value.token
        if top not in self.tape.slots and value.iteration == self.session.recorder.iteration:
            return unseen(root, site)
        parts = _terms.unfold(self.trace, top)
        alive = [t for p in parts if (t := p.token) is not None and self._graph(t)]
        entries = self.tape.below([top, *alive])
        if isinstance(entries, Reason):
            return entries
        columns: dict[int, Column] = {}
        for index, part in enumerate(parts):
            written = self._written(part)
            if written is None:
                return Reason("unseen", "the weight of a term was not seen", part.site)
            term = self.trace.values.get(part.token) if part.token is not None else None
            op = term.op if term is not None else None
            name, made = ("number", part.site) if term is None else (op.name, op.site) if op else ("input", part.site)
            kind = "term" if term is not None and term.graph else "constant"
            key = part.token if part.token is not None else -index - 1
            column = columns.setdefault(key, Column(max(key, 0), kind, name, made, 0.0))
            column.written += written
        with Undisturbed(self.session.recorder) as undisturbed:
            replay = Replay(entries)
            if not _agrees(replay.values[top], root):
                where = value.op.site if value.op is not None else site
                return Reason("differs", "run again on copies, the loss has another value", where)
            for token, column in columns.items():
                if column.kind == "term":
                    column.gradient = replay.gradients(token)
        if undisturbed.moved:
            self.broken = Reason("random", "an operation drew random numbers unannounced (the state was put back)")
            return self.broken
        return [columns[key] for key in sorted(columns, key=abs)]  # in the order in which the values were made

    def _graph(self, token: int) -> bool:
        value = self.trace.values.get(token)
        return value is not None and value.graph

    def _written(self, part: _terms.Part) -> float | None:
        written = part.factor
        for weight in part.weights:
            scalar = self.tape.scalars.get(abs(weight))
            if scalar is None:
                return None
            value = float(scalar)
            if weight < 0 and value == 0:
                return None
            written = written * value if weight > 0 else written / value
        return written

    # ------------------------------------------------------------------ a step

    def at_step(self, tensors: Sequence[torch.Tensor]) -> list[Explained | Reason]:
        """An optimizer is about to consume the gradients of `tensors`."""
        groups: dict[_History, _Members] = {}
        said: list[Explained | Reason] = []
        for tensor in tensors:
            number = self.session.recorder.tensors.find(tensor)
            leaf = self.session.lifecycle.leaves.get(number) if number is not None else None
            gradient = grad_of(tensor)
            if leaf is None or gradient is None or not tensor.requires_grad:
                continue
            if leaf.fills:
                groups.setdefault(tuple((b, c) for b, c in leaf.fills), []).append((leaf, gradient))
            elif not leaf.zeroed and not said:
                said.append(Reason("assigned", "the program wrote `.grad` itself"))
        for history, members in self._joined(groups).items():
            one = self._explain(history, members)
            if one not in said:
                said.append(one)
        return said

    def _joined(self, groups: dict[_History, _Members]) -> dict[_History, _Members]:
        """One group, where histories differ only by passes that do not reach some of the tensors."""
        union: dict[int, int] = {}
        for history, members in groups.items():
            if any(leaf.omitted for leaf, _ in members) or any(union.setdefault(b, c) != c for b, c in history):
                return groups
        for history, members in groups.items():
            for backward in union.keys() - {b for b, _ in history}:
                walked = self.passes.get(backward)
                if walked is None or isinstance(walked.columns, Reason):
                    return groups
                if any(leaf.number in c.gradient for c in walked.columns for leaf, _ in members):
                    return groups  # it did reach them: the program has cleared some and not others
        return {tuple(sorted(union.items())): [m for members in groups.values() for m in members]} if groups else {}

    def _explain(self, fills: _History, members: _Members) -> Explained | Reason:
        consumed = {leaf.number: gradient for leaf, gradient in members}
        for gradient in consumed.values():
            if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided:
                return Reason("subclass", "a gradient is sparse or of a class of its own")
            if not gradient.is_floating_point() or torch.finfo(gradient.dtype).bits < 32:
                return Reason("precision", f"gradients are {gradient.dtype}: too coarse to compare")
        complete = not any(leaf.omitted for leaf, _ in members)
        columns = self._columns(fills, members, separate=complete)
        if isinstance(columns, Reason) and self.stood is not None and fills[0][0] <= self.stood_after:
            columns = self._columns(fills, members, separate=False)
        if isinstance(columns, Reason):
            return columns
        solid = [c for c in columns if c.kind != "constant"]
        if len(solid) > MAX_COLUMNS:
            return Reason("too large", f"more than {MAX_COLUMNS} gradients stand in `.grad` together")
        solution = solve(consumed, [c.gradient for c in solid], [c.written for c in solid])
        facts = zip(solid, solution.coefficients, solution.bounds, solution.ties, strict=True)
        shares = [Share(c.kind, c.op, c.site, c.backwards, c.written, x, b, t, c.more) for c, x, b, t in facts]
        shares += [
            Share("constant", c.op, c.site, c.backwards, c.written, 0.0) for c in columns if c.kind == "constant"
        ]  # fmt: skip
        return Explained(tuple(consumed), tuple(shares), solution)

    def _columns(
        self, fills: _History, members: _Members, *, separate: bool
    ) -> list[Column] | Reason:
        """What the gradient of these leaves may be made of.  `separate`: earlier passes each for itself, else together
        as what stood before the first pass of this iteration."""
        found: dict[object, Column] = {}
        numbers = [leaf.number for leaf, _ in members]
        if not separate:
            if self.stood is None or any(n not in self.stood for n in numbers):
                return Reason("not recorded", "what stood in `.grad` before was not recorded")
            old = [(b, used) for b, used in fills if b <= self.stood_after]
            kind = "earlier" if any(used for _, used in old) else "stood"
            stood = {n: self.stood[n] for n in numbers}
            more = max(leaf.omitted for leaf, _ in members)
            found["stood"] = Column(0, kind, "stood", NOWHERE, 1.0, stood, tuple(b for b, _ in old), more)
        for backward, used in fills:
            if not separate and backward <= self.stood_after:
                continue
            walked = self.passes.get(backward)
            if walked is None:
                return Reason("not recorded", "a pass of an iteration that was not sampled stands in `.grad`")
            if isinstance(walked.columns, Reason):
                return walked.columns
            if used:
                whole = {n: g for n in numbers if (g := walked.gradient(n)) is not None}
                found[backward] = Column(0, "earlier", "pass", walked.site, 1.0, whole, (backward,))
                continue
            for column in walked.columns:
                key = ("term", column.token) if column.token else (column.op, column.site, backward)
                known = found.get(key)
                if known is None:
                    found[key] = Column(**{f: getattr(column, f) for f in Column.__slots__})
                else:  # one loss walked again
                    known.written += column.written
                    known.backwards += column.backwards
        return list(found.values())


def _agrees(again: torch.Tensor, root: torch.Tensor) -> bool:
    """Whether a loss that was made again has the value that the program saw."""
    if again.shape != root.shape or again.dtype != root.dtype or not root.is_floating_point():
        return False
    seen, value = float(root.detach()), float(again.detach())
    return abs(seen - value) <= SLACK * torch.finfo(root.dtype).eps * max(1.0, abs(seen))


__all__ = ["Explained", "Oracle", "Sampling"]
