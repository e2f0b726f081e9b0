"""Batches that are cut from one table, piece after piece, without a loader: does their order follow the data?

The pieces are told by where they lie in memory: each begins where the one before it ended.  The first watched calls
of a line are looked at; a pass ends when the first piece comes again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gradledger.core.events import BatchesCompared
from gradledger.core.site import Site
from gradledger.ledger._operations import Call
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session
from gradledger.ledger.probes.batches import LEAST_ROWS, Item, columns

LINES = 32
BATCHES = 200  # of one pass
LONG = 12  # pieces in a row, of a pass whose end was not seen
SHORT = 4  # ... and of one that began anew with the same piece


@dataclass
class _Pieces:
    """Calls from one line.  `pieces`: sums of the pieces of this pass by address; `end`: where the latest one ended;
    `work`: reverse passes and steps before it; `site`: where the pieces are cut."""

    site: Site
    pieces: dict[int, Any] = field(default_factory=dict)
    end: int = 0
    work: int = -1
    batches: int = 0
    trained: int = 0
    told: bool = False
    item: Item | None = None


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.lines: dict[tuple[tuple[str, int], int], _Pieces] = {}

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """One forward call of the program itself."""
        tensors = [t for t in inputs if isinstance(t, torch.Tensor) and t.is_floating_point()]
        if len(tensors) != 1 or not call.grad_on or not self._piece(tensors[0]):
            return  # what is given two may be given a state of its own, which asks for the order
        tensor = tensors[0]
        key = (call.site.key(), call.module)
        seen = self.lines.get(key)
        if seen is None:
            if len(self.lines) >= LINES:
                return
            seen = self.lines[key] = _Pieces(self._cut_at(tensor, call.site))
        if seen.told:
            return
        rows = columns(tensor)
        if rows is None:
            seen.told = True  # nothing that can be looked at
            return
        self._look(seen, tensor, rows)

    def _piece(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) is torch.Tensor
            and tensor.device.type == "cpu"
            and tensor.dim() > 1
            and tensor.shape[0] >= LEAST_ROWS
            and tensor.is_floating_point()
            and not tensor.requires_grad
            and tensor.is_contiguous()
        )

    def _cut_at(self, tensor: torch.Tensor, site: Site) -> Site:
        """Where the program made the piece, when the trace knows."""
        op = self.session.trace.value_of(tensor).op if self.session.trace.active else None
        return op.site if op is not None and op.site.file else site

    def _look(self, seen: _Pieces, tensor: torch.Tensor, rows: Any) -> None:
        work = self.recorder.backwards + self.recorder.steps
        place, sums = tensor.data_ptr(), rows.sum(0)
        seen.trained += seen.batches > 0 and work > seen.work
        seen.work = work
        item = seen.item
        if item is None or place != seen.end or rows.shape[1] != item.width:
            # the pass begins anew, or goes on behind pieces that nobody looked at: the table is still the same
            known = seen.pieces.get(place)
            if known is not None and len(known) == len(sums) and bool((sums == known).all()) and seen.batches >= SHORT:
                self._tell(seen)
                return
            seen.batches, seen.trained = 0, 0
            seen.pieces.clear()
            item = seen.item = Item(rows.shape[1], True)
        item.add(rows)
        seen.pieces[place] = sums
        seen.batches += 1
        seen.end = place + tensor.numel() * tensor.element_size()
        if seen.batches == BATCHES:
            self._tell(seen)

    def _tell(self, seen: _Pieces) -> None:
        seen.told = True
        item = seen.item
        if item is None or len(item.rows) < SHORT:
            return
        between = item.between()
        self.recorder.emit(
            BatchesCompared,
            seen.site,
            loader=0,
            batches=seen.batches,
            rows=item.rows[0],
            trained=seen.trained,
            between=between,
            between_inputs=between,
            item=0,
        )

    def end(self) -> None:
        """The run is over: long passes whose end was not seen are told, too."""
        for seen in self.lines.values():
            if not seen.told and seen.batches >= LONG:
                seen.trained += self.recorder.backwards + self.recorder.steps > seen.work
                self._tell(seen)


def install(session: Session) -> Undo:
    """Listen to forward calls."""
    probe = _Probe(session)
    session.at_call.append(probe.called)
    session.at_end.append(probe.end)

    def undo() -> None:
        session.at_call.remove(probe.called)

    return undo
