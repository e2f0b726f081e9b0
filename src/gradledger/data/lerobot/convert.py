"""Into LeRobotDataset v3: from a table of frames (npz, csv, parquet, safetensors), or from a folder of version 2.1."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradledger.data import table as files
from gradledger.data.errors import DataError, LeRobotError
from gradledger.data.lerobot import images as pictures
from gradledger.data.lerobot import tables, video
from gradledger.data.lerobot.layout import DEFAULTS, Feature, Info
from gradledger.data.lerobot.writer import Episode, write
from gradledger.data.table import from_arrow


def convert(
    source: Path,
    target: Path,
    *,
    fps: int | None = None,
    episode: str = "episode",
    task: str = "",
    task_column: str = "",
    robot_type: str | None = None,
    videos: Sequence[str] = (),
    images: Sequence[str] = (),
) -> Info:
    """Write `target` from `source`; the source stays as it is.

    Args:
        source: a file of frames with an `episode` column, in the order of time within each episode, or a folder of
            version 2.1 (its videos are decoded and encoded again, the pictures in its tables without loss).
        fps: frames a second; a 2.1 folder knows its own.
        task, task_column: one text for all, or the column that holds it; a 2.1 folder knows its own.
        videos, images: columns (N, H, W, 3) of bytes that become video files (lossy, small), or pictures in the tables
            (PNG, exact). A column of pictures in neither is refused: as numbers it would fill the disk.

    Raises:
        LeRobotError: the source is neither, or lacks what the format wants. DataError: the file cannot be read.
    """
    if source.is_dir():
        if videos or images:
            raise _refused(
                f"videos={list(videos)}, images={list(images)}",
                "no such choice for a folder of version 2.1",
                "leave them out: its info.json says which are which",
                source,
            )
        return _from_v21(source, target, robot_type)
    if fps is None or bool(task) == bool(task_column):
        raise _refused(
            f"fps={fps}, task={task!r}, task_column={task_column!r}",
            "fps, and either one task or a column of tasks",
            "a table does not know them: pass --fps and --task or --task-column",
            source,
        )
    frames = files.read(source)
    frames.rows()
    which = frames.column(episode, "--episode")
    words = frames.column(task_column, "--task-column") if task_column else None
    columns = {name: array for name, array in frames.arrays.items() if name not in (episode, task_column, *DEFAULTS)}
    kinds = dict.fromkeys(videos, "video") | dict.fromkeys(images, "image")
    unknown = [name for name in kinds if name not in columns]
    if unknown or len(kinds) < len(videos) + len(images):
        raise _refused(
            f"videos={list(videos)}, images={list(images)}",
            f"columns of the file, each in one of the two: {', '.join(columns)}",
            "name the columns that hold pictures",
            source,
        )
    features = {name: _feature(name, array, kinds.get(name), source) for name, array in columns.items()}
    order = list(dict.fromkeys(which.tolist()))

    def episodes() -> Iterator[Episode]:
        for value in order:
            at = np.flatnonzero(which == value)
            if np.any(np.diff(at) != 1):
                raise _refused(
                    f"episode {value} in pieces", "its rows together", "sort the table by episode and time", source
                )
            said: Any = task if words is None else [str(word) for word in words[at]]
            yield Episode({name: array[at] for name, array in columns.items()}, said)

    return write(target, episodes(), features, fps=fps, robot_type=robot_type)


def _feature(name: str, array: Any, kind: str | None, source: Path) -> Feature:
    shown = array.ndim == 4 and array.shape[-1] == 3 and array.dtype == np.uint8
    if kind is not None and not shown:
        raise _refused(
            f"column {name} of {array.dtype} {list(array.shape)} as {kind}",
            "uint8 [N, H, W, 3], RGB",
            "convert it where it is recorded: scale floats to bytes, move channels last",
            source,
        )
    if kind is not None:
        return Feature(kind, tuple(array.shape[1:]), ["height", "width", "channels"])
    if shown:
        raise _refused(
            f"column {name} of uint8 {list(array.shape)}, which are pictures",
            "to know how to store them",
            f"pass --videos {name} (small, lossy) or --images {name} (exact)",
            source,
        )
    if array.dtype.kind == "U":
        return Feature("string", (1,))
    if array.dtype.kind not in "biuf":
        raise _refused(f"column {name} of {array.dtype}", "numbers or text", "leave it out", source)
    return Feature(str(array.dtype), tuple(array.shape[1:]) or (1,))


def _from_v21(source: Path, target: Path, robot_type: str | None) -> Info:
    document, problems = tables.read_json(source / "meta" / "info.json", source)
    version = document.get("codebase_version") if isinstance(document, dict) else None
    if problems or version not in ("v2.0", "v2.1"):
        got = "; ".join(problems) or f"codebase_version {version!r}"
        raise _refused(
            got, "a folder of version v2.1", "v3.0 needs no conversion; older ones need theirs first", source
        )
    tasks = {int(one["task_index"]): str(one["task"]) for one in _lines(source / "meta" / "tasks.jsonl")}
    rows = sorted(_lines(source / "meta" / "episodes.jsonl"), key=lambda one: int(one["episode_index"]))
    features = {
        name: Feature(one["dtype"], _shape(one), one.get("names"))
        for name, one in document["features"].items()
        if name not in DEFAULTS
    }

    def episodes() -> Iterator[Episode]:
        for row in rows:
            number, length = int(row["episode_index"]), int(row["length"])
            where = {"episode_chunk": number // int(document["chunks_size"]), "episode_index": number}
            table, wrong = tables.read(source / document["data_path"].format(**where), source)
            if table is None or table.num_rows != length:
                got = "; ".join(wrong) or f"episode {number} with {table.num_rows} rows"
                raise _refused(got, f"{length} rows", "repair the source first", source)
            frames: dict[str, Any] = {}
            for name, one in features.items():
                if one.dtype == "video":
                    path = source / document["video_path"].format(video_key=name, **where)
                    frames[name] = video.read(path, 0.0, length, float(document["fps"]))
                elif one.dtype == "image" and name in table.column_names:
                    frames[name] = _pictures(table.column(name), f"{name} of episode {number} in {source}")
                elif name in table.column_names:
                    frames[name] = from_arrow(table.column(name), f"{name} of episode {number}")
            numbers = from_arrow(table.column("task_index"), "task_index").tolist()
            lost = sorted(set(numbers) - set(tasks))
            if lost:
                raise _refused(
                    f"task_index {lost[0]} in episode {number}", "a task of tasks.jsonl", "name the task", source
                )
            yield Episode(frames, [tasks[one] for one in numbers])

    robot = robot_type if robot_type is not None else document.get("robot_type")
    return write(target, episodes(), features, fps=int(document["fps"]), robot_type=robot)


def _pictures(column: Any, where: str) -> Any:
    """(T, H, W, 3) of a column of pictures."""
    wrong = pictures.wrong_layout(column)
    if wrong is not None:
        raise LeRobotError(got=f"a column that {wrong}", wanted="pictures", where=where, next_step="repair the source")
    return np.stack([pictures.decode(one, where) for one in pictures.held(column)])


def _shape(one: Mapping[str, Any]) -> tuple[int, ...]:
    """Pictures as [H, W, C], whatever order the names give."""
    shape = tuple(int(size) for size in one["shape"])
    names = one.get("names") or [""]
    first = str(names[0]) if isinstance(names, list) else ""
    channels_first = first.startswith("c") or (shape[0] == 3 and shape[-1] != 3)
    if one["dtype"] in ("video", "image") and len(shape) == 3 and channels_first:
        return shape[1:] + shape[:1]
    return shape


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as cause:
        raise _refused(
            f"{type(cause).__name__}: {cause}", "a JSON object a line", "repair the source first", path
        ) from cause


def _refused(got: str, wanted: str, next_step: str, where: Path) -> DataError:
    return LeRobotError(got=got, wanted=wanted, where=f"lerobot.convert of {where}", next_step=next_step)
