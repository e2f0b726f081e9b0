"""Batches of a program without a loader, told by value: do the same ones come again in the same order, and does that
order follow the data?

`slices` tells pieces by where they lie in memory; rows that are picked by number, or that numpy holds, are copied
first.  Here a batch is known by its values.  When several come again, all of them as long after their first time (or
whole passes of one length later), the program walks through the same batches in one order; neighbours that are more
alike than others make it an order that follows the data.  (One item a step, in any order that is kept, is no such
thing: its neighbours are like all others.)
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradledger.core.events import BatchesCompared
from gradledger.core.site import Site
from gradledger.ledger._answers import call_behind
from gradledger.ledger._counts import CLASS_LOSSES
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session
from gradledger.ledger.probes.batches import LEAST_ROWS, ORDERED, Item, columns

LINES = 16
LOOKS = 400  # at one line
AGAIN = 4  # batches that came again
LEAST = 8  # different ones before
WALK = 0.5  # squared distance of neighbours, as a share of that of any two: 1 in random order


@dataclass
class _Line:
    """Calls from one line.  `first`: steps and reverse passes before each batch when it came first; `again`: how many
    came again, by how much later; `fresh`: new ones after that; `fetched`: those for which a loader gave something."""

    site: Site
    first: dict[int, int] = field(default_factory=dict)
    again: Counter[int] = field(default_factory=Counter)
    steps: set[int] = field(default_factory=set)
    fresh: int = 0
    fetched: int = 0
    loaded: int = 0
    looks: int = 0
    trained: int = 0
    work: int = -1
    told: bool = False
    new: bool = False  # the latest batch
    rows: Item | None = None
    classes: Item = field(default_factory=lambda: Item(1, False))  # that a loss compares the answers with


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.lines: dict[tuple[tuple[str, int], int], _Line] = {}
        self.loaded = 0  # batches that loaders gave

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """One forward call of the program itself."""
        tensors = [t for t in inputs if isinstance(t, torch.Tensor) and t.is_floating_point()]
        key = (call.site.key(), call.module)
        seen = self.lines.get(key)
        if len(tensors) != 1 or not call.grad_on or (seen is not None and seen.told):
            return  # what is given two may be given a state of its own, which asks for the order
        tensor = tensors[0]
        if tensor.requires_grad or tensor.dim() < 2 or tensor.shape[0] < LEAST_ROWS:
            return
        if seen is None:
            if len(self.lines) >= LINES:
                return
            op = self.session.trace.value_of(tensor).op if self.session.trace.active else None
            seen = self.lines[key] = _Line(op.site if op is not None and op.site.file else call.site)
        rows = columns(tensor)
        seen.looks += 1
        if rows is None or seen.looks > LOOKS:
            seen.told = True
            return
        self._look(seen, rows)

    def _look(self, seen: _Line, rows: Any) -> None:
        work = self.recorder.backwards + self.recorder.steps
        seen.trained += not seen.again and bool(seen.first) and work > seen.work
        seen.fetched += self.loaded > seen.loaded
        seen.work, seen.loaded = work, self.loaded
        batch = hash((rows.shape, rows.tobytes()))
        seen.new = batch not in seen.first and not seen.again
        if batch in seen.first:
            seen.again[work - seen.first[batch]] += 1
            self._judge(seen)
        elif seen.again:
            seen.fresh += 1
        else:
            item = seen.rows = seen.rows or Item(rows.shape[1], True)
            if rows.shape[1] != item.width:
                seen.told = True
                return
            seen.first[batch] = work
            seen.steps.add(self.recorder.steps)
            item.add(rows)

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        """A loss of classes: what it compares the answers to a new batch with."""
        if op.name not in CLASS_LOSSES or len(args) < 2 or not isinstance(args[1], torch.Tensor) or args[1].dim() != 1:
            return
        call = call_behind(self.session.trace, op.ins[0])
        seen = self.lines.get((call.site.key(), call.module)) if call is not None else None
        if seen is not None and seen.new and not seen.told and (found := columns(args[1])) is not None:
            seen.new = False
            seen.classes.add(found)

    def _judge(self, seen: _Line) -> None:
        """Enough came again to say in which order."""
        total = seen.again.total()
        if total < AGAIN:
            return
        seen.told = True
        # where few iterations are watched, some passes lie between a batch and its return: places in one pass
        period = math.gcd(*seen.again)
        if period == 0:
            return  # asked again before anything was learned: no pass lies between
        places = [work % period for work in seen.first.values()]
        one_order = len(seen.again) == 1 or (len(set(places)) == len(places) and period >= 2 * LEAST)
        # one step for all of them is a step of the whole set: the order does not matter
        if not one_order or seen.fresh > total or 2 * seen.fetched >= seen.looks or len(seen.steps) < AGAIN:
            return
        items = [
            i
            for i in (seen.rows, seen.classes)
            if i is not None and len(i.rows) >= LEAST and _walks(i, places if len(i.rows) == len(places) else None)
        ]
        if not items:
            return
        between = max(item.between() for item in items)
        self.recorder.emit(
            BatchesCompared,
            seen.site,
            loader=0,
            batches=len(items[0].rows),
            rows=items[0].rows[0],
            trained=seen.trained,
            between=between,
            between_inputs=between,
            item=0,
        )

    def asks_nothing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether no line is looked at."""
        return all(seen.told for seen in self.lines.values())

    def came(self, before: Any, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.loaded += 1


def _walks(item: Item, places: list[int] | None = None) -> bool:
    """Whether neighbours (by their `places` in a pass, or as they came) are more alike than any two, in the columns
    that differ between batches."""
    means = np.stack(item.means)[:, item.shares() >= ORDERED]
    means = means[np.argsort(places, kind="stable")] if places is not None else means
    if not means.size:
        return False
    means = (means - means.mean(0)) / means.std(0)
    return bool((np.diff(means, axis=0) ** 2).mean() / 2 <= WALK)


def install(session: Session) -> Undo:
    """Listen to forward calls, and count what loaders give."""
    probe = _Probe(session)
    session.at_call.append(probe.called)
    session.trace.listeners.made.append(probe.made)
    return together(
        lambda: session.trace.listeners.made.remove(probe.made),
        lambda: session.at_call.remove(probe.called),
        observe(session.recorder, _BaseDataLoaderIter, "__next__", after=probe.came, skip=probe.asks_nothing),
    )
