"""Test labels are opened once under a plan; each later opening is a numbered entry that says why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradledger.core.records import Records
from gradledger.evidence import lock
from gradledger.evidence.errors import BundleError

OPENINGS = "openings.jsonl"


@dataclass(frozen=True)
class Opening:
    """Test labels were looked at. number: of all; in_version: of those under this version of the plan."""

    number: int
    at: str
    plan: str
    in_version: int
    why: str


def open_labels(folder: Path, *, why: str = "") -> Opening:
    """Write down that test labels are about to be opened. Once for each version of the plan this needs no reason.

    Raises:
        BundleError: there is no registered plan, or the labels were open under it already and no reason is given.
    """
    versions = lock.versions(folder)
    if not versions:
        raise BundleError(
            got="no registered plan",
            wanted="one, before test labels are opened",
            where=str(folder),
            next_step="register the plan: what was seen first cannot be predicted",
        )
    plan = versions[-1].sha256
    before = sum(one.plan == plan for one in openings(folder))
    if before and not why.strip():
        raise BundleError(
            got=f"test labels that were opened {before} times under version {versions[-1].number} of the plan",
            wanted="a reason for each later opening",
            where=str(folder),
            next_step="say why they are opened again; the card will count it",
        )
    body = {"plan": plan, "in_version": before + 1, "why": why.strip()}
    record = Records(folder / OPENINGS).append(body)
    return Opening(record.number, record.at, plan, before + 1, why.strip())


def openings(folder: Path) -> list[Opening]:
    """Every opening of the test labels, oldest first."""
    return [
        Opening(one.number, one.at, one.body["plan"], one.body["in_version"], one.body["why"])
        for one in Records(folder / OPENINGS).read()
    ]
