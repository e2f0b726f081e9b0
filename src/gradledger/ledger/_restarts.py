"""Modules that begin anew: what one was trained on before it was given another state, and trained on again, is no
longer in it (the next fold of a cross-validation, the next run of a sweep)."""

from __future__ import annotations


class Restarts:
    """By module: how often it began anew."""

    def __init__(self) -> None:
        self.loaded: set[int] = set()
        self.number: dict[int, int] = {}

    def of(self, module: int, *, trains: bool = False) -> int:
        """The number of its present life.  `trains`: it is trained now, which begins one if a state was loaded."""
        if trains and module in self.loaded:
            self.loaded.discard(module)
            self.number[module] = self.number.get(module, 0) + 1
        return self.number.get(module, 0)


__all__ = ["Restarts"]
