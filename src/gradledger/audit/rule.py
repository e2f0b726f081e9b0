"""What a rule is, and what it says: `Rule`, `Finding`, `NotChecked`, and the contract of a rule module.

A rule is one module `audit/rules/gNN_name_of_bad_pattern.py`.  Its docstring is its manual page; it defines the
constant `RULE` and the functions of `RuleModule`.  State is whatever `init()` returns: a rule keeps nothing else, and
its state must not grow with the length of the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from gradledger.core.events import Event
from gradledger.core.site import NOWHERE, Site

if TYPE_CHECKING:
    from gradledger.audit.world import World

JSON = None | bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"]

Severity = Literal["error", "warning", "info"]
Confidence = Literal["certain", "likely"]
Family = Literal[
    "gradient lifecycle",
    "target networks",
    "modules",
    "optimizers and schedulers",
    "data",
    "mode",
    "checkpoint",
    "loss conventions",
    "rl",
    "recompute",
    "ranks",
]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # most severe first
FAMILIES: tuple[Family, ...] = get_args(Family)
SECTIONS = ("What it is", "Why it matters", "How it is found", "Near misses", "Fix")  # of a manual page, in this order

_CODE = re.compile(r"(?:GL-)?([A-Z])0*(\d+)", re.IGNORECASE)


def key_of(code: str) -> str:
    """The printed form of a code: "G1", "g01", "GL-G01" -> "GL-G01".

    Raises ValueError when `code` is none of these.
    """
    match = _CODE.fullmatch(code.strip())
    if match is None:
        raise ValueError(f"{code!r} is not a rule code such as GL-G01 or G1")
    return f"GL-{match[1].upper()}{int(match[2]):02d}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Identity of a rule.  `code`: "G1"; `name`: kebab-case, names the bad pattern; `summary`: one sentence;
    `severity`: the usual one (a finding may carry another)."""

    code: str
    name: str
    family: Family
    summary: str
    severity: Severity = "error"

    @property
    def key(self) -> str:
        """The printed and suppressible form, "GL-G01"."""
        return key_of(self.code)


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement.  `code`: of the rule ("G1"); `site`: the line to edit; `related`: the lines that belong to it;
    `message`: why it is wrong, one or two sentences, with the numbers; `fix`: the line to write; `evidence`: the
    numbers; `count`: how often it was seen; `subject`: the thing it is about ("policy.0.weight"); `iteration`: the
    first one at which it held (None: not tied to one).  Findings of one code at one line are merged."""

    code: str
    severity: Severity
    site: Site
    message: str
    fix: str
    related: tuple[Site, ...] = ()
    evidence: Mapping[str, JSON] = field(default_factory=dict)
    count: int = 1
    confidence: Confidence = "certain"
    subject: str = ""
    iteration: int | None = None

    @property
    def key(self) -> str:
        """Printed code, "GL-G01"."""
        return key_of(self.code)

    @property
    def has_line(self) -> bool:
        """Whether a line of the user's program is known."""
        return self.site.file != NOWHERE.file


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A rule that could not judge this run, and why: "no learning-rate scheduler was built"."""

    code: str
    reason: str

    @property
    def key(self) -> str:
        """Printed code, "GL-G01"."""
        return key_of(self.code)


class RuleModule(Protocol):
    """What a module under `audit/rules/` defines.

    Further names are optional.  `not_checked(state, world) -> str | None`: the reason why this run could not be
    judged, or None when it was.  `LISTENS: tuple[type[Event], ...]`: the event classes that `update` looks at; with it
    `update` is called for these only, which keeps a watched run quick.  `NEEDS_DETAIL = True`: it judges by operations
    looked at one by one, so a run in which that was not possible (torch.compile) was not checked.
    """

    RULE: Rule

    def init(self) -> Any: ...

    def update(self, state: Any, event: Event, world: World) -> None: ...

    def finish(self, state: Any, world: World) -> list[Finding]: ...
