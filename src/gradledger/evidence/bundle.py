"""A folder that another engineer can check: sealed once under one hash, opened labels counted, every edit named."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradledger.core.files import file_digest
from gradledger.core.records import GENESIS, Fault, Records, canonical, digest, field_digests, leaves, now, write_text
from gradledger.evidence import lock, model_card
from gradledger.evidence.errors import BundleError
from gradledger.evidence.judge import judge
from gradledger.evidence.lock import LOCK, TRIALS
from gradledger.evidence.record import TrialRecord, array_digest, load_arrays

FORMAT = "gradledger-bundle/1"
BUNDLE, OPENINGS, RESULTS = "bundle.json", "openings.jsonl", "results.json"
CHAINS = (LOCK, TRIALS, OPENINGS)
LARGEST = 64 * 2**20  # bytes of a file whose fields are told one by one; above, the file is vouched for as a whole
SHOWN = 20  # faults of one file


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


def seal(folder: Path) -> str:
    """Vouch for every file of the folder in `bundle.json`; returns the hash that vouches for all of it.

    Keep that hash elsewhere (in a paper, a ticket, a commit): with it, `verify` also finds a folder that was forged as
    a whole.

    Raises:
        BundleError: the folder does not hold together as it is; names file and field.
    """
    found = _inside(folder)
    if found:
        raise BundleError(
            got="; ".join(map(str, found[:3])),
            wanted="a folder that holds together",
            where=str(folder),
            next_step="mend it first: a seal on an edited record vouches for nothing",
        )
    document: dict[str, Any] = {
        "format": FORMAT,
        "at": now(),
        "heads": {name: Records(folder / name).head() for name in CHAINS},
        "files": {name: vouch(folder / name) for name in _names(folder)},
    }
    document["fields"] = field_digests(document)
    document["self"] = digest(document)
    write_text(folder / BUNDLE, _written(document))
    return str(document["self"])


def verify(folder: Path, *, expect: str = "") -> list[Fault]:
    """Everything in the folder that is not what was sealed, or that does not hold together; [] when all is well.

    Args:
        expect: the hash that `seal` returned, or its first digits (8 or more), where it was kept elsewhere.

    Raises:
        BundleError: the folder has no `bundle.json`, or `expect` is too short to mean anything.
    """
    path = folder / BUNDLE
    if not path.is_file():
        raise BundleError(
            got=f"no {BUNDLE}", wanted="a sealed folder", where=str(folder), next_step="seal it, or check the path"
        )
    if expect and len(expect) < 8:
        raise BundleError(
            got=f"expect={expect!r}", wanted="8 digits or more", where="verify", next_step="give the whole hash"
        )
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        same = text == _written(document)
        if document["format"] != FORMAT or not isinstance(document["files"], dict):
            raise ValueError(f"it is not of format {FORMAT}")
        stated, fields = document.pop("self"), document["fields"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [Fault(BUNDLE, "file", f"{type(error).__name__}: {error}", f"a file of format {FORMAT}")]
    found: list[Fault] = []
    if not same:
        found.append(Fault(BUNDLE, "layout", "the same values written otherwise", "the file as sealed"))
    if digest(document) != stated:
        there = field_digests({key: value for key, value in document.items() if key != "fields"})
        names = [name for name in sorted({*there, *fields}) if there.get(name) != fields.get(name)]
        found += [Fault(BUNDLE, name, "an edited field", "what was sealed") for name in names[:SHOWN]]
        found += [] if names else [Fault(BUNDLE, "self", str(stated)[:12], digest(document)[:12])]
    if expect and not str(stated).startswith(expect.lower()):
        found.append(Fault(BUNDLE, "self", str(stated)[:16], f"{expect[:16]}, as you were told"))
    there_now = _names(folder)
    for name, vouched in document["files"].items():
        if name not in there_now:
            found.append(Fault(name, "file", "no file", "the file that was sealed"))
        else:
            found += file_faults(folder / name, vouched, name=name)
    found += [
        Fault(n, "file", "a file that was added", "no such file") for n in there_now if n not in document["files"]
    ]
    for name in CHAINS:
        chain = Records(folder / name)
        if not chain.faults() and chain.head() != document["heads"].get(name, GENESIS):
            found.append(Fault(name, "head", chain.head()[:12], f"{str(document['heads'].get(name))[:12]}, as sealed"))
    return _once([*_inside(folder), *found])


def _written(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def vouch(path: Path) -> dict[str, Any]:
    """SHA-256 and bytes of a file, and a digest of each field that can be told apart in it."""
    return {"sha256": file_digest(path), "bytes": path.stat().st_size, "fields": fields_of(path)}


def fields_of(path: Path) -> dict[str, str]:
    """Field -> digest: keys of JSON and TOML, arrays of npz, columns of CSV, lines of text; {} for anything else."""
    if path.stat().st_size > LARGEST:
        return {}
    try:
        match path.suffix:
            case ".json":
                return field_digests(json.loads(path.read_text(encoding="utf-8")))
            case ".toml":
                return {k: digest(str(v))[:16] for k, v in leaves(tomllib.loads(path.read_text(encoding="utf-8")))}
            case ".npz":
                return {name: array_digest(array)[:16] for name, array in load_arrays(path).items()}
            case ".csv":
                with path.open(newline="", encoding="utf-8") as file:
                    rows = list(csv.reader(file))
                columns = zip(*rows[1:], strict=True) if len(rows) > 1 else [()] * len(rows[0])
                return {f"column {name}": digest(list(c))[:16] for name, c in zip(rows[0], columns, strict=True)}
            case ".md" | ".txt":
                lines = path.read_text(encoding="utf-8").splitlines()
                return {f"line {at}": digest(line)[:16] for at, line in enumerate(lines, start=1)}
    except Exception:  # not what its name says: it is vouched for as a whole
        return {}
    return {}


def file_faults(path: Path, vouched: dict[str, Any], *, name: str) -> list[Fault]:
    """Which fields of a file are not those that were vouched for."""
    actual = file_digest(path)
    if actual == vouched["sha256"]:
        return []
    there, wanted = fields_of(path), vouched.get("fields", {})
    changed = [key for key in sorted({*there, *wanted}) if there.get(key) != wanted.get(key)]
    if not there or not changed:
        return [Fault(name, "file", f"SHA-256 {actual[:12]}", str(vouched["sha256"])[:12])]
    return [
        Fault(
            name,
            key or "whole",
            f"a value of digest {there[key]}" if key in there else "nothing",
            f"digest {wanted[key]}" if key in wanted else "no such field",
        )
        for key in changed[:SHOWN]
    ]


def _inside(folder: Path) -> list[Fault]:
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
    return [*found, *_verdicts(folder, record), *model_card.faults(folder)]


def _verdicts(folder: Path, record: TrialRecord) -> list[Fault]:
    """Verdicts in `results.json` against the registered plan and the recorded trials, judged again."""
    path, versions = folder / RESULTS, lock.versions(folder)
    if not path.is_file() or not versions:
        return []
    try:
        told = json.loads(path.read_text(encoding="utf-8")).get("hypotheses", [])
        claimed = {one["id"]: one for one in told}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [Fault(RESULTS, "hypotheses", f"{type(error).__name__}: {error}", "the verdicts")]
    if not claimed:
        return []
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


def _names(folder: Path) -> list[str]:
    """Files of the folder by name, but for `bundle.json` and hidden ones.

    Raises:
        BundleError: a link: what it points at can change without the folder.
    """
    return sorted(_walk(folder))


def _walk(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith(".") for part in Path(name).parts):
            continue
        if path.is_symlink():
            raise BundleError(
                got=f"a link, {name}",
                wanted="files",
                where=str(folder),
                next_step="copy what it points at: a bundle stands alone",
            )
        if path.is_file() and name != BUNDLE:
            yield name


def _once(faults: list[Fault]) -> list[Fault]:
    """Each file and field once, the first account of it."""
    seen: dict[tuple[str, str], Fault] = {}
    for one in faults:
        seen.setdefault((one.file, one.field), one)
    return list(seen.values())
