"""Identity of live objects: a weak table with generations.

An id is given once to an object and never again.  `id()` is only a bucket: every look-up checks that the weak
reference stored there still points to the very object asked for, so a reused address starts a new generation.
Nothing is written on the object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
PRUNE_AT = 256  # entries of a table, dead ones included, before the dead are looked for


class Ref(weakref.ref[T]):
    """A weak reference of ours.

    Torch refuses to swap the contents of tensors that anybody refers to weakly.  Ours do not mind, since a swap keeps
    the identity of the objects: they are told apart by this class and not counted (see `probes/modules.py`).
    """

    __slots__ = ()


class WeakTable(Generic[T]):
    """Numbers for objects that can be weakly referenced.

    `prune_at`: the table drops entries of dead objects whenever it has doubled past this size, so a long run with
    many short-lived objects stays bounded by the number of live ones, and is at that bound early.
    """

    def __init__(self, prune_at: int = PRUNE_AT) -> None:
        self._slots: dict[int, tuple[weakref.ref[T], int]] = {}
        self._next = 1
        self._prune_at = prune_at
        self._floor = prune_at

    @property
    def following(self) -> int:
        """The number that the next new object gets."""
        return self._next

    def find(self, obj: T) -> int | None:
        """The number of `obj`, or None when it has none."""
        slot = self._slots.get(id(obj))
        if slot is not None and slot[0]() is obj:
            return slot[1]
        return None

    def number(self, obj: T) -> int:
        """The number of `obj`; a new one when it has none yet."""
        key = id(obj)
        slot = self._slots.get(key)
        if slot is not None and slot[0]() is obj:
            return slot[1]
        return self._give(key, obj)

    def renumber(self, obj: T) -> int:
        """Give `obj` a fresh number: the same object after an in-place write is a new value."""
        return self._give(id(obj), obj)

    def assign(self, obj: T, number: int) -> None:
        """Let `obj` answer to an existing `number` (two handles of one thing)."""
        self._slots[id(obj)] = (Ref(obj), number)

    def _give(self, key: int, obj: T) -> int:
        number = self._next
        self._next += 1
        self._slots[key] = (Ref(obj), number)
        if len(self._slots) > self._prune_at:
            self.prune()
        return number

    def prune(self) -> None:
        """Forget dead objects."""
        self._slots = {k: s for k, s in self._slots.items() if s[0]() is not None}
        self._prune_at = max(self._floor, 2 * len(self._slots))

    def live(self) -> Iterator[tuple[T, int]]:
        """(object, number) of everything alive."""
        for ref, number in list(self._slots.values()):
            obj = ref()
            if obj is not None:
                yield obj, number

    def __len__(self) -> int:
        return len(self._slots)


class FollowedTable(WeakTable[T]):
    """A weak table that can also go back from a number to the live object, and tells when an object died."""

    def __init__(self, on_death: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self._back: dict[int, weakref.ref[T]] = {}
        self._on_death = on_death

    def _give(self, key: int, obj: T) -> int:
        number = super()._give(key, obj)
        back, on_death = self._back, self._on_death

        def gone(_: object) -> None:
            back.pop(number, None)
            if on_death is not None:
                on_death(number)

        back[number] = Ref(obj, gone)
        return number

    def get(self, number: int) -> T | None:
        """The live object with that number, or None."""
        ref = self._back.get(number)
        return None if ref is None else ref()
