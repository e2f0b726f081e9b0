"""What `gradledger data` makes of the words of its command line, and of what it has to say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradledger.core.errors import UsageError

if TYPE_CHECKING:
    from gradledger.data.manifest import Manifest
    from gradledger.data.table import Table


def many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def usage(verb: str, got: str, wanted: str, next_step: str) -> UsageError:
    return UsageError(got=got, wanted=wanted, where=f"gradledger data {verb}", next_step=next_step)


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def files(path: Path, forms: tuple[str, ...]) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in forms and file.is_file())
    if not files:
        others = sorted({file.suffix or "no suffix" for file in path.rglob("*") if file.is_file()})
        what = f"a folder of {', '.join(others[:4]) or 'nothing'}" if path.is_dir() else "which is not there"
        raise usage(
            "check",
            f"{path}, {what}",
            f"a file, or a folder with {', '.join(forms)}",
            "name what is to be checked; pictures are checked as an array (docs/data.md shows a folder of them)",
        )
    return files


def grouped(texts: list[str]) -> list[str]:
    """Violations that say the same of many fields as one line: a file with a column a pixel has many columns."""
    fields: dict[str, list[str]] = {}
    for text in texts:
        field, colon, rest = text.partition(": ")
        fields.setdefault(rest if colon else text, []).append(field if colon else "")
    lines = []
    for rest, names in fields.items():
        if len(names) <= 3:
            lines += [f"{name}: {rest}" if name else rest for name in names]
        else:
            lines.append(f"{', '.join(names[:3])} and {len(names) - 3} more: {rest}")
    return lines


def plain(values: list[Any]) -> list[Any]:
    """Empty text and NaN are no value."""
    return [None if value == "" or value != value else value for value in values]


def shares(given: list[str] | None) -> dict[str, float] | None:
    shares: dict[str, float] = {}
    for one in given or []:
        side, equals, number = one.partition("=")
        try:
            shares[side] = float(number)
        except ValueError:
            equals = ""
        if not equals or not side:
            raise usage("split", f"--share {one}", "SIDE=SHARE", "for example --share train=0.8")
    return shares or None


def pins(given: list[str] | None, rows: Table) -> dict[tuple[str, Any], str]:
    pins: dict[tuple[str, Any], str] = {}
    for one in given or []:
        key, equals, rest = one.partition("=")
        value, colon, side = rest.rpartition(":")
        if not (key and equals and colon and side):
            raise usage("split", f"--pin {one}", "COLUMN=VALUE:SIDE", "for example --pin day=friday:test")
        # The table's own type of value: "3" is the number 3 in a column of numbers.
        known = {str(own): own for own in rows.column(key, "--pin").tolist()}
        pins[key, known.get(value, value)] = side
    return pins


def order(kept: Manifest, rows: Table, id: str) -> list[int]:
    """Where the file has each sample of the split."""
    place = {str(one): at for at, one in enumerate(rows.column(id, "--id").tolist())}
    return [place[one] for one in kept.ids]
