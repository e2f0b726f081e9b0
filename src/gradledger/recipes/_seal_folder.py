"""A folder of real crops: images beside one table, read with every doubt said at once, or written from a recording.

    crops.csv      file,offset_mm,burst,line,time_s,condition,light
    images/*.png   equal size, RGB or grey, 8 bits

`file` and the label are needed, and `burst` or `time_s`: frames of one cap must be known as such. The label's name ends
in its unit, `offset_mm`. A column that is not there is filled: one line, one condition, bursts by gaps in time.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradledger.data import groups
from gradledger.recipes._seal_image import CropError, decode, encode, refused
from gradledger.recipes._seal_physics import PITCH, Recording

TABLE, IMAGES = "crops.csv", "images"
GAP = 5.0  # s of silence that end a burst, where no column names it
MOST = 12  # problems told at once


def read(folder: Path, *, target: str = "offset_mm") -> tuple[Recording, str]:
    """(the crops in the order of the table, the label's unit).

    Args:
        target: the label's column; what follows its last underscore is the unit.

    Raises:
        CropError: all that is wrong, up to twelve problems: a column missing, twice or in another unit, rows of another
            length than the head, labels that are no numbers, bursts without a name, files that are missing, outside of
            the folder, truncated, of another size or mode, one name twice.
    """
    path = folder / TABLE
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise refused(f"{type(error).__name__}: {error}", f"a table {TABLE}", str(folder)) from error
    table, lines, problems = _rows(text)
    heads = list(table[0]) if table else []
    problems += _heads(heads, target) if table else []
    if problems:
        raise refused(_told(problems), f"columns file, {target}, and burst or time_s", str(path))
    labels, told = (_numbers(table, lines, column, problems) for column in (target, "light"))
    times = _numbers(table, lines, "time_s", problems)
    names = [row["file"] for row in table]
    problems += [f"{name!r} is there twice" for name in sorted({one for one in names if names.count(one) > 1})]
    problems += [f"row {at}: burst = ''" for at, row in zip(lines, table, strict=True) if row.get("burst") == ""]
    images: list[NDArray[np.uint8]] = []
    for at, name in zip(lines, names, strict=True):
        try:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise refused(f"{name!r}, which lies outside", "files of this folder", str(folder))
            images.append(decode((folder / name).read_bytes(), where=name))
        except (OSError, ValueError, CropError) as error:
            problems.append(f"row {at}: {error.got if isinstance(error, CropError) else error}")
    sizes = sorted({one.shape for one in images})
    if len(sizes) > 1:
        problems.append(f"crops of {len(sizes)} sizes: {', '.join(f'{w} x {h}' for _, h, w in sizes[:4])}")
    if problems:
        raise refused(_told(problems), "whole crops of one size, each with its label", str(path))
    line = tuple(row.get("line") or "the line" for row in table)
    burst = tuple(row["burst"] for row in table) if "burst" in heads else tuple(groups.bursts(times, GAP, stream=line))
    light = [float(image.mean()) / 255 for image in images] if "light" not in heads else told
    offset = np.array(labels, dtype=np.float32)[:, None]
    condition = tuple(row.get("condition") or "as recorded" for row in table)
    found = Recording(
        tuple(names), np.stack(images), offset, burst, line, condition, tuple(times), tuple(map(float, light))
    )
    return found, target.rpartition("_")[2]


def write(recording: Recording, folder: Path, *, target: str = "offset_mm", pitch: float | None = PITCH) -> None:
    """Write a recording as such a folder. pitch: mm to a pixel, declared in each file; None declares nothing."""
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    heads = ("file", target, "burst", "line", "time_s", "condition", "light")
    columns = (recording.burst, recording.line, recording.time, recording.condition, recording.light)
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        for at, name in enumerate(recording.ids):
            path = f"{IMAGES}/{name}.png"
            (folder / path).write_bytes(encode(recording.images[at], pitch=pitch))
            writer.writerow([path, float(recording.offset[at, 0]), *(column[at] for column in columns)])


def _heads(heads: Sequence[str], target: str) -> list[str]:
    problems = [] if "file" in heads else ["no column 'file'"]
    if target not in heads:
        stem = target.rpartition("_")[0]
        near = [one for one in heads if one.rpartition("_")[0] == stem or one == stem]
        told = f"; {', '.join(map(repr, near))} is in another unit, or in none" if near else ""
        problems.append(f"no column {target!r}{told}")
    if "burst" not in heads and "time_s" not in heads:
        problems.append("neither 'burst' nor 'time_s': frames of one cap cannot be told")
    return problems


def _rows(text: str) -> tuple[list[dict[str, str]], list[int], list[str]]:
    """The rows of a table by column, the line of the file at which each ends, and what is wrong with them."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        found = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        return [], [], [f"line {reader.line_num}: {error}"]
    if len(found) < 2:
        return [], [], ["no rows"]
    heads, rest = found[0][1], found[1:]
    problems = [f"column {name!r} is there twice" for name in sorted({one for one in heads if heads.count(one) > 1})]
    problems += [f"row {at}: {len(row)} cells, {len(heads)} columns" for at, row in rest if len(row) != len(heads)]
    return [dict(zip(heads, row, strict=False)) for _, row in rest], [at for at, _ in rest], problems


def _numbers(
    table: Sequence[Mapping[str, str]], lines: Sequence[int], column: str, problems: list[str]
) -> list[float]:
    """A column as numbers, its places in the table where it is not there; adds what is no number to the problems."""
    if column not in table[0]:
        return [float(at) for at in range(len(table))]
    found = [_number(row[column]) for row in table]
    wrong = [(at, row[column]) for at, row, one in zip(lines, table, found, strict=True) if one is None]
    problems += [f"row {at}: {column} = {cell!r}" for at, cell in wrong]
    return [0.0 if one is None else one for one in found]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _told(problems: Sequence[str]) -> str:
    more = f" and {len(problems) - MOST} more" if len(problems) > MOST else ""
    return "; ".join(problems[:MOST]) + more
