"""Everything that is wrong with a LeRobotDataset v3 folder, in one list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data._needs import needs
from gradledger.data.errors import DataError, LeRobotError
from gradledger.data.lerobot import images, layout, stats, tables, video
from gradledger.data.lerobot.layout import Feature, Info
from gradledger.data.table import from_arrow

EPISODE_COLUMNS = (
    "episode_index",
    "tasks",
    "length",
    "data/chunk_index",
    "data/file_index",
    "dataset_from_index",
    "dataset_to_index",
)
VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")


@dataclass(frozen=True)
class Meta:
    """The tables of meta/. rows: one mapping an episode."""

    folder: Path
    info: Info
    tasks: list[str]
    rows: list[dict[str, Any]]


def check(folder: Path, *, videos: bool = True) -> list[str]:
    """Every problem of a folder, [] when it keeps the published rules.

    Args:
        videos: also decode every video (minutes for large ones; needs PyAV) and every picture in the data files (needs
            pillow). Without it only their presence is checked.
    """
    meta, problems = read_meta(folder)
    if meta is None:
        return problems
    problems += _ranges(meta)
    totals: dict[str, list[stats.Stats]] = {}
    problems += _data(meta, totals, decode=videos)
    problems += _statistics(meta, totals)
    problems += _videos(meta, decode=videos)
    return problems


def read_meta(folder: Path) -> tuple[Meta | None, list[str]]:
    """(meta, problems); meta is None where nothing further can be read."""
    if not folder.is_dir():
        return None, [f"{folder}: no such folder"]
    document, problems = tables.read_json(folder / layout.INFO, folder)
    if document is None:
        return None, problems
    info, problems = layout.parse(document)
    if info is None:
        return None, problems
    tasks, wrong = _tasks(folder, info)
    rows, more = _rows(folder, info)
    return Meta(folder, info, tasks, rows), [*problems, *wrong, *more]


def _tasks(folder: Path, info: Info) -> tuple[list[str], list[str]]:
    table, problems = tables.read(folder / layout.TASKS, folder)
    if table is None:
        return [], problems
    if "task_index" not in table.column_names:
        return [], [f"{layout.TASKS}: no column task_index"]
    names = tables.task_names(table)
    numbers = table.column("task_index").to_pylist()
    if numbers != list(range(len(numbers))):
        problems.append(f"{layout.TASKS}: task_index is {numbers[:5]}..., but tasks are looked up by position")
    if len(names) != len(numbers) or any(not name for name in names):
        problems.append(f"{layout.TASKS}: {sum(not name for name in names) or len(numbers)} tasks without a text")
    if len(set(names)) != len(names):
        problems.append(f"{layout.TASKS}: a task is there twice")
    if len(numbers) != info.total_tasks:
        problems.append(f"{layout.TASKS}: {len(numbers)} tasks, info.json says {info.total_tasks}")
    return names, problems


def _rows(folder: Path, info: Info) -> tuple[list[dict[str, Any]], list[str]]:
    files = sorted((folder / "meta" / "episodes").glob("chunk-*/file-*.parquet"))
    if not files:
        return [], ["meta/episodes: no file"]
    wanted = [*EPISODE_COLUMNS, *(f"videos/{name}/{what}" for name in info.videos for what in VIDEO_COLUMNS)]
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for path in files:
        table, wrong = tables.read(path, folder)
        problems += wrong
        if table is None:
            continue
        missing = [name for name in wanted if name not in table.column_names]
        if missing:
            problems.append(f"{path.relative_to(folder).as_posix()}: no column {', '.join(missing)}")
            continue
        if any(table.column(name).null_count for name in wanted):
            problems.append(f"{path.relative_to(folder).as_posix()}: empty entries in the columns of an episode")
            continue
        odd = [name for name in wanted if not _right(name, table.schema.field(name).type)]
        if odd:
            kinds = ", ".join(f"{name} ({table.schema.field(name).type})" for name in odd)
            problems.append(f"{path.relative_to(folder).as_posix()}: columns of another type: {kinds}")
            continue
        rows += table.to_pylist()
    return rows, problems


def _right(name: str, kind: Any) -> bool:
    """Whether a column of the episodes has the type that its use asks for."""
    types = needs("pyarrow.types", purpose="LeRobot data sets")
    if name == "tasks":
        return bool((types.is_list(kind) or types.is_large_list(kind)) and types.is_string(kind.value_type))
    if name.endswith("_timestamp"):
        return bool(types.is_floating(kind) or types.is_integer(kind))
    return bool(types.is_integer(kind))


def _ranges(meta: Meta) -> Iterator[str]:
    info, end = meta.info, 0
    if len(meta.rows) != info.total_episodes:
        yield f"meta/episodes: {len(meta.rows)} episodes, info.json says {info.total_episodes}"
    for at, row in enumerate(meta.rows):
        who = f"episode {at}"
        if row["episode_index"] != at:
            yield f"{who}: episode_index is {row['episode_index']}"
        begin, stop, length = row["dataset_from_index"], row["dataset_to_index"], row["length"]
        if stop - begin != length or length < 1:
            yield f"{who}: frames {begin} to {stop} (exclusive) are not its length {length}"
        if begin != end:
            yield f"{who}: begins at frame {begin}, but the one before ends at {end}"
        end = stop
        unknown = [task for task in row["tasks"] if task not in meta.tasks]
        if unknown or not row["tasks"]:
            yield f"{who}: tasks {row['tasks']} are not all in {layout.TASKS}"
    total = sum(row["length"] for row in meta.rows)
    if total != info.total_frames:
        yield f"meta/episodes: lengths sum to {total} frames, info.json says {info.total_frames}"


def _data(meta: Meta, totals: dict[str, list[stats.Stats]], *, decode: bool) -> Iterator[str]:
    files: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in meta.rows:
        files.setdefault((row["data/chunk_index"], row["data/file_index"]), []).append(row)
    for (chunk, file), rows in files.items():
        path = meta.folder / meta.info.data_path.format(chunk_index=chunk, file_index=file)
        name = path.relative_to(meta.folder).as_posix()
        table, problems = tables.read(path, meta.folder)
        yield from problems
        if table is None:
            continue
        stored = {key: one for key, one in meta.info.features.items() if one.stored}
        for key in sorted(set(table.column_names) ^ set(stored)):
            yield f"{name}: column {key} " + ("is missing" if key in stored else "is no feature of info.json")
        promised = sum(row["length"] for row in rows)
        if table.num_rows != promised:
            yield f"{name}: {table.num_rows} rows, its episodes promise {promised}"
            continue
        columns: dict[str, NDArray[Any]] = {}
        for key in stored:
            if key in table.column_names:
                if stored[key].dtype == "image":
                    yield from _pictures(f"{name}: {key}", stored[key], table.column(key), meta.info.fps, decode)
                    continue
                wrong, array = _column(name, key, stored[key], table.column(key))
                yield from wrong
                if array is not None:
                    columns[key] = array
        begin = 0
        for row in rows:
            part = {key: array[begin : begin + row["length"]] for key, array in columns.items()}
            yield from _episode(meta, row, part, totals)
            begin += row["length"]


def _pictures(who: str, one: Feature, column: Any, fps: float, decode: bool) -> Iterator[str]:
    wrong = images.wrong_layout(column)
    if wrong is not None:
        yield f"{who} {wrong}"
    elif decode:
        yield from (f"{who}: {text}" for text in images.problems(images.held(column), one.shape, fps))


def _column(name: str, key: str, one: Feature, column: Any) -> tuple[list[str], NDArray[Any] | None]:
    try:
        array = from_arrow(column, key)
    except DataError as error:
        return [f"{name}: {key} has {error.got}, not {error.wanted}"], None
    kind = "U" if one.dtype == "string" else one.dtype
    right = array.dtype.kind == "U" if kind == "U" else str(array.dtype) == kind
    shape = () if one.shape == (1,) and array.ndim == 1 else one.shape
    problems = []
    if not right:
        problems.append(f"{name}: {key} is {array.dtype}, its feature says {one.dtype}")
    if array.shape[1:] != shape:
        problems.append(f"{name}: {key} has shape {list(array.shape[1:]) or [1]}, its feature says {list(one.shape)}")
    return problems, None if problems else array


def _episode(
    meta: Meta, row: dict[str, Any], part: dict[str, NDArray[Any]], totals: dict[str, list[stats.Stats]]
) -> Iterator[str]:
    who, length = f"episode {row['episode_index']}", row["length"]
    exact = {
        "frame_index": np.arange(length),
        "episode_index": np.full(length, row["episode_index"]),
        "index": np.arange(row["dataset_from_index"], row["dataset_from_index"] + length),
    }
    for key, wanted in exact.items():
        if key in part and not np.array_equal(part[key], wanted):
            at = int(np.argmax(part[key] != wanted))
            yield f"{who}: {key} is {part[key][at]} in frame {at}, not {wanted[at]}"
    if "timestamp" in part:
        # From whole counts: a sum of steps would drift.
        off = np.abs(part["timestamp"].astype(np.float64) - np.arange(length) / meta.info.fps)
        # float32 cannot hold a late time to a tenth of a millisecond.
        slack = layout.TOLERANCE_S + np.finfo(np.float32).eps * length / meta.info.fps
        if not np.all(off <= slack):
            at = int(np.argmax(~(off <= slack)))
            yield f"{who}: frame {at} is at {part['timestamp'][at]:.6f} s, not {at / meta.info.fps:.6f} s"
    if "task_index" in part:
        numbers = part["task_index"]
        lost = numbers[(numbers < 0) | (numbers >= len(meta.tasks))]
        if len(lost):
            yield f"{who}: task_index {int(lost[0])} has no text in {layout.TASKS}"
        else:
            named = {meta.tasks[number] for number in set(numbers.tolist())}
            if named != set(row["tasks"]):
                yield f"{who}: its frames are of tasks {sorted(named)}, the episode says {sorted(row['tasks'])}"
    for key, array in part.items():
        one = meta.info.features[key]
        if not one.numeric or not len(array):
            continue
        if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
            at = np.argwhere(~np.isfinite(array))[0]
            yield f"{who}: {key} is NaN or Inf in frame {int(at[0])}"
            continue
        actual = stats.of(array)
        totals.setdefault(key, []).append(actual)
        stated, wrong = _stated(row, key)
        for text in [wrong] if stated is None else stats.disagreement(stated, actual):
            yield f"{who}: statistics of {key} disagree with the data: {text}"


def _stated(row: dict[str, Any], key: str) -> tuple[stats.Stats | None, str]:
    return stats.parse({what: row.get(f"stats/{key}/{what}") for what in stats.NAMES})


def _statistics(meta: Meta, totals: dict[str, list[stats.Stats]]) -> Iterator[str]:
    document, problems = tables.read_json(meta.folder / layout.STATS, meta.folder)
    yield from problems
    if not isinstance(document, dict):
        if not problems:
            yield f"{layout.STATS}: not a JSON object"
        return
    for key, one in meta.info.features.items():
        if not one.numeric and one.dtype not in ("video", "image"):
            continue
        if document.get(key) is None:
            yield f"{layout.STATS}: nothing about {key}"
            continue
        stated, wrong = stats.parse(document[key])
        if stated is None:
            yield f"{layout.STATS}: {key}: {wrong}"
        elif one.dtype in ("video", "image"):
            for text in _colours(stated):
                yield f"{layout.STATS}: {key}: {text}"
        elif len(totals.get(key, ())) == len(meta.rows) and meta.rows:
            for text in stats.disagreement(stated, stats.merge(totals[key])):
                yield f"{layout.STATS}: {key} disagrees with the data: {text}"
    for key in (*meta.info.videos, *meta.info.images):
        for row in meta.rows:
            stated, wrong = _stated(row, key)
            for text in [wrong] if stated is None else _colours(stated):
                yield f"episode {row['episode_index']}: statistics of {key}: {text}"


def _colours(stated: stats.Stats) -> list[str]:
    """Statistics of pictures: three channels on the scale [0, 1]; of which pixels is the writer's choice."""
    if stated["mean"].size != 3:
        return [f"{stated['mean'].size} channels, not 3"]
    if np.any(stated["min"] < 0) or np.any(stated["max"] > 1):
        return ["values outside [0, 1]"]
    return stats.order(stated)


def _videos(meta: Meta, *, decode: bool) -> Iterator[str]:
    for key in meta.info.videos:
        files: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for row in meta.rows:
            at = (row[f"videos/{key}/chunk_index"], row[f"videos/{key}/file_index"])
            files.setdefault(at, []).append(row)
        for (chunk, file), rows in files.items():
            assert meta.info.video_path is not None  # layout.parse refuses videos without a template
            name = meta.info.video_path.format(video_key=key, chunk_index=chunk, file_index=file)
            path = meta.folder / name
            if not path.is_file() or path.stat().st_size == 0:
                yield f"{name}: the file is missing" if not path.is_file() else f"{name}: the file is empty"
                continue
            yield from _spans(name, key, rows, meta.info.fps)
            if decode:
                yield from _film(name, path, key, rows, meta.info)


def _spans(name: str, key: str, rows: list[dict[str, Any]], fps: float) -> Iterator[str]:
    end = 0.0
    for row in rows:
        begin, stop = row[f"videos/{key}/from_timestamp"], row[f"videos/{key}/to_timestamp"]
        who = f"{name}: episode {row['episode_index']}"
        if abs(stop - begin - row["length"] / fps) > layout.TOLERANCE_S:
            yield f"{who} is given {begin:.4f} to {stop:.4f} s, not its {row['length']} frames at {fps:g} a second"
        if abs(begin - end) > layout.TOLERANCE_S:
            yield f"{who} begins at {begin:.4f} s, but the one before ends at {end:.4f} s"
        end = stop


def _film(name: str, path: Path, key: str, rows: list[dict[str, Any]], info: Info) -> Iterator[str]:
    try:
        seen = video.look(path, info.fps)
    except LeRobotError as error:
        yield f"{name}: {error.got}"
        return
    except DataError as error:
        yield f"{name}: not decoded: {error}"
        return
    shape = info.features[key].shape
    if sorted((seen.height, seen.width)) != sorted(shape)[-2:] or (seen.height, seen.width) not in (
        shape[:2],
        shape[1:],
    ):
        yield f"{name}: frames of {seen.height} x {seen.width}, the feature says {list(shape)}"
    promised = sum(row["length"] for row in rows)
    if len(seen.times) < promised:
        yield f"{name}: {len(seen.times)} frames, its episodes promise {promised}: shorter than promised"
    off = np.abs(np.array(seen.times) - np.arange(len(seen.times)) / info.fps)
    if np.any(off > layout.TOLERANCE_S):
        at = int(np.argmax(off > layout.TOLERANCE_S))
        yield f"{name}: frame {at} is at {seen.times[at]:.4f} s, not {at / info.fps:.4f} s"
    if seen.still >= max(2, info.fps):
        yield f"{name}: {seen.still + 1} equal frames up to frame {seen.still_at}: the camera was frozen"
