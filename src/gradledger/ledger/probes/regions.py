"""Batches that are cut from one table and changed in place, without a data set: does the table drift?

A piece is told by where it lies in memory.  When a model is trained on it, its values are kept as a digest; when the
same piece comes again with others, and the program has computed into pieces of this table (noise, a mask, a
normalisation), the table is what changed.  A table that the program fills (a rollout, a replay) is left alone.
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
from gradledger.ledger._session import Session

TABLES = 64
PIECES = 512  # of one table
ELEMENTS = 65_536  # of one piece
LEAST = 2  # pieces that have changed
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
    program computed into one."""

    table: Ref[torch.Tensor]
    digests: dict[_Piece, str] = field(default_factory=dict)
    changed: set[_Piece] = field(default_factory=set)
    site: Site = NOWHERE
    filled: bool = False
    told: bool = False


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.trace = session.trace
        self.tables: dict[int, _Table] = {}

    def _of(self, base: torch.Tensor) -> _Table | None:
        known = self.tables.get(id(base))
        if known is None or known.table() is not base:
            if len(self.tables) >= TABLES:
                return None
            known = self.tables[id(base)] = _Table(Ref(base))
        return known

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        """Something was written in place."""
        written = op.inplace or op.name == "setitem"
        if not written or self.trace.reversing or self.trace.optimizer_running or not args:
            return
        target = args[0]
        if type(target) is not torch.Tensor or target.requires_grad or target.device.type != "cpu":
            return
        base = target._base
        table = self._of(target if base is None else base)
        if table is None:
            return
        masks = op.name == "setitem" and len(args) > 1 and isinstance(args[1], torch.Tensor)
        if base is None or not (op.name in _COMPUTES or masks):
            table.filled = True
        elif not table.site.file and not op.in_forward:
            table.site = op.site

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """One forward call of the program itself: which pieces it is given, and whether they are what they were."""
        for tensor in inputs:
            if not call.grad_on or type(tensor) is not torch.Tensor or tensor.requires_grad:
                continue
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
            self._tell(table)

    def _tell(self, table: _Table) -> None:
        if table.site.file and len(table.changed) >= LEAST:
            table.told = True
            self.recorder.emit(
                StoredDataChanged, table.site, dataset="tensor", attribute="", passes=2, items=len(table.changed)
            )


def install(session: Session) -> Undo:
    """Listen to operations and calls."""
    probe = _Probe(session)
    session.trace.listeners.made.append(probe.made)
    session.at_call.append(probe.called)

    def undo() -> None:
        session.trace.listeners.made.remove(probe.made)
        session.at_call.remove(probe.called)

    return undo
