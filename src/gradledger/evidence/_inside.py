"""What does not hold together in a folder, whatever was sealed: every document judged again from the records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradledger.core.records import Fault, Records, canonical
from gradledger.evidence import _page, compare, lock, model_card, report
from gradledger.evidence._openings import OPENINGS, openings
from gradledger.evidence.judge import judge
from gradledger.evidence.lock import LOCK, RESULTS, TRIALS
from gradledger.evidence.record import Attempt, TrialRecord
from gradledger.evidence.stats import Summary

CHAINS = (LOCK, TRIALS, OPENINGS)
PAGE = "report.html"
SHOWN = 20  # faults of one document


def faults(folder: Path) -> list[Fault]:
    """What does not hold together, whatever was sealed: chains, plan, times, verdicts, card."""
    record, chains = TrialRecord(folder), [*lock.faults(folder), *Records(folder / OPENINGS).faults()]
    chains += record.faults()
    if any(one.file in CHAINS for one in chains):
        return [*chains, *model_card.faults(folder)]
    versions = lock.versions(folder)
    known = {one.sha256: one for one in versions}
    found = chains
    for line in Records(folder / TRIALS).read():
        if line.body.get("event") != "started" or not versions:
            continue
        place, plan = f"line {line.number}", line.body.get("plan", "")
        if plan not in known:
            found.append(Fault(TRIALS, f"{place}: body.plan", str(plan)[:12] or "no plan", "a registered version"))
        elif line.at < known[plan].at:
            found.append(Fault(TRIALS, f"{place}: at", line.at, f"after the plan was registered, {known[plan].at}"))
    found += [
        Fault(OPENINGS, f"line {one.number}: body.plan", one.plan[:12], "a registered version")
        for one in openings(folder)
        if one.plan not in known
    ]
    return [*found, *_results(folder, record), *model_card.faults(folder), *_report(folder)]


def _results(folder: Path, record: TrialRecord) -> list[Fault]:
    """Verdicts and figures of `results.json` against the registered plan and the recorded trials."""
    path = folder / RESULTS
    if not path.is_file():
        return []
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(told, Mapping):
            raise TypeError(f"a {type(told).__name__}")
    except (ValueError, TypeError) as error:
        return [Fault(RESULTS, "hypotheses", f"{type(error).__name__}: {error}", "the verdicts")]
    return [*_verdicts(told, lock.versions(folder), record), *_figures(told, record)]


def _verdicts(told: Mapping[str, Any], versions: Sequence[lock.Version], record: TrialRecord) -> list[Fault]:
    """Judged again."""
    if not versions or not told.get("hypotheses"):
        return []
    try:
        claimed = {one["id"]: one for one in told["hypotheses"]}
    except (KeyError, TypeError) as error:
        return [Fault(RESULTS, "hypotheses", f"{type(error).__name__}: {error}", "the verdicts")]
    found = []
    again = {one.id: one.record() for one in judge(versions[-1].plan, record.measured())}
    for id in [*again, *(id for id in claimed if id not in again)]:
        if id not in again or id not in claimed:
            got = "a hypothesis that is not registered" if id in claimed else "nothing"
            found.append(Fault(RESULTS, f"hypotheses.{id}", got, "the registered hypotheses, each once"))
            continue
        for name, value in again[id].items():
            if name in claimed[id] and canonical(claimed[id][name]) != canonical(value):
                found.append(Fault(RESULTS, f"hypotheses.{id}.{name}", repr(claimed[id][name])[:60], repr(value)[:60]))
    return found


def _figures(told: Mapping[str, Any], record: TrialRecord) -> list[Fault]:
    """Each recorded quantity that is told again: of every trial (`trials`, none left out), of the trial whose weights
    are kept (`model`), by arm (`measured`), and over seeds (`over_seeds`)."""
    latest = record.latest()
    known: dict[tuple[Any, Any], list[Attempt]] = {}
    for one in latest.values():
        known.setdefault((one.trial.arm, one.trial.rng_seed), []).append(one)
    found: list[Fault] = []
    rows = [one for one in _list(told, "trials") if {"arm", "rng_seed", "status"} <= set(one)]
    for at, row in enumerate(rows):
        found += _row(f"trials[{at}]", row, known)
    if rows:
        there = {(row["arm"], row["rng_seed"]) for row in rows}
        missing = [f"arm {arm}, seed {seed}" for arm, seed in known if (arm, seed) not in there]
        found += [Fault(RESULTS, "trials", f"no row of {name}", "every recorded trial") for name in missing[:1]]
    model = told.get("model")
    if isinstance(model, Mapping) and {"arm", "rng_seed"} <= set(model):
        found += _row("model", model, known)
    measured = told.get("measured")
    for arm, figures in measured.items() if isinstance(measured, Mapping) else ():
        own = [one.quantities for key, ones in known.items() if key[0] == arm for one in ones if one.quantities]
        if isinstance(figures, Mapping) and own and not any(_same(figures, one) for one in own):
            found += _differing(f"measured.{arm}", figures, own[-1])
    columns: dict[tuple[Any, Any], Summary | None] = {
        (one.arm, one.quantity): one.summary for one in compare.columns(latest)
    }
    for at, row in enumerate(_list(told, "over_seeds")):
        summary = columns.get((row.get("arm"), row.get("quantity")))
        if summary is not None:
            wanted = {"n": summary.n, "mean": summary.mean, "iqm": summary.iqm}
            found += _differing(
                f"over_seeds[{at}]", row, wanted | {"minimum": summary.minimum, "maximum": summary.maximum}
            )
    return found[:SHOWN]


def _row(place: str, row: Mapping[str, Any], known: Mapping[tuple[Any, Any], Sequence[Attempt]]) -> list[Fault]:
    """A row that tells of a trial; with an amended plan there can be two trials of one arm and seed."""
    ones = known.get((row["arm"], row["rng_seed"]), ())
    if not ones:
        return [Fault(RESULTS, place, f"arm {row['arm']}, seed {row['rng_seed']}", "a recorded trial")]
    wanted = [{**(one.quantities or {}), "status": one.status} for one in ones]
    return [] if any(_same(row, one) for one in wanted) else _differing(place, row, wanted[-1])


def _same(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return not _differing("", row, wanted)


def _differing(place: str, row: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Fault]:
    """Fields of both that differ."""
    return [
        Fault(RESULTS, f"{place}.{name}", repr(row[name])[:60], f"{value!r}"[:60])
        for name, value in wanted.items()
        if name in row and canonical(row[name]) != canonical(value)
    ]


def _list(told: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = told.get(key)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _report(folder: Path) -> list[Fault]:
    """The tables of the page against those that the folder gives now. Pages of another hand are not ours to judge, and
    a table with other columns was written by another version: for these the seal vouches."""
    path = folder / PAGE
    if not path.is_file():
        return []
    try:
        there = _page.tables(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        return [Fault(PAGE, "file", str(error), "text")]
    if not there:
        return []
    found: list[Fault] = []
    write = "what `gradledger report` writes now: it is older than its folder, or was edited"
    tables = _page.tables(report.page(report.tell(folder)))
    found += [Fault(PAGE, title, "a table", f"none: {write}") for title in there if title not in tables]
    for title, wanted in tables.items():
        got = there.get(title)
        if got is None:
            if title in ("Summary", "Hypotheses", "Trials"):
                found.append(Fault(PAGE, title, "no such table", write))
            continue
        if got.heads != wanted.heads:
            continue
        if len(got.rows) != len(wanted.rows):
            found.append(Fault(PAGE, title, f"{len(got.rows)} rows", f"{len(wanted.rows)}: {write}"))
            continue
        for number, (mine, theirs) in enumerate(zip(got.rows, wanted.rows, strict=True), start=1):
            found += [
                Fault(PAGE, f"{title}, row {number}: {head}", a[:60], b[:60])
                for head, a, b in zip(wanted.heads, mine, theirs, strict=False)
                if a != b
            ]
    return found[:SHOWN]
