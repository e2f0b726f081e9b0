"""A column of the input that is the mean target of a category (target encoding), over rows that are held out, too.

The categories themselves are gone when torch sees the table; what is left is a column with one number for each.  Of a
mean, plain or drawn towards a prior, S = a n L + b n + c L + d holds in every category: S the sum of its targets over
the rows that were fitted on, n their number, L the column.  Where that is exact over the rows trained on and held out
together, and is not over those trained on alone, the targets of the rows held out are in the column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gradledger.core.events import FittedOnAll
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._answers import call_behind
from gradledger.ledger._naming import LOSSES
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._padding import array_of
from gradledger.ledger._patch import Undo, together
from gradledger.ledger._session import Session

ROWS = 4000  # of one module, on either side
MODULES = 4
WIDEST = 64
OPEN = 64  # calls whose loss is not known yet
HELD = 20  # rows, at least
CATEGORIES = 12  # with two rows or more, some of them held out
NEAR, EXACT = 1e-2, 1e-4  # error of a sum, as a share of how sums differ
EXACTLY, BY_CHANCE = 0.5, 0.35  # of the categories: over all rows, over those trained on alone
DRAWS = 200
SIZES = 3  # of categories: equal ones are the lines of a grid, whose sums may well be a plain function of the column
FLAT = 1e-3

_Key = tuple[int, int]
_Rows = dict[bytes, tuple[Any, float]]


@dataclass
class _Tables:
    """Rows of one module by their bytes, each with its target."""

    trained: _Rows = field(default_factory=dict)
    held: _Rows = field(default_factory=dict)
    site: Site = NOWHERE  # that asks about rows held out


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.tables: dict[_Key, _Tables] = {}
        self.open: dict[int, tuple[Call, _Key, Any, list[float]]] = {}

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """One forward call of the program itself."""
        trace = self.session.trace
        if trace.reversing or not trace.active or len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor):
            return
        rows = inputs[0]
        if rows.dim() != 2 or not rows.is_floating_point() or rows.requires_grad or not 1 < rows.shape[1] <= WIDEST:
            return
        key = call.module, int(rows.shape[1])
        known = self.tables.get(key)
        side = None if known is None else known.trained if call.grad_on else known.held
        if (side is None and (not call.grad_on or len(self.tables) >= MODULES)) or (side and len(side) >= ROWS):
            return
        array = array_of(rows)
        if array is not None and 0 < len(array) <= ROWS:
            if len(self.open) >= OPEN:
                self.open.clear()
            self.open[call.number] = call, key, np.array(array, np.float64), []

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        """The answers are compared with their targets."""
        if not self.open or len(args) < 2 or (op.name not in LOSSES and op.name != "sub"):
            return
        target = args[1]
        if not isinstance(target, torch.Tensor) or target.requires_grad or not target.dim():
            return
        call = call_behind(self.session.trace, op.ins[0])
        known = self.open.get(call.number) if call is not None else None
        values = array_of(target) if known is not None else None
        if known is None or values is None or values.size != len(known[2]) or known[3]:
            return
        known[3].extend(np.asarray(values, np.float64).reshape(-1).tolist())
        if not known[0].grad_on:
            self._keep(self.open.pop(known[0].number), held=True)

    def root(self, root: torch.Tensor, site: Site) -> None:
        """A reverse pass: what it walked was trained on."""
        if self.session.trace.active:
            for number, (call, *_) in list(self.open.items()):
                if call.walked:
                    self._keep(self.open.pop(number), held=False)

    def _keep(self, one: tuple[Call, _Key, Any, list[float]], *, held: bool) -> None:
        call, key, rows, targets = one
        if not targets:
            return
        tables = self.tables.setdefault(key, _Tables())
        side = tables.held if held else tables.trained
        if held:
            tables.site = call.site
        for row, target in zip(rows, targets, strict=True):
            side.setdefault(row.tobytes(), (row, target))

    def settle(self) -> None:
        """Judge each table, at the end of the run."""
        for tables in self.tables.values():
            fresh = [pair for at, pair in tables.held.items() if at not in tables.trained]
            if len(fresh) < HELD or len(tables.trained) < HELD:
                continue
            trained = list(tables.trained.values())
            rows = np.stack([row for row, _ in (*trained, *fresh)])
            targets = np.array([target for _, target in (*trained, *fresh)])
            held = np.arange(len(rows)) >= len(trained)
            if any(_encodes(rows[:, column], targets, held) for column in range(rows.shape[1])):
                self.session.recorder.emit(
                    FittedOnAll,
                    NOWHERE,
                    op="encoded by the mean target of a category",
                    rows=len(rows),
                    held=len(fresh),
                    shared=1.0,
                    evaluated=True,
                    trained=False,
                    part_site=tables.site,
                )


def _encodes(column: Any, targets: Any, held: Any) -> bool:
    """Whether a column is made of the mean targets of categories, those of the rows held out among them."""
    levels, which = np.unique(column, return_inverse=True)
    if not CATEGORIES <= len(levels) <= len(column) // 2:
        return False
    counts = np.bincount(which)
    shared = (counts > 1) & (np.bincount(which, weights=held) > 0) & (np.bincount(which, weights=~held) > 0)
    if shared.sum() < CATEGORIES or len(np.unique(counts[shared])) < SIZES:
        return False
    level = levels[shared]

    def explained(weights: Any) -> float:
        n, total = np.bincount(which, weights=weights)[shared], np.bincount(which, weights=weights * targets)[shared]
        return _exact(np.stack([n * level, n, level, np.ones(len(n))], axis=1), total)

    if explained(np.ones(len(column))) < max(CATEGORIES / shared.sum(), EXACTLY):
        return False
    return explained((~held).astype(float)) <= BY_CHANCE


def _exact(parts: Any, total: Any) -> float:
    """The share of categories in which one and the same a, b, c, d give the sum.  (Categories with one column between
    them, by equal sums and numbers, count as one, and may lie beside it.)"""
    draws, best = np.random.Generator(np.random.PCG64(1)), 0.0
    spread = float(total.std())
    if spread < FLAT * float(np.abs(total).mean()):
        return 0.0
    for _ in range(DRAWS):
        some = draws.choice(len(parts), 6, replace=False)
        for slack in (NEAR, EXACT):  # a few first, then all that fit them
            answer, *_ = np.linalg.lstsq(parts[some], total[some], rcond=None)
            some = np.flatnonzero(np.abs(parts @ answer - total) <= slack * spread)
            if len(some) < 6:
                break
        else:
            best = max(best, len(some) / len(parts))
            if best > 0.98:
                break
    return best


def install(session: Session) -> Undo:
    """Listen to calls, losses and roots."""
    probe = _Probe(session)
    session.trace.listeners.made.append(probe.made)
    session.at_call.append(probe.called)
    session.at_root.append(probe.root)
    session.at_end.append(probe.settle)
    return together(
        lambda: session.trace.listeners.made.remove(probe.made),
        lambda: session.at_call.remove(probe.called),
        lambda: session.at_root.remove(probe.root),
        lambda: session.at_end.remove(probe.settle),
    )


__all__ = ["install"]
