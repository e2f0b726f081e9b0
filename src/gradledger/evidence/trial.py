"""A trial: a pure function of (config, rng_seed) -> metrics, told apart by an id, able to say how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.core.records import digest, plain
from gradledger.evidence.errors import TrialError


@dataclass(frozen=True)
class Trial:
    """What is run: an arm's name, its settings, a random seed."""

    arm: str
    config: Mapping[str, Any]
    rng_seed: int

    @property
    def id(self) -> str:
        """16 hex digits, of settings and seed alone: equal work has one id, whatever the arm is called."""
        return digest({"config": self.config, "rng_seed": self.rng_seed})[:16]


@dataclass(frozen=True)
class Outcome:
    """What a trial gives back. quantities: numbers, None, booleans, names of objects, trajectories (lists).
    predictions: arrays by name, kept in a file beside, so that metrics can be computed again."""

    quantities: Mapping[str, Any]
    predictions: Mapping[str, NDArray[Any]] = field(default_factory=dict)


Experiment = Callable[[Mapping[str, Any], int], "Mapping[str, Any] | Outcome"]


def outcome(given: Any, *, where: str) -> Outcome:
    """What an experiment returned, checked.

    Raises:
        TrialError: it is neither a mapping nor an Outcome, or holds arrays of objects.
        RecordError: a quantity cannot be recorded; names it.
    """
    if isinstance(given, Mapping):
        given = Outcome(given)
    if not isinstance(given, Outcome) or not given.quantities:
        raise TrialError(
            got=f"a {type(given).__name__}{' without quantities' if isinstance(given, Outcome) else ''}",
            wanted="a mapping of quantities, or an Outcome with some",
            where=where,
            next_step='end the function with: return {"val_mse": val_mse}',
        )
    quantities = plain(given.quantities, "quantities")
    arrays = {name: np.asarray(value) for name, value in given.predictions.items()}
    for name, value in arrays.items():
        if value.dtype.hasobject:
            raise TrialError(
                got=f"an array of dtype {value.dtype}",
                wanted="numbers, booleans or text of a fixed width",
                where=f"{where}: predictions.{name}",
                next_step="convert it, for example np.asarray(ids, dtype='U')",
            )
    return Outcome(quantities, arrays)


# ----------------------------------------------------------------------------------------------------------- progress


@dataclass(frozen=True)
class Progress:
    """How far a trial is: `step` of `of`; figures: such as loss."""

    step: int
    of: int
    figures: Mapping[str, float]


_listener: ContextVar[Callable[[Progress], None] | None] = ContextVar("listener", default=None)


def tell(step: int, of: int, **figures: float) -> None:
    """Say how far the running trial is; without effect where nobody listens.

    Example:
        >>> tell(10, 100, loss=0.25)
    """
    listener = _listener.get()
    if listener is not None:
        listener(Progress(step, of, {name: float(value) for name, value in figures.items()}))


def listened() -> bool:
    """Whether somebody listens to `tell`: for programs to which the figures themselves cost something."""
    return _listener.get() is not None


@contextmanager
def listening(listener: Callable[[Progress], None]) -> Iterator[None]:
    """Within: `tell` goes to this listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def seconds_left(progress: Progress, elapsed: float) -> float | None:
    """Seconds to the end at the rate so far; None before the first step."""
    return elapsed * (progress.of - progress.step) / progress.step if progress.step > 0 else None


class Names:
    """Names of objects, for quantities about identity: one object one name, two objects two names.

    An id is used again once its object is gone; so this holds every object that it has named.

    Example:
        >>> names, a, b = Names(), [], []
        >>> (names(a), names(b), names(a))
        ('object-1', 'object-2', 'object-1')
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, Any]] = {}

    def __call__(self, thing: Any) -> str:
        """The name of an object."""
        return self._known.setdefault(id(thing), (f"object-{len(self._known) + 1}", thing))[0]
