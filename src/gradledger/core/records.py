"""Append-only records in one file: a JSON line each, chained by hash, whole or absent.  Standard library only.

A line holds its number, its time, the hash of the line before it, its body and a digest of each field of the body, all
under a hash of its own.  So an edit is found where it was made: which line, and which field of it.  What no chain can
find is a file that was forged as a whole, every hash computed anew; for that somebody must have kept the `head` hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradledger.core.errors import GradledgerError

FORMAT = "gradledger-records/1"
GENESIS = "0" * 64
_NOT_FINITE = "not_finite"
_KEYS = ("format", "number", "at", "previous", "body", "fields", "sha256")


class RecordError(GradledgerError):
    """Records that cannot be read, or that are not what was written."""

    slug = "record"


@dataclass(frozen=True)
class Record:
    """One line. number: from 1. at: UTC, ISO 8601. previous: hash of the line before it."""

    number: int
    at: str
    previous: str
    body: dict[str, Any]
    sha256: str


@dataclass(frozen=True)
class Fault:
    """Where a file is not what was written.

    file: path. field: dotted, such as ``line 3: body.metrics.loss``. got, wanted: what is there and what should be.
    """

    file: str
    field: str
    got: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.file}: {self.field}: got {self.got}, wanted {self.wanted}"


def canonical(value: Any) -> bytes:
    """JSON that is equal for equal values: sorted keys, no blanks; NaN and infinities as tagged text.

    Raises:
        RecordError: a value that JSON does not know; names its place.
    """
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def plain(value: Any, where: str = "value") -> Any:
    """A value as JSON can hold it; tuples become lists, numbers that are not finite {"not_finite": "nan"}.

    Raises:
        RecordError: something else than None, bool, int, float, str, list, tuple or a mapping with text keys.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_NOT_FINITE: repr(value)}
    if isinstance(value, list | tuple):
        return [plain(one, f"{where}[{at}]") for at, one in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _not_plain(f"the key {key!r}", where)
        return {key: plain(one, f"{where}.{key}") for key, one in value.items()}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a number of numpy, or of whoever acts like it
        return plain(value.item(), where)
    raise _not_plain(f"a {type(value).__module__}.{type(value).__qualname__}", where)


def revive(value: Any) -> Any:
    """The inverse of `plain`, as far as numbers that are not finite go."""
    if isinstance(value, list):
        return [revive(one) for one in value]
    if isinstance(value, dict):
        if set(value) == {_NOT_FINITE} and isinstance(value[_NOT_FINITE], str):
            return float(value[_NOT_FINITE])
        return {key: revive(one) for key, one in value.items()}
    return value


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every field; a list of mappings is entered, any other list is one field."""
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from leaves(one, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple) and value and all(isinstance(one, Mapping) for one in value):
        for at, one in enumerate(value):
            yield from leaves(one, f"{prefix}[{at}]")
    else:
        yield prefix, value


def field_digests(value: Any) -> dict[str, str]:
    """Dotted name -> the first 16 digits of the SHA-256 of each field."""
    return {name: digest(one)[:16] for name, one in leaves(plain(value))}


class Records:
    """One file of records.

    Example:
        >>> import tempfile
        >>> chain = Records(Path(tempfile.mkdtemp()) / "trials.jsonl")
        >>> chain.append({"loss": 0.5}).number
        1
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, body: Mapping[str, Any], *, at: str | None = None) -> Record:
        """One more record, on disk when this returns. A line that a dying process left half written is cut off.

        Raises:
            RecordError: the body holds what JSON does not know, the last line is not what was written, or the disk
                refuses.
        """
        written = plain(body, "body")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                before = self._last(file)
                if before is not None and before.sha256 != _sealed(_line_of(before)):
                    raise RecordError(
                        got=f"a last line (number {before.number}) that was edited",
                        wanted="records as they were written",
                        where=str(self.path),
                        next_step="restore the file, or begin a new folder: nothing is added to an edited chain",
                    )
                line: dict[str, Any] = {
                    "format": FORMAT,
                    "number": before.number + 1 if before else 1,
                    "at": at or now(),
                    "previous": before.sha256 if before else GENESIS,
                    "body": written,
                    "fields": field_digests(written),
                }
                line["sha256"] = _sealed(line)
                file.write(canonical(line) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(
                got=f"{type(error).__name__}: {error.strerror}",
                wanted="to add a record",
                where=str(self.path),
                next_step="free space or allow writing; what was recorded before is whole",
            ) from error
        return Record(line["number"], line["at"], line["previous"], revive(written), line["sha256"])

    def read(self) -> list[Record]:
        """Every record, oldest first; [] where there is no file.

        Raises:
            RecordError: a line is not what was written; names the line and the field.
        """
        found = self.faults()
        if found:
            raise RecordError(
                got="; ".join(f"{one.field}: {one.got}" for one in found[:3]),
                wanted="records as they were written",
                where=str(self.path),
                next_step="restore the file; `gradledger verify` lists every fault of the folder",
            )
        return [_record(line) for _, line in self._lines() if line is not None]

    def head(self) -> str:
        """Hash of the newest record, which vouches for all before it; 64 zeros when there is none."""
        records = self.read()
        return records[-1].sha256 if records else GENESIS

    def faults(self, *, name: str | None = None) -> list[Fault]:
        """Where the file is not what was written: edited fields, lines that are gone, swapped or not JSON.

        A last line without its newline was never finished and counts as absent.
        """
        file = name or self.path.name
        found: list[Fault] = []
        previous, moment = GENESIS, ""
        for at, (text, line) in enumerate(self._lines(), start=1):
            place = f"line {at}"
            if line is None:
                found.append(Fault(file, place, repr(text[:60]), f"a record of format {FORMAT}"))
                previous = ""
                continue
            if line["sha256"] != _sealed(line):
                found += _edited(file, place, line)
            if line["number"] != at:
                found.append(Fault(file, f"{place}: number", str(line["number"]), f"{at}: a line is missing or moved"))
            if previous and line["previous"] != previous:
                what = "the hash of the line before it"
                found.append(Fault(file, f"{place}: previous", f"{str(line['previous'])[:12]}...", what))
            if str(line["at"]) < moment:
                found.append(Fault(file, f"{place}: at", str(line["at"]), f"a time not before {moment}"))
            previous, moment = str(line["sha256"]), str(line["at"])
        return found

    def _lines(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecordError(
                got=f"{type(error).__name__}: {error.strerror}",
                wanted="a file of records",
                where=str(self.path),
                next_step="allow reading it",
            ) from error
        whole, _, _ = data.rpartition(b"\n")
        for piece in whole.split(b"\n") if whole else []:
            text = piece.decode("utf-8", errors="replace")
            yield text, _parsed(text)

    def _last(self, file: Any) -> Record | None:
        """The newest whole record; what a dying process left after it is cut off."""
        file.seek(0)
        data = file.read()
        whole, newline, torn = data.rpartition(b"\n")
        if torn:
            file.truncate(len(whole) + len(newline))
        if not whole:
            return None
        line = _parsed(whole.rpartition(b"\n")[2].decode("utf-8", errors="replace"))
        if line is None:
            raise RecordError(
                got="a last line that is no record",
                wanted=f"records of format {FORMAT}",
                where=str(self.path),
                next_step="restore the file, or begin a new folder",
            )
        return _record(line)


def now() -> str:
    """The time in UTC to a microsecond, ISO 8601; later times sort later."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def write_text(path: Path, text: str) -> None:
    """Write beside, flush, then rename: `path` is the old file or the whole new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    shaped = isinstance(line, dict) and set(line) == set(_KEYS) and line["format"] == FORMAT
    return line if shaped and isinstance(line["body"], dict) and isinstance(line["fields"], dict) else None


def _record(line: Mapping[str, Any]) -> Record:
    return Record(line["number"], line["at"], line["previous"], revive(line["body"]), line["sha256"])


def _line_of(record: Record) -> dict[str, Any]:
    body = plain(record.body)
    return {
        "format": FORMAT,
        "number": record.number,
        "at": record.at,
        "previous": record.previous,
        "body": body,
        "fields": field_digests(body),
    }


def _sealed(line: Mapping[str, Any]) -> str:
    return digest({key: value for key, value in line.items() if key != "sha256"})


def _edited(file: str, place: str, line: Mapping[str, Any]) -> list[Fault]:
    """The fields of a line that were edited; the line itself where none can be told."""
    there, wanted = field_digests(line["body"]), line["fields"]
    values = dict(leaves(line["body"]))
    found = []
    for name in sorted({*there, *wanted}):
        if there.get(name) != wanted.get(name):
            got = repr(values[name]) if name in values else "nothing"
            told = f"the value of digest {wanted[name]}" if name in wanted else "no such field"
            found.append(Fault(file, f"{place}: body.{name}", got[:80], told))
    if not found:
        found.append(Fault(file, f"{place}: number, at, previous or sha256", "an edited line", "the line as written"))
    return found


def _not_plain(got: str, where: str) -> RecordError:
    return RecordError(
        got=got,
        wanted="None, bool, int, float, str, or lists and mappings of these",
        where=where,
        next_step="convert it: float(x), x.tolist(); arrays of predictions go beside the metrics, see Outcome",
    )
