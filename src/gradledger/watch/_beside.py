"""What is handed from one watched process to another: ranks and processes that train by themselves, and who reports."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradledger.audit.engine import Judge
from gradledger.audit.report import Report
from gradledger.audit.rule import Finding
from gradledger.core.errors import GradledgerError
from gradledger.core.events import Backward, Event, RankFinding, RankRun, Step
from gradledger.core.site import NOWHERE
from gradledger.ledger import _gather

if TYPE_CHECKING:
    from gradledger.ledger._recorder import Recorder


def hand_over(recorder: Recorder, report: Report, rank: int) -> None:
    """In a process that does not report: leave in its ledger what was found and what ran."""
    for finding in report.findings:
        _pass_on(recorder, _as_event(finding, rank))
    recorder.emit(RankRun, NOWHERE, **_ran(report, rank, recorder.steps, recorder.backwards))


def take_in(recorder: Recorder, store: Path, ranks: int | None) -> None:
    """In the process that reports: copy what the others have left.

    `ranks`: how many a launcher has started (None: those that this process started, if any).
    """
    for event in _gather.collect(store.parent, store, ranks):
        _pass_on(recorder, event)
    if ranks is None:
        _of_processes(recorder, store.parent)


def _of_processes(recorder: Recorder, folder: Path) -> None:
    """Take in what was found in processes that the program started.  One that was killed did not come to judge itself:
    then its facts are judged here."""
    from gradledger.ledger._store import read

    killed = number = 0
    for path, ended in _gather.processes(folder):
        told: list[RankFinding | RankRun] = []
        judge, steps, backwards = Judge(), 0, 0
        try:
            for event in read(path):
                if isinstance(event, RankFinding | RankRun):
                    told.append(event)
                elif not ended:
                    judge.put(event)
                    steps += event.weight * isinstance(event, Step)
                    backwards += event.weight * isinstance(event, Backward)
        except GradledgerError as error:
            recorder.not_watched[f"process {number + 1}"] = f"its record cannot be read: {error}"
            continue
        number += 1
        if not ended:
            report = judge.finish()
            told = [_as_event(one, 0) for one in report.findings]
            told.append(RankRun(**_ran(report, 0, steps, backwards), cut=True))
        for one in told:
            _pass_on(recorder, replace(one, process=number))
        killed += not ended
    if killed:
        recorder.not_watched["processes that were killed"] = (
            f"{killed} that the program started did not end by themselves: the last second of each is not in its "
            "record; a pool that is left by `with` kills its workers: pool.close() and pool.join() let them end"
        )
    left = len(list(folder.glob(f"process*{_gather.UNWATCHED}")))
    if left:
        recorder.not_watched["processes that train"] = (
            f"{left} more that the program started were not watched, after the first {_gather.PROCESSES}; to watch "
            "one, put its work into `with gradledger.watch.watch():`"
        )


def _ran(report: Report, rank: int, steps: int, backwards: int) -> dict[str, Any]:
    missed = tuple((one.key, one.reason) for one in report.not_checked)
    counts = {"rank": rank, "steps": steps, "backwards": backwards}
    return {**counts, "checked": report.checked, "not_checked": missed}


def _pass_on(recorder: Recorder, event: Event) -> None:
    """Record what another process has recorded."""
    values = {f.name: getattr(event, f.name) for f in fields(event)}
    for name in ("seq", "iteration", "site", "weight"):
        values.pop(name)
    recorder.emit(type(event), event.site, **values)


def _as_event(finding: Finding, rank: int) -> RankFinding:
    return RankFinding(
        site=finding.site,
        rank=rank,
        code=finding.code,
        severity=finding.severity,
        message=finding.message,
        fix=finding.fix,
        related=finding.related,
        subject=finding.subject,
        count=finding.count,
        likely=finding.confidence == "likely",
    )
