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
        CropError: all that is wrong, up to twelve problems: a column missing or in another unit, labels that are no
            numbers, files that are missing, truncated, of another size or mode, one name twice.
    """
    path = folder / TABLE
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise refused(f"{type(error).__name__}: {error}", f"a table {TABLE}", str(folder)) from error
    table = list(csv.DictReader(io.StringIO(text)))
    heads = list(table[0]) if table else []
    problems = _heads(heads, target) if table else ["no rows"]
    if problems:
        raise refused("; ".join(problems), f"columns file, {target}, and burst or time_s", str(path))
    labels = [_number(row[target]) for row in table]
    problems += [f"row {at + 2}: {target} = {table[at][target]!r}" for at, one in enumerate(labels) if one is None]
    names = [row["file"] for row in table]
    problems += [f"{name!r} is there twice" for name in sorted({one for one in names if names.count(one) > 1})]
    images: list[NDArray[np.uint8]] = []
    for at, name in enumerate(names):
        try:
            images.append(decode((folder / name).read_bytes(), where=name))
        except (OSError, CropError) as error:
            problems.append(f"row {at + 2}: {error.got if isinstance(error, CropError) else error}")
    sizes = sorted({one.shape for one in images})
    if len(sizes) > 1:
        problems.append(f"crops of {len(sizes)} sizes: {', '.join(f'{w} x {h}' for _, h, w in sizes[:4])}")
    times = _times(table, problems)
    if problems:
        more = f" and {len(problems) - MOST} more" if len(problems) > MOST else ""
        raise refused("; ".join(problems[:MOST]) + more, "whole crops of one size, each with its label", str(path))
    line = tuple(row.get("line") or "the line" for row in table)
    burst = tuple(row["burst"] for row in table) if "burst" in heads else tuple(groups.bursts(times, GAP, stream=line))
    stacked = np.stack(images)
    told = [_number(row.get("light", "")) for row in table]
    light = tuple(float(one.mean()) / 255 if lamp is None else lamp for lamp, one in zip(told, images, strict=True))
    offset = np.array(labels, dtype=np.float32)[:, None]
    condition = tuple(row.get("condition") or "as recorded" for row in table)
    return Recording(tuple(names), stacked, offset, burst, line, condition, times, light), target.rpartition("_")[2]


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


def _times(table: Sequence[Mapping[str, str]], problems: list[str]) -> tuple[float, ...]:
    if "time_s" not in table[0]:
        return tuple(float(at) for at in range(len(table)))
    found = [_number(row["time_s"]) for row in table]
    problems += [f"row {at + 2}: time_s = {table[at]['time_s']!r}" for at, one in enumerate(found) if one is None]
    return tuple(0.0 if one is None else one for one in found)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
