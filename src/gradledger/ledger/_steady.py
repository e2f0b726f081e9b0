"""The everyday cycle of a run: its facts are held back until their iteration ends, then told or only counted.

An iteration is told in full when it holds anything else, and the first `KEEP` that are alike; of later ones a sample,
with the number of those left out as its weight (see `Recorder.note`).  What repeats exactly is dozed through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradledger.ledger._doze import Count, Doze, Held, Woken
from gradledger.ledger._thin import KEEP, SHARE

MAX_TOLD = 4096  # signatures remembered
MAX_HELD = 512  # facts held back in one iteration


@dataclass(slots=True)
class _Left:
    """An iteration that was only counted, and may be told yet: the one right before another that is told."""

    iteration: int
    facts: list[Held]
    count: Count


class Steady:
    """`tell`: hands facts on (iteration, facts, weight).  `loud`: this iteration holds a fact of another kind."""

    def __init__(self, tell: Callable[[int, list[Held], int], None]) -> None:
        self.doze = Doze()
        self.held: list[Held] = []
        self.loud = False
        self.counted_only = 0
        self._tell = tell
        self._left: _Left | None = None
        self._counts: dict[tuple[Any, ...], Count] = {}

    @property
    def pending(self) -> bool:
        """Whether something is held back."""
        return bool(self.held) or self._left is not None

    def hold(self, fact: Held, iteration: int) -> None:
        """Hold one fact back."""
        self.held.append(fact)
        if len(self.held) > MAX_HELD:
            self.flush(iteration)

    def flush(self, iteration: int, weight: int = 1) -> None:
        """Tell what is held back, after the iteration before it."""
        left, self._left = self._left, None
        if left is not None:
            if left.count.waiting:
                left.count.waiting -= 1  # told itself after all
            self._tell(left.iteration, left.facts, 1)
        held, self.held = self.held, []
        self._tell(iteration, held, weight)

    def close(self, iteration: int) -> bool:
        """An iteration ends: tell what was held back, or only count it.  Whether the next ones may be dozed through."""
        may_doze = False
        if self.held:
            signature = tuple([fact[2] for fact in self.held])
            count = self._counts.get(signature)
            if count is None:
                count = Count()
                if len(self._counts) < MAX_TOLD:
                    self._counts[signature] = count
            count.seen += 1
            if count.seen <= KEEP or (count.waiting + 1) * SHARE >= count.seen:
                waiting, count.waiting = count.waiting, 0
                self.flush(iteration, 1 + waiting)
            else:
                count.waiting += 1
                self.counted_only += 1
                self._left = _Left(iteration, self.held, count)
                may_doze = not self.loud and self.doze.learn(signature, self.held, count)
                self.held = []
        self.loud = False
        return may_doze

    def dozed(self) -> bool | None:
        """An iteration was dozed through: whether the next one is to be told; None when it was not a known one."""
        count = self.doze.ended()
        if count is None:
            return None
        count.seen += 1
        count.waiting += 1
        self.counted_only += 1
        self._left = None
        return (count.waiting + 1) * SHARE >= count.seen

    def woken(self, woken: Woken, iteration: int) -> None:
        """Take up the open iteration where it is."""
        self.held = woken.open + self.held
        if woken.before and woken.count is not None:
            self._left = _Left(iteration - 1, woken.before, woken.count)
