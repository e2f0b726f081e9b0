"""The run folder: what lies where, tables that grow by whole rows, documents that are whole or absent."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradledger.core.errors import GradledgerError, UsageError

CONFIG, ENVIRONMENT, RECORD = "config.json", "environment.json", "record.json"
METRICS, EPISODES = "metrics.csv", "episodes.csv"
TABLES = (METRICS, EPISODES)
CHECKPOINTS = "checkpoints"
_CHECKPOINT = re.compile(r"step-\d+(\.old)?")  # not: .tmp, half of one


class FolderError(GradledgerError):
    """Something in the run folder cannot be written, or cannot be read."""

    slug = "folder"


def is_run(out: Path) -> bool:
    """Whether a run lies in this folder, finished or not."""
    return any((out / name).exists() for name in (*TABLES, CONFIG, RECORD, CHECKPOINTS))


def begins_again(out: Path) -> bool:
    """Whether a run started here and was killed before its first checkpoint was whole."""
    names = [path.name for path in (out / CHECKPOINTS).glob("step-*")]
    return (out / CONFIG).exists() and not any(_CHECKPOINT.fullmatch(name) for name in names)


def check_new(out: Path, recipe: str) -> None:
    """Refuse a folder in which a run lies already, or in which none can.

    Raises:
        UsageError: with the command that goes on with that run.
    """
    blocked = next((one for one in (out, *out.parents) if one.exists() and not one.is_dir()), None)
    if blocked is not None:
        raise UsageError(
            got=f"--out {out}, and {blocked} is a file",
            wanted="a folder, which is made if need be",
            where=f"recipes.{recipe}",
            next_step="choose another --out",
        )
    if is_run(out):
        raise UsageError(
            got=f"a folder with a run in it: {out}",
            wanted="a new folder, or a run to resume",
            where=f"recipes.{recipe}",
            next_step=f"choose another --out, or go on with: gradledger run {recipe} --resume {out}",
        )


def append(path: Path, row: Mapping[str, Any]) -> None:
    """One more row of a table; the first brings the header.

    Raises:
        FolderError: the disk is full, or the folder is gone.
    """
    try:
        fresh = not path.exists() or not path.stat().st_size
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)
    except OSError as error:
        raise _not_written(path, error) from error


def rows(path: Path) -> list[dict[str, float]]:
    """A table's rows as numbers; none where there is no table. Empty cells are NaN."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(cell or "nan") for name, cell in row.items()} for row in csv.DictReader(file)]


def sizes(out: Path) -> dict[str, int]:
    """Bytes of each table, all of them safe from a power cut; 0 where there is none. For a checkpoint."""
    return {name: _on_disk(out / name) for name in TABLES}


def cut_back(out: Path, sizes_then: Mapping[str, int]) -> None:
    """Take off the rows that were written after a checkpoint: the resumed run writes them again."""
    for name, size in sizes_then.items():
        if (out / name).exists():
            os.truncate(out / name, size)


def write_json(path: Path, document: Any) -> None:
    """Write beside, then rename: also when the process dies in between, `path` is the old document or the new one.

    Raises:
        FolderError: the disk is full, or the folder is gone.
    """
    partial = path.with_name(f"{path.name}.tmp")
    try:
        partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise _not_written(path, error) from error


def read_config(out: Path) -> dict[str, Any]:
    """config.json of a run; see `read_json`."""
    return read_json(out / CONFIG)


def read_json(path: Path) -> dict[str, Any]:
    """A document of the run folder.

    Raises:
        FolderError: it is not there or is no JSON.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(
            got=f"{type(error).__name__}: {error}",
            wanted="a document that a run left",
            where=str(path),
            next_step="start the run anew in another folder",
        ) from error
    return document


def plain(args: Any) -> dict[str, Any]:
    """The fields of an Args, ready for JSON."""
    return {name: simple(value) for name, value in dataclasses.asdict(args).items()}


def simple(value: Any) -> Any:
    """One value, ready for JSON."""
    return str(value) if isinstance(value, Path) else value


def _on_disk(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def _not_written(path: Path, error: OSError) -> FolderError:
    return FolderError(
        got=f"{type(error).__name__}: {error.strerror}",
        wanted="to write to the run folder",
        where=str(path),
        next_step="free space or allow writing, then go on with --resume: no checkpoint is lost",
    )
