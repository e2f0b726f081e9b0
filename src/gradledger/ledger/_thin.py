"""Which iterations of a long run are kept: those that show something new, and ever fewer of those that repeat.

A *segment* is everything between two completed optimizer steps.  Segments are kept or dropped whole, so that what a
backward filled, a clear threw away and a step consumed stay together.  A segment like KEEP kept before is dropped and
counted, except when those dropped since the last kept one are a twentieth of all; the kept one then carries their
number as the `weight` of its events.  Four things make this safe for those who read the facts in order:

- what exists (modules, tensors, optimizers, loaders being made) is kept even out of dropped segments;
- the train/eval mode and `requires_grad` as the dropped segments left them are told before the next kept one;
- a segment in which a lasting tensor is filled, reached or stepped in a way not seen before is kept, however alike its
  shape is: a parameter used once in a thousand iterations is not taken for one that is never used;
- the segment before a kept one is kept too, when it is still at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gradledger.core.events import (
    Backward,
    Clear,
    Event,
    GradFlagSet,
    GroupAdded,
    ModeSet,
    OptimizerMade,
    RunEnded,
    Step,
    TensorRegistered,
)
from gradledger.ledger._shape import line_of, shape_of

CAP = 200_000  # events kept in all
SHARE = 20  # beyond KEEP one is kept whenever those left out since are 1/SHARE of all
KEEP = 200  # segments of one shape that are kept: shorter runs are judged on everything
LONG = 2048  # events in one segment after which repeated events are thinned one by one
SHAPES = 2048  # shapes told apart exactly; then by kinds and lines alone, then not at all
NOVEL = 4096  # segments kept because of a tensor's new state
SELF_CONTAINED = 256  # facts of one shape kept although their segment is dropped

_EXISTENCE = frozenset(
    {
        "run_started", "run_ended", "module_made", "child_registered", "tensor_registered", "leaf_seen",
        "plain_attributes", "module_freed", "optimizer_made", "group_added", "scheduler_made", "loader_made",
        "module_used",
    }
)  # fmt: skip
_ALONE = frozenset(
    {
        "deep_copied", "copied", "storage_shared", "shadow_averaged", "values_compared", "state_taken", "state_loaded",
        "file_touched", "non_finite", "graphs_alive", "alias_written", "exhausted_iterator", "statistics_moved",
        "graph_discarded", "broadcast", "target_explained", "padding_counted", "padding_averaged", "rows_shared",
        "fitted_on_all", "sampler_pass", "rank_batch", "rank_loss", "rank_parameters", "rank_finding", "rank_run",
        "worker_draws", "gradient_in_view", "clipped_rescaled",
    }
)  # fmt: skip


@dataclass(slots=True)
class Tally:
    """How often segments (or, with one entry in `what`, single events) of one shape occurred and were kept.

    `what`: (kind, file, line) of its events, at most 16.  `sample`: sequence number of the first event of the first.
    `first`, `last`: iteration numbers.
    """

    number: int
    what: tuple[tuple[str, str, int], ...]
    sample: int
    first: int
    last: int
    seen: int = 0
    kept: int = 0
    waiting: int = 0  # dropped since the last kept one, by weight


@dataclass(slots=True)
class Batch:
    """What is to be stored now: new events, ranges of sequence numbers to delete first, and tallies that changed."""

    events: list[Event]
    deleted: list[tuple[int, int]]
    tallies: list[Tally]


class Thinner:
    """Decides as events come.  `put` then `take` (whenever the store is ready), and `finish` at the end.

    `heard` is called with each event that is kept, once that is settled: who judges a run while it is running sees
    what a reader of the store will see later.
    """

    def __init__(self, cap: int = CAP, heard: Callable[[Event], None] | None = None) -> None:
        self.cap = cap
        self._heard = heard
        self.seen = 0
        self.kept = 0
        self._ready: list[Event] = []
        self._deleted: list[tuple[int, int]] = []
        self._open: list[Event] = []
        self._given = 0  # events of the open segment that `take` has handed out already
        self._iteration = -1
        self._long = False  # this iteration has outgrown LONG
        self._novel = False
        self._novel_left = NOVEL
        self._previous: list[Event] = []
        self._previous_tally: Tally | None = None
        self._carried: dict[object, Event] = {}
        self._lasting: set[int] = set()
        self._last_ids: dict[object, tuple[tuple[int, ...], set[int]]] = {}
        self._tallies: dict[object, Tally] = {}
        self._changed: dict[int, Tally] = {}
        self._alone: dict[int, int] = {}

    # ------------------------------------------------------------------ in and out

    def put(self, event: Event) -> None:
        """Take one event."""
        self.seen += 1
        if event.iteration != self._iteration:
            self._settle()
            self._iteration = event.iteration
            self._long = False
        if len(self._open) >= LONG:
            self._long = True
            if event.KIND not in _EXISTENCE and not self._wants_single(event):
                return
        self._open.append(event)
        if self._long and isinstance(event, Clear):
            self._settle()  # a loop without optimizer steps: from clear to clear

    def pending(self) -> int:
        """Events not yet handed out."""
        return len(self._ready) + len(self._open) - self._given

    def take(self) -> Batch:
        """What is to be stored now.  The open segment is included, and deleted later should it be dropped."""
        events = self._ready + self._open[self._given :]
        batch = Batch(events, self._deleted, list(self._changed.values()))
        self._ready, self._deleted, self._changed = [], [], {}
        self._given = len(self._open)
        return batch

    def finish(self) -> None:
        """The run is over: the open segment is kept whatever it is."""
        if self._open:
            self._settle(final=True)

    def note(self) -> str:
        """What was left out, in words; empty when nothing was."""
        if self.seen == self.kept:
            return ""
        text = f"{self.kept} of {self.seen} events kept: of iterations alike the first {KEEP}, then samples"
        return text if self.kept < self.cap else f"{text}; the limit of {self.cap} events was reached"

    # ------------------------------------------------------------------ decisions

    def _settle(self, final: bool = False) -> None:
        segment, given = self._open, self._given
        if not segment:
            return
        self._open, self._given, self._novel = [], 0, False
        for event in segment:
            look = _LOOKS.get(event.KIND)
            if look is not None:
                look(self, event)
        tally = self._tally(segment)
        if final or self._wanted(tally, self._novel):
            tally.kept += 1
            if tally.waiting:
                # parts handed out already are told again with their weight
                segment = [replace(event, weight=event.weight + tally.waiting) for event in segment]
                tally.waiting, given = 0, 0
            self._keep(segment, given)
            return
        tally.waiting += segment[0].weight
        if given:  # part of it is stored already
            self._deleted.append((segment[0].seq, segment[given - 1].seq))
        for event in segment:
            if event.KIND in _EXISTENCE or (event.KIND in _ALONE and self._wants_alone(event)):
                if self.kept < self.cap * 1.1 or isinstance(event, RunEnded):
                    self._ready.append(event)
                    self.kept += 1
                    if self._heard is not None:
                        self._heard(event)
            elif isinstance(event, ModeSet):
                self._carried["mode", event.module] = event
            elif isinstance(event, GradFlagSet):
                self._carried["flag", event.tensors[:8], len(event.tensors)] = event
                if len(self._carried) > 1024:
                    del self._carried[next(iter(self._carried))]
        self._previous = segment if len(segment) <= 256 else []
        self._previous_tally = tally

    def _keep(self, segment: list[Event], given: int) -> None:
        before = [e for e in self._previous if e.KIND not in _EXISTENCE and e.KIND not in _ALONE]
        if before and self._previous_tally is not None:
            self._previous_tally.waiting -= self._previous[0].weight
        already = {e.seq for e in before}
        before += [e for e in self._carried.values() if e.seq not in already]
        self._previous, self._carried = [], {}
        self._ready += before
        self._ready += segment[given:]
        self.kept += len(before) + len(segment)
        if self._heard is not None:
            for event in before:
                self._heard(event)
            for event in segment:
                self._heard(event)

    def _wanted(self, tally: Tally, novel: bool) -> bool:
        if self.kept >= self.cap:
            return False
        if novel and self._novel_left > 0:
            self._novel_left -= 1
            return True
        limit = KEEP if self.kept < self.cap // 2 else KEEP // 4 if self.kept < self.cap * 4 // 5 else 2
        return tally.kept < limit or tally.waiting * SHARE >= tally.seen

    def _tally(self, segment: list[Event]) -> Tally:
        """The count of segments like this one: exactly alike, or alike in kinds and lines, or (table full) any."""
        room = len(self._tallies)
        key: object = hash(tuple([shape_of(event) for event in segment]))
        if key not in self._tallies and (room >= SHAPES or self.kept > self.cap // 4):
            key = ("lines", hash(tuple([line_of(event) for event in segment])))
            if key not in self._tallies and room >= 2 * SHAPES:
                key = ()
        return self._count(key, segment)

    def _count(self, key: object, events: list[Event]) -> Tally:
        first = events[0]
        tally = self._tallies.get(key)
        if tally is None:
            what = tuple((e.KIND, e.site.file, e.site.line) for e in events[:16])
            tally = self._tallies[key] = Tally(len(self._tallies), what, first.seq, first.iteration, first.iteration)
        tally.seen += 1
        tally.last = first.iteration
        self._changed[tally.number] = tally
        return tally

    def _wants_single(self, event: Event) -> bool:
        key: object = ("single", shape_of(event))
        if key not in self._tallies and len(self._tallies) >= 2 * SHAPES:
            key = ("single",)
        tally = self._count(key, [event])
        keep = self.kept < self.cap and (tally.kept < KEEP or tally.seen & (tally.seen - 1) == 0)
        tally.kept += keep
        return keep

    def _wants_alone(self, event: Event) -> bool:
        shape = shape_of(event)
        count = self._alone.get(shape, 0)
        if count >= SELF_CONTAINED or (count == 0 and len(self._alone) >= 2 * SHAPES) or self.kept >= self.cap:
            return False
        self._alone[shape] = count + 1
        return True

    # ------------------------------------------------------------------ tensors in a new state

    def _backward(self, event: Backward) -> None:
        self._meet("fill" + event.method, event, event.leaves)
        if event.reached:
            self._meet("reach", event, event.reached)

    def _step(self, event: Step) -> None:
        for life in event.lives:
            self._meet((life.grad, life.moved, bool(life.fills)), event, life.tensors)

    def _registered(self, event: TensorRegistered) -> None:
        if event.role == "parameter":
            self._lasting.add(event.tensor)

    def _held(self, event: OptimizerMade | GroupAdded) -> None:
        for group in event.groups if isinstance(event, OptimizerMade) else (event.group,):
            self._lasting.update(group.tensors)

    def _meet(self, state: object, event: Event, tensors: tuple[int, ...]) -> None:
        key = (state, event.site.file, event.site.line)
        last, met = self._last_ids.get(key, ((), set()))
        if tensors == last:
            return
        new = self._lasting.intersection(tensors)
        new -= met
        if new:
            self._novel = True
            met |= new
        if key in self._last_ids or len(self._last_ids) < 1024:
            self._last_ids[key] = (tensors, met)


_LOOKS: dict[str, Callable[[Thinner, Any], None]] = {
    "backward": Thinner._backward,
    "step": Thinner._step,
    "tensor_registered": Thinner._registered,
    "optimizer_made": Thinner._held,
    "group_added": Thinner._held,
}
