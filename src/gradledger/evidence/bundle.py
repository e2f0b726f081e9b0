"""A folder that another engineer can check: sealed once under one hash, opened labels counted, every edit named."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradledger.core.files import file_digest
from gradledger.core.records import GENESIS, Fault, Records, digest, field_digests, leaves, now, write_text
from gradledger.evidence import _inside, _page
from gradledger.evidence._inside import CHAINS
from gradledger.evidence._openings import Opening as Opening
from gradledger.evidence._openings import open_labels as open_labels
from gradledger.evidence._openings import openings as openings
from gradledger.evidence.errors import BundleError
from gradledger.evidence.record import array_digest, load_arrays

FORMAT = "gradledger-bundle/1"
BUNDLE = "bundle.json"
LARGEST = 64 * 2**20  # bytes of a file whose fields are told one by one; above, the file is vouched for as a whole
SHOWN = 20  # faults of one file


def seal(folder: Path) -> str:
    """Vouch for every file of the folder in `bundle.json`; returns the hash that vouches for all of it.

    Keep that hash elsewhere (in a paper, a ticket, a commit): with it, `verify` also finds a folder that was forged as
    a whole.

    Raises:
        BundleError: the folder does not hold together as it is; names file and field.
    """
    for name in _links(folder)[:1]:
        raise BundleError(
            got=f"a link, {name}",
            wanted="files",
            where=str(folder),
            next_step="copy what it points at: a bundle stands alone",
        )
    found = _inside.faults(folder)
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
    links, there_now = _links(folder), _names(folder)
    why = "a link: what it points at can change without the folder"
    found += [Fault(name, "file", why, "a file") for name in links]
    for name, vouched in document["files"].items():
        if name in links:
            continue
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
    return _once([*_inside.faults(folder), *found])


def _written(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def vouch(path: Path) -> dict[str, Any]:
    """SHA-256 and bytes of a file, and a digest of each field that can be told apart in it."""
    return {"sha256": file_digest(path), "bytes": path.stat().st_size, "fields": fields_of(path)}


def fields_of(path: Path) -> dict[str, str]:
    """Field -> digest: keys of JSON and TOML, those of each record of a chain, arrays of npz, columns of CSV, cells of
    a report, lines of text; {} for anything else."""
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
            case ".jsonl":
                return {
                    f"line {at}: {name}": value
                    for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
                    for name, value in _of_record(json.loads(line)).items()
                }
            case ".html" | ".htm":
                page = path.read_text(encoding="utf-8")
                return {name: digest(text)[:16] for name, text in _page.cells(page).items()}
            case ".md" | ".txt":
                lines = path.read_text(encoding="utf-8").splitlines()
                return {f"line {at}": digest(line)[:16] for at, line in enumerate(lines, start=1)}
    except Exception:  # not what its name says: it is vouched for as a whole
        return {}
    return {}


def _of_record(line: dict[str, Any]) -> dict[str, str]:
    """Fields of a record but for those that follow from the others: its hash, its digests, the hash before it."""
    return field_digests({key: value for key, value in line.items() if key not in ("fields", "previous", "sha256")})


def file_faults(path: Path, vouched: dict[str, Any], *, name: str) -> list[Fault]:
    """Which fields of a file are not those that were vouched for."""
    actual = file_digest(path)
    if actual == vouched["sha256"]:
        return []
    there, wanted = fields_of(path), vouched.get("fields", {})
    changed = [key for key in sorted({*there, *wanted}) if there.get(key) != wanted.get(key)]
    if not there or not wanted or not changed:
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


def _names(folder: Path) -> list[str]:
    """Files of the folder by name, but for `bundle.json`, links and hidden ones."""
    return sorted(name for name, path in _walk(folder) if path.is_file() and not path.is_symlink() and name != BUNDLE)


def _links(folder: Path) -> list[str]:
    """Links in the folder by name, hidden ones left out."""
    return sorted(name for name, path in _walk(folder) if path.is_symlink())


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not any(part.startswith(".") for part in Path(name).parts):
            yield name, path


def _once(faults: list[Fault]) -> list[Fault]:
    """Each file and field once, the first account of it."""
    seen: dict[tuple[str, str], Fault] = {}
    for one in faults:
        seen.setdefault((one.file, one.field), one)
    return list(seen.values())
