"""The lock on a plan: hashed and timed before the first run; later changes are numbered amendments, never edits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradledger.core.records import Fault, Record, Records, digest, leaves
from gradledger.evidence.errors import PlanError
from gradledger.evidence.hypothesis import Plan, parse

LOCK, TRIALS, PLAN, RESULTS = "plan.lock.jsonl", "trials.jsonl", "plan.toml", "results.json"


@dataclass(frozen=True)
class Version:
    """One registered state of the plan. number: 1 is the lock, above that amendments. trials_before: how many trials
    had ended when it was registered: 0 for a prediction in the full sense of the word."""

    number: int
    at: str
    plan: Plan
    text: str
    reason: str
    trials_before: int
    sha256: str


def lock(folder: Path, plan: Path) -> Version:
    """Register the plan of a folder, or confirm that it is the registered one. Call it before every run.

    Args:
        folder: of the run; made if need be. plan: the TOML file.

    Raises:
        PlanError: the plan was edited after it was registered (names the fields), or there are trials already and
            no lock: what is written after the result is no prediction.
    """
    text, parsed = _read(plan)
    chain = Records(folder / LOCK)
    known = versions(folder)
    if known:
        _require_same(known[-1], parsed, plan)
        return known[-1]
    ended = _trials(folder)
    if ended:
        raise PlanError(
            got=f"{ended} trials in {folder} and no registered plan",
            wanted="the plan registered before the first run",
            where=str(plan),
            next_step="run in a new folder: what is written after the result is no prediction",
        )
    return _version(chain.append(_body(parsed, text, "", 0)))


def amend(folder: Path, plan: Path, *, reason: str) -> Version:
    """Register a changed plan as the next numbered version; earlier versions stay, and stay judged.

    Raises:
        PlanError: no reason, no lock, nothing changed, or a hypothesis that was registered is gone.
    """
    text, parsed = _read(plan)
    known = versions(folder)
    if not known:
        raise PlanError(
            got="no registered plan", wanted="one to amend", where=str(folder), next_step="register it: run, or lock"
        )
    if not reason.strip():
        raise PlanError(
            got="no reason", wanted="why the plan changes", where=str(plan), next_step='--reason "what was found"'
        )
    if parsed.sha256 == known[-1].plan.sha256:
        raise PlanError(
            got="a plan that is the registered one",
            wanted="a change",
            where=str(plan),
            next_step="run it: nothing is to be amended",
        )
    gone = {one.id for one in known[-1].plan.hypotheses} - {one.id for one in parsed.hypotheses}
    if gone:
        raise PlanError(
            got=f"a plan without {', '.join(sorted(gone))}",
            wanted="every registered hypothesis kept",
            where=str(plan),
            next_step="keep it, and add what replaces it under a new id: no prediction disappears",
        )
    return _version(Records(folder / LOCK).append(_body(parsed, text, reason.strip(), _trials(folder))))


def versions(folder: Path) -> list[Version]:
    """Every registered version, oldest first; [] before the lock.

    Raises:
        RecordError: the lock was edited.
    """
    return [_version(record) for record in Records(folder / LOCK).read()]


def changed(old: Plan, new: Plan) -> list[str]:
    """Dotted names of what differs between two plans, such as ``hypotheses.H1.predicate.value``."""
    first, second = dict(leaves(old.record())), dict(leaves(new.record()))
    names = sorted({*first, *second})
    return [n for n in names if (n in first) != (n in second) or digest(first.get(n)) != digest(second.get(n))]


def faults(folder: Path) -> list[Fault]:
    """What is wrong with the lock of a folder, and with the copy of the plan that lies beside it."""
    found = Records(folder / LOCK).faults()
    if found:
        return found
    known = versions(folder)
    for one in known:
        if one.plan.sha256 != one.sha256:
            found.append(Fault(LOCK, f"line {one.number}: body.sha256", one.sha256[:12], one.plan.sha256[:12]))
    copy = folder / PLAN
    if not known:
        return [Fault(LOCK, "file", "no registered plan", "one, registered before the first run")]
    if copy.exists():
        try:
            there = parse(copy.read_text(encoding="utf-8"), where=PLAN)
        except (PlanError, UnicodeDecodeError) as error:
            return [*found, Fault(PLAN, "file", str(error), "the registered plan")]
        mine, wanted = dict(leaves(there.record())), dict(leaves(known[-1].plan.record()))
        found += [
            Fault(PLAN, name, repr(mine.get(name, "nothing")), f"{wanted.get(name, 'nothing')!r}, as registered")
            for name in changed(known[-1].plan, there)
        ]
    return found


def _require_same(registered: Version, plan: Plan, where: Path) -> None:
    edited = changed(registered.plan, plan)
    if edited:
        raise PlanError(
            got=f"a plan that was edited since {registered.at}: {', '.join(edited[:8])}",
            wanted=f"version {registered.number} as registered (SHA-256 {registered.sha256[:12]})",
            where=str(where),
            next_step="take the edit back, or register it as an amendment with its reason; another plan, or another "
            "preset of a recipe, wants a folder of its own",
        )


def _read(path: Path) -> tuple[str, Plan]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise PlanError(
            got=f"{type(cause).__name__}: {cause}",
            wanted="a plan, a TOML file",
            where=str(path),
            next_step="check the path; docs/evidence.md shows a plan",
        ) from cause
    return text, parse(text, where=str(path))


def _trials(folder: Path) -> int:
    return sum(one.body.get("event") != "started" for one in Records(folder / TRIALS).read())


def _body(plan: Plan, text: str, reason: str, trials: int) -> dict[str, object]:
    return {"sha256": plan.sha256, "reason": reason, "trials_before": trials, "text": text}


def _version(record: Record) -> Version:
    body = record.body
    plan = parse(body["text"], where=f"{LOCK} line {record.number}")
    return Version(record.number, record.at, plan, body["text"], body["reason"], body["trials_before"], body["sha256"])
