"""The base of all events, and the two that open and close a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradledger.core.site import NOWHERE, Frame, Site

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base: order, iteration, and the line of the user's program that caused it.

    `weight`: how many happenings alike it stands for.  In a long run the iterations that repeat are told by sample; an
    event that is told then counts for those left out before it, so that sums of weights are true counts (to 5 %).
    """

    KIND: ClassVar[str] = "event"
    seq: int = 0
    iteration: int = 0
    site: Site = NOWHERE
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """First event.  `program` as given, `argv`, torch version, python version, schema."""

    KIND: ClassVar[str] = "run_started"
    program: str
    argv: tuple[str, ...] = ()
    torch: str = ""
    python: str = ""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """Last event.  `exit_code`; the uncaught exception if any, with the user frames of its traceback (innermost last);
    totals: optimizer steps, backwards, module calls; `failures`: errors inside our own probes (counted, never
    raised)."""

    KIND: ClassVar[str] = "run_ended"
    exit_code: int = 0
    exception: str = ""
    message: str = ""
    frames: tuple[Frame, ...] = ()
    steps: int = 0
    backwards: int = 0
    calls: int = 0
    failures: tuple[str, ...] = ()
    not_watched: tuple[str, ...] = ()
