"""What every integration does with a report: say it, and fail where that was asked for."""

from __future__ import annotations

import sys
from typing import Literal

from gradledger.core.errors import GradledgerError, UsageError
from gradledger.watch import Watch, render_text

FailOn = Literal["error", "warning", "never"]


class FaultsFound(GradledgerError):
    """The training that just ended has faults of the asked severity; the report was printed before."""

    slug = "faults"


def tell(running: Watch, *, fail_on: FailOn, where: str) -> None:
    """Print the report to standard error when there is anything in it.

    Raises:
        FaultsFound: findings reach `fail_on`.
    """
    report = running.report()
    if not report.findings:
        return
    print(render_text(report), file=sys.stderr, flush=True)
    if fail_on != "never" and report.reaches(fail_on):
        codes = ", ".join(dict.fromkeys(finding.key for finding in report.findings))
        raise FaultsFound(
            got=codes,
            wanted=f"no finding of severity {fail_on} or above",
            where=where,
            next_step="see the report above; fail_on='never' only prints it",
        )


def check(fail_on: str, where: str) -> None:
    """Refuse a severity that there is not."""
    if fail_on not in ("error", "warning", "never"):
        raise UsageError(
            got=f"fail_on={fail_on!r}", wanted="error, warning or never", where=where, next_step="choose one of these"
        )
