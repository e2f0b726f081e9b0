"""What fetching items does to what the data set keeps for them; the first batches of the first passes are looked at.

A data set may be built anew for each pass over tensors that live on.  Then it is not the object that tells that one
pass goes on where the last one ended, nor an address, which may be given out again: it is the values.  An item that
stands as an earlier pass left it, and is changed once more, has drifted; one that is as it was before is a fresh copy.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data._utils.fetch import _MapDatasetFetcher

from gradledger.core.events import StoredDataChanged
from gradledger.core.site import Site
from gradledger.ledger import _datasets, _site
from gradledger.ledger._patch import Undo, observe
from gradledger.ledger._session import Session

PASSES = 4  # of one object
ROUNDS = 16  # of one class; of the later ones only the 32nd, the 64th ... are looked at
FETCHES = 6  # of one pass
ITEMS = 8  # of one fetch
AGAIN = 96  # items of one pass that an earlier pass changed
NEEDED = 2  # passes that changed what is kept
PLACES = 4096  # that were seen to change, of one class
CHANGES = 4  # of one place that are kept
_What = tuple[str, str]
_Place = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class _Change:
    """What one pass made of one item.  `owner`: the data set of that pass."""

    was: bytes
    now: bytes
    number: int
    owner: _Seen


@dataclass(eq=False)
class _Seen:
    """One data set: passes begun, passes that changed what it keeps by (class, attribute), and how many items.
    `filled`: places that held nothing and then something: a cache fills each once, whichever pass comes to it first."""

    passes: int = 0
    filled: set[_Place] = field(default_factory=set)
    changed: dict[_What, set[int]] = field(default_factory=dict)
    items: Counter[_What] = field(default_factory=Counter)


@dataclass(eq=False)
class _Kind:
    """All data sets of one class over the same classes.  `changes`: the latest ones by place; `drifted`: passes that
    found items as an earlier pass had left them and changed them again, by (class, attribute)."""

    rounds: int = 0
    changes: OrderedDict[_Place, list[_Change]] = field(default_factory=OrderedDict)
    drifted: dict[_What, set[int]] = field(default_factory=dict)
    items: Counter[_What] = field(default_factory=Counter)
    told: bool = False

    def remember(self, place: _Place, change: _Change) -> None:
        kept = self.changes.setdefault(place, [])
        kept.append(change)
        del kept[:-CHANGES]
        self.changes.move_to_end(place)
        if len(self.changes) > PLACES:
            self.changes.popitem(last=False)


@dataclass(eq=False)
class _Fetcher:
    """One pass.  `number`: of its data set; `round`: of its class; `again`: items looked at once more."""

    kind: _Kind
    seen: _Seen
    number: int
    round: int
    fetches: int = 0
    again: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing more is to be looked at in this pass."""
        late = self.round >= ROUNDS and self.round & (self.round - 1)
        done = self.fetches >= FETCHES and (not self.kind.changes or self.again >= AGAIN)
        return self.kind.told or self.number >= PASSES or bool(late) or done


class _Probe:
    def __init__(self, session: Session) -> None:
        self.recorder = session.recorder
        self.sets: dict[int, _Seen] = {}
        self.kinds: dict[tuple[str, ...], _Kind] = {}
        self.fetchers: weakref.WeakKeyDictionary[Any, _Fetcher] = weakref.WeakKeyDictionary()
        self.open: tuple[_Fetcher, tuple[Site, ...]] | None = None

    def _begin(self, fetcher: Any) -> _Fetcher | None:
        known = self.fetchers.get(fetcher)
        if known is None:
            if not _datasets.readable(fetcher.dataset):
                return None
            self.settle()
            sets = [layer for layer, _ in _datasets.layers(fetcher.dataset, [])]
            kind = self.kinds.setdefault(tuple(_datasets.class_of(s) for s in sets), _Kind())
            # a list has no identity that could be followed: it is told by its values alone
            base = next((s for s in reversed(sets) if not isinstance(s, (list, tuple))), None)
            seen = _Seen()
            if base is not None:
                seen = self.sets.setdefault(self.recorder.objects.number(base), seen)
            known = self.fetchers[fetcher] = _Fetcher(kind, seen, seen.passes, kind.rounds)
            seen.passes += 1
            kind.rounds += 1
        return known

    def _indices(self, known: _Fetcher, dataset: Any, asked: Any) -> list[int]:
        """Which items of a fetch to look at: the first ones, and those that were seen to change."""
        given = list(asked) if isinstance(asked, (list, tuple)) else [asked]
        if not all(type(i) is int for i in given):
            return []
        known.fetches += 1
        chosen = dict.fromkeys(given[:ITEMS] if known.fetches <= FETCHES else [])
        if known.kind.changes and known.again < AGAIN:
            suspects = {place[2] for place in known.kind.changes}
            for _, items in _datasets.layers(dataset, given):
                again = [i for i, item in zip(given, items, strict=True) if item in suspects and i not in chosen]
                known.again += len(again)
                chosen |= dict.fromkeys(again)
        return list(chosen)

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = self._begin(args[0])
        if known is None or known.over:
            return None
        indices = self._indices(known, args[0].dataset, args[1])
        return known, indices, _datasets.kept(args[0].dataset, indices)

    def after(self, state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if state is None or not state[2]:
            return
        known, indices, was = state
        now = _datasets.kept(args[0].dataset, indices)
        for place, digest in was.items():
            self._compare(known, place, digest, now.get(place, digest))
        readers = _datasets.readers(args[0].dataset, args[0].collate_fn)
        self.open = known, readers
        for what, passes in known.kind.drifted.items():
            if not known.kind.told and len(passes) >= NEEDED:
                self._tell(known.kind, what, len(passes), known.kind.items[what], readers)

    def _compare(self, known: _Fetcher, place: _Place, was: bytes, now: bytes) -> None:
        what, earlier = place[:2], [c for c in known.kind.changes.get(place, ()) if c.number != known.round]
        if any(c.owner is known.seen and c.was == was and c.now != was for c in earlier):
            known.seen.changed.pop(what, None)  # it is as it was before that pass: put back in between
        if was == now:
            return
        if _datasets.blank(was) and place not in known.seen.filled:
            known.seen.filled.add(place)
            return
        left = [c for c in earlier if c.now == was and not _datasets.blank(was)]
        if left:
            known.kind.drifted.setdefault(what, set()).update((left[-1].number, known.round))
            known.kind.items[what] += 1
        known.kind.remember(place, _Change(was, now, known.round, known.seen))
        known.seen.changed.setdefault(what, set()).add(known.number)
        known.seen.items[what] += 1

    def settle(self) -> None:
        """A pass is over.  One object that changed items in two passes is told although no item was seen twice."""
        opened, self.open = self.open, None
        if opened is None:
            return
        known, readers = opened
        for what, passes in known.seen.changed.items():
            if not known.kind.told and len(passes) >= NEEDED:
                self._tell(known.kind, what, len(passes), known.seen.items[what], readers)

    def _tell(self, kind: _Kind, what: _What, passes: int, items: int, readers: tuple[Site, ...]) -> None:
        kind.told = True
        self.recorder.emit(
            StoredDataChanged,
            _site.here(1),
            dataset=what[0],
            attribute=what[1],
            passes=passes,
            items=items,
            readers=readers,
        )

    def skip(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        known = self.fetchers.get(args[0])
        return known is not None and known.over


def install(session: Session) -> Undo:
    """Watch the fetches that happen in this process (worker processes change copies of their own)."""
    probe = _Probe(session)
    session.at_end.append(probe.settle)
    return observe(
        session.recorder, _MapDatasetFetcher, "fetch", before=probe.before, after=probe.after, skip=probe.skip
    )
