"""What fetching items does to what the data set keeps for them; the first batches of the first passes are looked at."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Dataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from gradledger.core.events import StoredDataChanged
from gradledger.ledger import _datasets, _site
from gradledger.ledger._patch import Undo, observe
from gradledger.ledger._session import Session

PASSES = 4
FETCHES = 6  # of one pass
ITEMS = 8  # of one fetch
NEEDED = 2  # passes that changed what is kept


@dataclass
class _Seen:
    """One data set: passes begun, passes that changed what it keeps by (class, attribute), and how many items.
    `filled`: places that held nothing and then something: a cache fills each once, whichever pass comes to it first."""

    passes: int = 0
    filled: set[tuple[str, str, int]] = field(default_factory=set)
    changed: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    items: Counter[tuple[str, str]] = field(default_factory=Counter)
    told: bool = False


@dataclass
class _Fetcher:
    seen: _Seen
    number: int
    fetches: int = 0


def install(session: Session) -> Undo:
    """Watch the fetches that happen in this process (worker processes change copies of their own)."""
    recorder = session.recorder
    sets: dict[int, _Seen] = {}
    fetchers: weakref.WeakKeyDictionary[Any, _Fetcher] = weakref.WeakKeyDictionary()

    def begin(fetcher: Any) -> _Fetcher | None:
        known = fetchers.get(fetcher)
        if known is None:
            if not isinstance(fetcher.dataset, Dataset):
                return None
            base = list(_datasets.layers(fetcher.dataset, []))[-1][0]
            seen = sets.setdefault(recorder.objects.number(base), _Seen())
            known = fetchers[fetcher] = _Fetcher(seen, seen.passes)
            seen.passes += 1
        known.fetches += 1
        return known if known.number < PASSES and known.fetches <= FETCHES and not known.seen.told else None

    def indices(args: tuple[Any, ...]) -> list[int]:
        given = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
        return [int(i) for i in given[:ITEMS]] if all(type(i) is int for i in given[:ITEMS]) else []

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = begin(args[0])
        return (known, _datasets.kept(args[0].dataset, indices(args))) if known is not None else None

    def after(state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if state is None:
            return
        known, was = state
        if not was:
            return
        now = _datasets.kept(args[0].dataset, indices(args))
        for key in (k for k, digest in was.items() if now.get(k, digest) != digest):
            if _datasets.blank(was[key]) and key not in known.seen.filled:
                known.seen.filled.add(key)
                continue
            known.seen.changed.setdefault(key[:2], set()).add(known.number)
            known.seen.items[key[:2]] += 1
        for place, passes in known.seen.changed.items():
            if len(passes) >= NEEDED and not known.seen.told:
                known.seen.told = True
                recorder.emit(
                    StoredDataChanged,
                    _site.here(1),
                    dataset=place[0],
                    attribute=place[1],
                    passes=len(passes),
                    items=known.seen.items[place],
                    readers=_datasets.readers(args[0].dataset, args[0].collate_fn),
                )

    def skip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        known = fetchers.get(args[0])
        return known is not None and (known.fetches >= FETCHES or known.number >= PASSES or known.seen.told)

    return observe(recorder, _MapDatasetFetcher, "fetch", before=before, after=after, skip=skip)
