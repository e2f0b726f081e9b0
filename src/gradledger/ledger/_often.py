"""How often something repeated is worth telling: the first few times, then at every power of two."""

from __future__ import annotations

from collections.abc import Hashable

LIMIT = 4096


class Often:
    """Counts per key; at most `LIMIT` keys are told apart, so a key that is always new does not grow for ever."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}

    def worth_telling(self, key: Hashable, first: int = 3) -> bool:
        """Count one more of `key`; whether it is among the `first`, or its number is a power of two."""
        if key not in self._counts and len(self._counts) >= LIMIT:
            key = None
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return count <= first or count & (count - 1) == 0
