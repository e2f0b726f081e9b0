"""The outcome of an audit: what was found, what was looked at, what could not be."""

from __future__ import annotations

from dataclasses import dataclass

from gradledger.audit.compare import Comparison
from gradledger.audit.oracle import Summary
from gradledger.audit.rule import SEVERITIES, Finding, NotChecked, Severity
from gradledger.audit.story import Story
from gradledger.core.events import RankRun, RunEnded, RunStarted


@dataclass(frozen=True, slots=True)
class Note:
    """A remark about the audit itself (an `allow` comment without reason, ...); never gates."""

    file: str
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that an `allow` comment silenced, and its reason."""

    finding: Finding
    reason: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What watching took: seconds from the first watched moment to the end, the program's own work included; bytes and
    place of the stored facts (0, "" when none)."""

    seconds: float = 0.0
    stored_bytes: int = 0
    stored_at: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """`findings` ordered by consequence; `checked`: printed codes of the rules that judged the run; `ended` is None
    when the run was killed before it could say how it ended; `events`: facts looked at;
    `sampled`: what was left out of a long run, in words; `story`: what pictures are drawn from, when asked for;
    `comparison`: with a good run, when asked for; `cost`: what watching took, when known; `oracle`: how far consumed
    gradients were explained, when it was on; `others`: what ran in other processes that were watched."""

    started: RunStarted | None
    ended: RunEnded | None
    findings: tuple[Finding, ...]
    suppressed: tuple[Suppressed, ...]
    notes: tuple[Note, ...]
    checked: tuple[str, ...]
    not_checked: tuple[NotChecked, ...]
    names: dict[str, str]
    events: int = 0
    sampled: str = ""
    story: Story | None = None
    comparison: Comparison | None = None
    cost: Cost | None = None
    oracle: Summary | None = None
    others: tuple[RankRun, ...] = ()

    @property
    def program(self) -> str:
        """The program as it was given on the command line."""
        return self.started.program if self.started is not None else ""

    @property
    def exit_code(self) -> int | None:
        """Exit code of the program; None when the run was cut off."""
        return self.ended.exit_code if self.ended is not None else None

    def count(self, severity: Severity) -> int:
        """Number of findings of one severity."""
        return sum(f.severity == severity for f in self.findings)

    def reaches(self, level: str) -> bool:
        """Whether some finding is at least as severe as `level` ("error", "warning"; "never": no)."""
        if level == "never":
            return False
        return any(SEVERITIES.index(f.severity) <= SEVERITIES.index(level) for f in self.findings)
