"""Parts of a report that not every report has: pictures, and the comparison with a good run.

What they are made from is loaded, and listens to the run, only when it was asked for.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradledger.audit.engine import Listener
from gradledger.audit.report import Cost, Note, Report
from gradledger.audit.world import World
from gradledger.ledger._runs import LEDGER

if TYPE_CHECKING:
    from gradledger.audit.profile import Profile, Profiler
    from gradledger.audit.story import Storyteller


class Parts:
    """`pictures`: the report is to have them; `like`: the ledger of the good run, or None.

    Raises LedgerError when that ledger cannot be read.
    """

    def __init__(self, *, pictures: bool, like: Path | None) -> None:
        self.listeners: list[Listener] = []
        self._teller: Storyteller | None = None
        self._profiler: Profiler | None = None
        self._good: Profile | None = None
        self._like = like
        self._began: float | None = None
        if pictures:
            from gradledger.audit.story import Storyteller

            self._teller = Storyteller()
            self.listeners.append(self._teller.put)
        if like is not None:
            from gradledger.audit.compare import profile_of
            from gradledger.audit.profile import Profiler
            from gradledger.ledger._store import read

            self._good = profile_of(read(like))
            self._profiler = Profiler()
            self.listeners.append(self._profiler.put)

    def begin(self) -> None:
        """The watch begins."""
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Since it began; 0 when it did not."""
        return time.monotonic() - self._began if self._began is not None else 0.0

    def complete(self, report: Report, world: World, cost: Cost | None = None) -> Report:
        """The report with its further parts.  A part that cannot be made is told, and does not cost the others."""
        report = replace(report, cost=cost)
        for make in (self._pictures, self._compared):
            try:
                report = make(report, world)
            except Exception as error:
                note = Note("", 0, f"a part of the report could not be made: {type(error).__name__}: {error}")
                report = replace(report, notes=(*report.notes, note))
        return report

    def _pictures(self, report: Report, world: World) -> Report:
        return report if self._teller is None else replace(report, story=self._teller.story(world))

    def _compared(self, report: Report, world: World) -> Report:
        if self._profiler is None or self._good is None or self._like is None:
            return report
        from gradledger.audit.compare import compare

        name = str(self._like.parent if self._like.name == LEDGER else self._like)
        return replace(report, comparison=compare(self._good, self._profiler.profile(world), name=name))
