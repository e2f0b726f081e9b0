"""All that the oracle said in a run, in bounded memory: a part of the `World`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gradledger.core.events import OracleAbstained, OracleExplained
from gradledger.core.site import Site

KEPT = 64  # explained steps of one optimizer: so many of the first and of the latest
REASONS = 64
_ORDER = ("explained", "unexplained", "abstained")


@dataclass(slots=True)
class Book:
    """All that the oracle said, in bounded memory. `tallies`: iterations by the worst said in them."""

    first: dict[int, list[OracleExplained]] = field(default_factory=dict)
    latest: dict[int, list[OracleExplained]] = field(default_factory=dict)
    reasons: Counter[tuple[str, str, Site]] = field(default_factory=Counter)
    tallies: Counter[str] = field(default_factory=Counter)
    _open: tuple[int, str, int] = (-1, "", 0)

    def explained(self, event: OracleExplained) -> None:
        """A consumed gradient was explained, or not."""
        kept = self.first.setdefault(event.optimizer, [])
        if len(kept) < KEPT:
            kept.append(event)
        else:
            latest = self.latest.setdefault(event.optimizer, [])
            latest.append(event)
            del latest[:-KEPT]
        self._count(event.iteration, "explained" if event.fit != "none" else "unexplained", event.weight)

    def abstained(self, event: OracleAbstained) -> None:
        """A step could not be recomputed."""
        key = (event.reason, event.what, event.where)
        if key in self.reasons or len(self.reasons) < REASONS:
            self.reasons[key] += event.weight
        self._count(event.iteration, "abstained", event.weight)

    def _count(self, iteration: int, state: str, weight: int) -> None:
        """An iteration counts for the worst that was said in it."""
        before, worst, counted = self._open
        if before == iteration:
            if _ORDER.index(state) <= _ORDER.index(worst):
                return
            self.tallies[worst] -= counted
        self._open = (iteration, state, weight)
        self.tallies[state] += weight

    def of(self, optimizer: int | None) -> list[OracleExplained]:
        """Explained steps of one optimizer (None: of all)."""
        chosen = list(self.first) if optimizer is None else [optimizer]
        return [e for o in chosen for e in (*self.first.get(o, ()), *self.latest.get(o, ())) if e.fit != "none"]
