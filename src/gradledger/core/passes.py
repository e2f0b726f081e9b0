"""Reverse passes that this library walks itself, told to whoever watches the program.

A sweep calls the autograd engine once a block, below everything that a watcher of `backward` sees.  So it says when a
pass over a loss begins and ends.  Neither side knows the other: the sweep tells, a watcher listens, and without one
nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol


class Listener(Protocol):
    """Somebody who wants to know."""

    def begins(self, roots: Sequence[Any]) -> None:
        """A reverse pass from these losses begins; gradients in `.grad` are still those of before."""

    def ends(self, error: BaseException | None) -> None:
        """It is over, and its gradients are in `.grad`; `error`: it failed, and they are as they were."""

    def works(self, on: bool) -> None:
        """From now on (or no longer) modules are called by the sweep: their graphs are cut and walked by it."""


_listeners: list[Listener] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Be told from now on; returns what ends it."""
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return stop


def begins(roots: Sequence[Any]) -> None:
    """Tell that a pass begins."""
    for listener in _listeners:
        listener.begins(roots)


def ends(error: BaseException | None = None) -> None:
    """Tell that it is over."""
    for listener in _listeners:
        listener.ends(error)


@contextmanager
def working() -> Iterator[None]:
    """Within: modules are called by a sweep, not by the program."""
    for listener in _listeners:
        listener.works(True)
    try:
        yield
    finally:
        for listener in _listeners:
            listener.works(False)


def anyone() -> bool:
    """Whether anybody listens."""
    return bool(_listeners)
