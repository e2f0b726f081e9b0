"""Batches that are cut from one table and changed in place, without a data set: does the table drift?

A piece is told by where it lies in memory.  When a model is trained on it, its values are kept as a digest; when the
same piece comes again with others, and the program has computed into pieces of this table (noise, a mask, a
normalisation), the table is what changed.  A table that the program fills (a rollout, a replay) is left alone, and
so are pieces that are stacked before they are trained on.  For those, and for targets, it is enough that, with nothing
filled in between, the program has computed into one part of the memory in two iterations, and has trained on what came
out.  What it computes from answers of a model (an average of predictions) fills the table.

Records that are a tensor each are told by what is masked in them: nothing but one number was ever written into one,
where a mask is set, in several iterations, and what came of it was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gradledger.core.events import StoredDataChanged
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._digest import digest
from gradledger.ledger._identity import Ref
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._provenance import strip
from gradledger.ledger._session import Session

TABLES = 64
PIECES = 512  # of one table
ELEMENTS = 65_536  # of one piece
LEAST = 2  # pieces that have changed
WORKED = 512  # pieces of one table that were computed into
DIRTY = 4096  # values that come of them
RECORDS = 4096  # tensors that are masked, each by itself
MASKED = 4  # times that one was masked which had been
_JOINS = frozenset({"stack", "cat", "hstack", "vstack", "concat"})
_COMPUTES = frozenset(
    {
        "add_", "sub_", "mul_", "div_", "masked_fill_", "clamp_", "neg_", "pow_", "add", "sub", "mul", "div",
        "masked_fill", "clamp",
    }
)  # fmt: skip

_Piece = tuple[int, tuple[int, ...]]


@dataclass
class _Table:
    """One table: the values of its pieces when they were last trained on, those that had others then, where the
    program computed into one.  `worked`: where it did since it was filled, as (first, last, iteration) of the memory;
    `again`: how often there was somewhere that it had been in an earlier iteration."""

    table: Ref[torch.Tensor]
    digests: dict[_Piece, str] = field(default_factory=dict)
    changed: set[_Piece] = field(default_factory=set)
    site: Site = NOWHERE
    filled: bool = False
    told: bool = False
    worked: list[tuple[int, int, int]] = field(default_factory=list)
    again: int = 0

    def work(self, piece: torch.Tensor, iteration: int) -> None:
        """The program computes into a piece."""
        first = int(piece.storage_offset())
        last = first + sum((n - 1) * step for n, step in zip(piece.shape, piece.stride(), strict=True))
        self.again += any(a <= last and first <= b and then < iteration for a, b, then in self.worked)
        if len(self.worked) < WORKED:
            self.worked.append((first, last, iteration))


@dataclass
class _Record:
    """One tensor of its own, masked in `iteration` on one line; `filled`: something else was written into it."""

    tensor: Ref[torch.Tensor]
    line: _Table | None = None
    iteration: int = -1
    filled: bool = False


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.trace = session.trace
        self.tables: dict[int, _Table] = {}
        self.records: dict[int, _Record] = {}
        self.lines: dict[tuple[str, int], _Table] = {}  # that mask records: `again` counts those masked before
        self.dirty: dict[int, _Table] = {}  # token of what is left of a piece after the program computed into it

    def _of(self, base: torch.Tensor) -> _Table | None:
        known = self.tables.get(id(base))
        if known is None or known.table() is not base:
            if len(self.tables) >= TABLES:
                return None
            known = self.tables[id(base)] = _Table(Ref(base), filled=id(base) in self.records)
        return known

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        """Something was written in place."""
        if op.name in _JOINS and self.dirty:
            source = next((self.dirty[t] for t in op.ins if t in self.dirty), None)
            if source is not None:
                self._leave(source, results)
        written = op.inplace or op.name == "setitem"
        if self.dirty and not written and results and results[0].graph:
            self._met(op)
        if not written or self.trace.reversing or self.trace.optimizer_running or not args:
            return
        target = args[0]
        if type(target) is not torch.Tensor or target.requires_grad or target.device.type != "cpu":
            return
        base = target._base
        if base is None and self._record(op, target, args, results):
            return
        table = self._of(target if base is None else base)
        if table is None:
            return
        masks = op.name == "setitem" and len(args) > 1 and isinstance(args[1], torch.Tensor)
        if base is None or not (op.name in _COMPUTES or masks) or self._answered(op):
            if op.name == "setitem" and _is_part(args[2] if len(args) > 2 else None, target):
                return  # the end of `table[i] *= x`
            table.filled = True
            table.worked.clear()
        elif not op.in_forward:
            table.site = table.site if table.site.file else op.site
            if self.recorder.backwards and not masks and target.numel() < base.numel() and not table.told:
                table.work(target, self.recorder.iteration)
                self._leave(table, results)

    def _record(self, op: Op, target: torch.Tensor, args: Any, results: list[Value]) -> bool:
        """Something is written into a tensor that is no part of another: whether that masks a record."""
        known = self.records.get(id(target))
        if known is not None and known.tensor() is not target:
            known = None
        masks = _masks(op, args) and not op.in_forward
        if known is None and masks and not self._has_table(target):
            if len(self.records) >= RECORDS:
                self.records = {i: one for i, one in self.records.items() if one.tensor() is not None}
            if len(self.records) < RECORDS:
                known = self.records[id(target)] = _Record(Ref(target))
        if known is None:
            return False
        if not masks or known.filled:
            known.filled = True
            return False
        line = self.lines.get(op.site.key())
        if line is None and len(self.lines) < TABLES:
            line = self.lines[op.site.key()] = _Table(Ref(target), site=op.site)
        if line is not None:
            line.again += known.line is line and known.iteration < self.recorder.iteration
            known.line, known.iteration = line, self.recorder.iteration
            if self.recorder.backwards and line.again >= MASKED and not line.told:
                self._leave(line, results)
        return True

    def _has_table(self, target: torch.Tensor) -> bool:
        known = self.tables.get(id(target))
        return known is not None and known.table() is target

    def _met(self, op: Op) -> None:
        """A value with a graph is made: with what is left of a piece that was computed into, as a target is?"""
        for token in op.ins:
            table = self.dirty.get(token)
            if table is not None and table.again >= LEAST and not table.told:
                self._tell(table, table.again)

    def _answered(self, op: Op) -> bool:
        """Whether what is computed into a table comes from a module."""
        values = (self.trace.values.get(strip(self.trace, token)[0]) for token in op.ins[1:])
        return any(v is not None and (v.call is not None or (v.op is not None and v.op.in_forward)) for v in values)

    def _leave(self, table: _Table, results: list[Value]) -> None:
        if len(self.dirty) >= DIRTY:
            self.dirty.clear()
        self.dirty.update((value.token, table) for value in results[:1])

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """One forward call of the program itself: which pieces it is given, and whether they are what they were."""
        for tensor in inputs:
            if not call.grad_on or type(tensor) is not torch.Tensor or tensor.requires_grad:
                continue
            source = self.dirty.get(self.trace.token_of(tensor)) if self.dirty else None
            if source is not None and source.again >= LEAST and not source.told:
                self._tell(source, source.again)
            base = tensor._base
            if base is None or tensor.device.type != "cpu" or not 0 < tensor.numel() <= ELEMENTS:
                continue
            table = self._of(base) if tensor.numel() < base.numel() else None
            if table is None or table.filled or table.told:
                continue
            piece = (int(tensor.storage_offset()), tuple(tensor.shape))
            now = digest([tensor])
            before = table.digests.get(piece)
            if before is not None and before != now:
                table.changed.add(piece)
            if before is not None or len(table.digests) < PIECES:
                table.digests[piece] = now
            if len(table.changed) >= LEAST:
                self._tell(table, len(table.changed))

    def _tell(self, table: _Table, pieces: int) -> None:
        if table.site.file:
            table.told = True
            what = "records" if table in self.lines.values() else ""
            self.recorder.emit(StoredDataChanged, table.site, dataset="tensor", attribute=what, passes=2, items=pieces)


def _masks(op: Op, args: Any) -> bool:
    """`record[chosen] = 0`, `record.masked_fill_(chosen, 0)`, with a mask of truth values over a whole record."""
    if op.name not in ("setitem", "masked_fill_") or len(args) < 3 or args[0].dtype == torch.bool:
        return False
    mask, value = args[1], args[2]
    one = isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    return isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.shape == args[0].shape and one


def _is_part(value: Any, table: torch.Tensor) -> bool:
    """Whether what is put into a table lies in its memory already."""
    if type(value) is not torch.Tensor or value._base is None:
        return False
    return value._base is (table if table._base is None else table._base)


def install(session: Session) -> Undo:
    """Listen to operations and calls."""
    probe = _Probe(session)
    session.trace.listeners.made.append(probe.made)
    session.at_call.append(probe.called)

    def undo() -> None:
        session.trace.listeners.made.remove(probe.made)
        session.at_call.remove(probe.called)

    return undo
