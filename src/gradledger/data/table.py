"""Files of named arrays, read whole or refused: npz, npy, csv, parquet, safetensors.

Every array has the samples along its first axis. What a file says of units, frames and axes comes along: the metadata
of safetensors and parquet, and a sidecar `NAME.declared.json` for any form, both as {"pose.unit": "m"}.
"""

from __future__ import annotations

import csv
import difflib
import fnmatch
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data._needs import needs
from gradledger.data.errors import DataError
from gradledger.data.schema import Declared

FORMS = (".npz", ".npy", ".csv", ".parquet", ".safetensors")


@dataclass(frozen=True)
class Table:
    """Arrays by name, and what the file declares about them."""

    path: Path
    arrays: dict[str, NDArray[Any]]
    declared: dict[str, Declared]

    def column(self, name: str, option: str) -> NDArray[Any]:
        """One array.

        Raises:
            DataError: there is none of that name; the text lists those that are there.
        """
        if name not in self.arrays:
            near = difflib.get_close_matches(name, self.arrays, 1)
            raise DataError(
                got=repr(name),
                wanted=f"one of {_some(list(self.arrays))}" if self.arrays else "a file with columns",
                where=f"{option} of {self.path}",
                next_step=f"name a column of the file{f', such as {near[0]}' if near else ''}",
            )
        return self.arrays[name]

    def numbers(self, name: str, option: str) -> NDArray[Any]:
        """One array, of numbers.

        Raises:
            DataError: there is none of that name, or it holds something else.
        """
        array = self.column(name, option)
        if array.dtype.kind not in "biuf":
            shown = f", such as {str(array.reshape(-1)[0])!r}" if array.size else ""
            raise DataError(
                got=f"{name!r}, which holds no numbers{shown}",
                wanted="a column of numbers",
                where=f"{option} of {self.path}",
                next_step="name another column, or write it as numbers",
            )
        return array

    def matching(self, names: list[str], option: str) -> list[str]:
        """The columns meant, in order: a name with * or ? stands for all that fit it.

        Raises:
            DataError: nothing fits; the text lists the columns.
        """
        found: list[str] = []
        for name in names:
            # A column of just that name comes first: names of recorded streams may hold any character.
            fits = [name] if name in self.arrays else fnmatch.filter(self.arrays, name)
            if not fits:
                self.column(name, option)
            found += fits
        return list(dict.fromkeys(found))

    def rows(self) -> int:
        """Samples; all arrays must have as many.

        Raises:
            DataError: they have not.
        """
        sizes = {name: len(array) if array.ndim else -1 for name, array in self.arrays.items()}
        if len(set(sizes.values())) != 1 or -1 in sizes.values():
            raise DataError(
                got=f"rows {sizes}",
                wanted="one number of rows in every array",
                where=str(self.path),
                next_step="write every array with the samples along its first axis",
            )
        return next(iter(sizes.values()))

    def matrix(self, names: list[str], *, leave: set[str] | None = None) -> NDArray[np.float64]:
        """(N, D) of columns side by side; of all that hold numbers, but for those to leave, where none are named.

        names: columns, or patterns such as `joint_*`.

        Raises:
            DataError: a column that is missing or holds text, or none at all.
        """
        taken = self.matching(names, "a column") or [
            name for name, array in self.arrays.items() if name not in (leave or ()) and array.dtype.kind in "biuf"
        ]
        parts = [self.column(name, "a column") for name in taken]
        if not parts or any(part.dtype.kind not in "biuf" for part in parts):
            raise DataError(
                got=f"columns {_some(taken) or 'none'}",
                wanted="columns of numbers",
                where=str(self.path),
                next_step="name columns that hold numbers",
            )
        if not len(parts[0]):
            raise DataError(
                got="no rows", wanted="one row a sample", where=str(self.path), next_step="write the samples into it"
            )
        return np.concatenate([part.reshape(len(part), -1).astype(np.float64) for part in parts], axis=1)

    def titles(self, names: list[str]) -> list[str]:
        """Of the entries of `matrix`: a column of several gives name[0], name[1], ..."""
        found = []
        for name in self.matching(names, "a column"):
            array = self.arrays[name]
            width = array.reshape(len(array), -1).shape[1]
            found += [name] if array.ndim == 1 else [f"{name}[{at}]" for at in range(width)]
        return found


def read(path: Path) -> Table:
    """Read a file.

    Raises:
        DataError: it is missing, empty, truncated, of an unknown form, or holds pickled objects (never loaded).
    """
    if not path.is_file():
        raise _unreadable(path, "no such file", "name a file that exists")
    if path.suffix not in FORMS:
        raise _unreadable(path, f"a file {path.suffix or 'without a suffix'}", f"one of {', '.join(FORMS)}")
    if path.stat().st_size == 0:
        raise _unreadable(path, "an empty file", "write it again: whoever wrote it was stopped before the first byte")
    try:
        arrays, facts = _READERS[path.suffix](path)
    except DataError:
        raise
    except Exception as cause:  # zipfile, zlib, struct, json, pyarrow and safetensors each have errors of their own
        what = f"{type(cause).__name__}: {cause}"
        raise _unreadable(path, what, "write it again: it is truncated, damaged or of another form") from cause
    return Table(path, arrays, _declared({**facts, **_sidecar(path)}))


def _some(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _unreadable(path: Path, got: str, next_step: str) -> DataError:
    return DataError(got=got, wanted="a whole file of named arrays", where=str(path), next_step=next_step)


def _npz(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise _unreadable(path, f"a checksum that does not fit in {damaged}", "write it again: bytes were changed")
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}, {}


def _npy(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    return {path.stem: np.load(path, allow_pickle=False)}, {}


def _csv(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        text = file.read()
    if not text.endswith("\n"):
        raise _unreadable(path, "a last line without its end", "write it again: it was cut off")
    rows = list(csv.reader(io.StringIO(text), strict=True))
    if not rows or len(set(rows[0])) != len(rows[0]) or "" in rows[0]:
        raise _unreadable(path, f"the header {rows[:1]}", "give every column a name of its own in the first line")
    ragged = [(at, len(row)) for at, row in enumerate(rows[1:], start=2) if len(row) != len(rows[0])]
    if ragged:
        got = f"line {ragged[0][0]} with {ragged[0][1]} of {len(rows[0])} columns ({len(ragged)} such lines)"
        raise _unreadable(path, got, "write it again: a line was cut off or holds a comma too many")
    return {name: _column([row[at] for row in rows[1:]]) for at, name in enumerate(rows[0])}, {}


def _column(words: list[str]) -> NDArray[Any]:
    """Whole numbers, else float64 with "" as NaN, else text as it stands."""
    for kind in (np.int64, np.float64):
        try:
            return np.array([word if word else "nan" for word in words], dtype="U").astype(kind)
        except ValueError:
            continue
    return np.array(words, dtype="U")


def _parquet(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    parquet = needs("pyarrow.parquet", purpose="parquet files")
    table = parquet.ParquetFile(path, page_checksum_verification=True).read()
    arrays = {name: from_arrow(table.column(name), f"{path} column {name}") for name in table.column_names}
    facts = {key.decode(): value.decode("utf-8", "replace") for key, value in (table.schema.metadata or {}).items()}
    return arrays, facts


def from_arrow(column: Any, where: str) -> NDArray[Any]:
    """A column as an array; lists of one length become further axes, text stays text.

    Raises:
        DataError: lists of different lengths, or null among whole numbers or in lists.
    """
    types = needs("pyarrow.types", purpose="parquet files")
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if hasattr(array, "storage"):
        array = array.storage
    shape: list[int] = []
    while types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        if array.null_count:
            raise _nulls(where, array.null_count)
        sizes = set(array.value_lengths().to_pylist())
        if len(sizes) > 1:
            raise DataError(
                got=f"lists of {min(sizes)} to {max(sizes)} entries",
                wanted="lists of one length",
                where=where,
                next_step="pad them and store a mask, or one row an entry",
            )
        size = sizes.pop() if sizes else getattr(array.type, "list_size", 0)
        array, shape = array.flatten(), [*shape, size]
    if array.null_count and not types.is_floating(array.type):
        raise _nulls(where, array.null_count)
    if types.is_string(array.type) or types.is_large_string(array.type):
        flat = np.array(array.to_pylist(), dtype="U")
    else:
        flat = np.asarray(array.to_numpy(zero_copy_only=False))
    return flat.reshape(len(column), *shape)


def _nulls(where: str, count: int) -> DataError:
    return DataError(
        got=f"{count} nulls",
        wanted="a value in every row",
        where=where,
        next_step="fill them, or store a float column where NaN stands for missing",
    )


def _safetensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    safetensors = needs("safetensors", purpose="safetensors files")
    with safetensors.safe_open(str(path), framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


_READERS = {".npz": _npz, ".npy": _npy, ".csv": _csv, ".parquet": _parquet, ".safetensors": _safetensors}


def _sidecar(path: Path) -> dict[str, str]:
    beside = path.with_name(path.name + ".declared.json")
    if not beside.is_file():
        return {}
    try:
        facts = json.loads(beside.read_text(encoding="utf-8"))
        return {str(name): str(value) for name, value in facts.items()}
    except (OSError, ValueError, AttributeError) as cause:
        raise _unreadable(
            beside, f"{type(cause).__name__}: {cause}", 'write a JSON object such as {"pose.unit": "m"}'
        ) from cause


def _declared(facts: Mapping[str, str]) -> dict[str, Declared]:
    found: dict[str, dict[str, str]] = {}
    for key, value in facts.items():
        name, _, what = key.rpartition(".")
        if name and what in ("unit", "frame", "axes"):
            found.setdefault(name, {})[what] = value
    return {name: Declared(**what) for name, what in found.items()}
