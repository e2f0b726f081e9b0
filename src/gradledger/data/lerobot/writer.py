"""Write a LeRobotDataset v3: in a folder beside, every file fsynced, info.json last, then one rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.core.files import fsync
from gradledger.data._needs import needs
from gradledger.data.errors import LeRobotError
from gradledger.data.lerobot import images, layout, stats, tables
from gradledger.data.lerobot.layout import DEFAULTS, Feature, Info
from gradledger.data.lerobot.video import Encoder

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Episode:
    """One recording. frames: feature -> (T, *shape), videos and images as (T, H, W, 3) bytes, text as T strings.

    task: what was done, one text for all frames or one a frame. Times, indices and counts are the writer's.
    """

    frames: Mapping[str, Any]
    task: str | Sequence[str]


def write(
    folder: Path,
    episodes: Iterable[Episode],
    features: Mapping[str, Feature],
    *,
    fps: int,
    robot_type: str | None = None,
    splits: Mapping[str, str] | None = None,
    chunks_size: int = 1000,
    data_files_size_in_mb: float = 100,
    video_files_size_in_mb: float = 200,
    codec: str = "libx264",
) -> Info:
    """Write a folder that must not exist yet; a writer that is killed leaves nothing under its name.

    Args:
        episodes: taken one by one, so a generator of recordings larger than memory will do.
        features: of one frame; the five default ones are added.
        fps: frames a second, the same for all; times are frame_index / fps.
        splits: side -> "from:to" of episodes; all for "train" when not given.
        chunks_size, data_files_size_in_mb, video_files_size_in_mb: when a new folder or file begins.

    Returns:
        What info.json says.

    Raises:
        LeRobotError: the folder exists, there is no episode, or a frame is not what its feature says. Nothing is left.
    """
    _check_features(features, fps)
    if folder.exists():
        raise _refused(f"{folder}, which exists", "a folder that does not exist", "write beside it, then swap them")
    partial = folder.with_name(f"{folder.name}.writing-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        video = layout.VIDEO_PATH if any(feature.dtype == "video" for feature in features.values()) else None
        every = {**features, **DEFAULTS}
        info = Info(
            fps,
            every,
            robot_type=robot_type,
            video_path=video,
            chunks_size=chunks_size,
            data_files_size_in_mb=data_files_size_in_mb,
            video_files_size_in_mb=video_files_size_in_mb,
        )
        writer = _Writer(partial, info, codec)
        try:
            for number, episode in enumerate(episodes):
                writer.add(number, episode)
        finally:
            writer.close()
        info = writer.finish(splits)
        for path in sorted(partial.rglob("*")):
            fsync(path)
        _write(partial / layout.INFO, info.to_json())
        fsync(partial / layout.INFO)
        fsync(partial / "meta")
        partial.rename(folder)
        fsync(folder.parent)
        return info
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


class _Writer:
    """The open files and the counts."""

    def __init__(self, folder: Path, info: Info, codec: str) -> None:
        self._folder, self._info, self._codec = folder, info, codec
        self._parquet = needs("pyarrow.parquet", purpose="LeRobot data sets")
        self._arrow = needs("pyarrow", purpose="LeRobot data sets")
        self._schema = self._arrow.schema(
            [(name, layout.arrow_type(one)) for name, one in info.features.items() if one.stored],
            metadata=images.metadata(info.images) if info.images else None,
        )
        self._data: Any = None
        self._data_at, self._data_bytes = (0, -1), 0
        self._videos: dict[str, Encoder] = {}
        self._video_at: dict[str, tuple[int, int]] = {}
        self._tasks: dict[str, int] = {}
        self._rows: list[dict[str, Any]] = []
        self._frames = 0

    def add(self, number: int, episode: Episode) -> None:
        columns, pictures, length = self._arrays(number, episode)
        words = [episode.task] * length if isinstance(episode.task, str) else [str(task) for task in episode.task]
        if len(words) != length or "" in words:
            raise _refused(
                f"{len(words)} tasks, some empty" if "" in words else f"{len(words)} tasks",
                f"a task for each of {length} frames",
                "name what was done",
            )
        columns["timestamp"] = (np.arange(length, dtype=np.float64) / self._info.fps).astype(np.float32)
        columns["frame_index"] = np.arange(length)
        columns["episode_index"] = np.full(length, number)
        columns["index"] = np.arange(self._frames, self._frames + length)
        columns["task_index"] = np.array([self._tasks.setdefault(word, len(self._tasks)) for word in words])
        table = self._table(columns | {name: pictures[name] for name in self._info.images})
        if self._data is None or self._data_bytes >= self._info.data_files_size_in_mb * 2**20:
            self._next_file()
        self._data.write_table(table, row_group_size=length)
        self._data_bytes += table.nbytes
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": list(dict.fromkeys(words)),
            "length": length,
            "data/chunk_index": self._data_at[0],
            "data/file_index": self._data_at[1],
            "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + length,
        }
        found = {name: stats.of(columns[name]) for name, one in self._info.features.items() if one.numeric}
        for name, frames in pictures.items():
            if name in self._info.videos:
                row |= self._film(name, frames)
            found[name] = stats.of_images(frames)
        for name, one in found.items():
            row |= {f"stats/{name}/{what}": value for what, value in stats.to_json(one).items()}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        self._rows.append(row)
        self._frames += length

    def _arrays(self, number: int, episode: Episode) -> tuple[Arrays, Arrays, int]:
        wanted = {name: one for name, one in self._info.features.items() if name not in DEFAULTS}
        if set(episode.frames) != set(wanted):
            raise _refused(f"episode {number} with {sorted(episode.frames)}", f"{sorted(wanted)}", "give every feature")
        arrays: Arrays = {}
        for name, one in wanted.items():
            array = np.asarray(episode.frames[name])
            if one.shape == (1,) and array.ndim == 2 and array.shape[1] == 1:
                array = array[:, 0]
            shape = () if one.shape == (1,) else one.shape
            kind = {"string": "U", "video": "uint8", "image": "uint8"}.get(one.dtype, one.dtype)
            right = array.dtype.kind == "U" if kind == "U" else array.dtype == np.dtype(kind)
            if not right or array.shape[1:] != shape or array.ndim == 0 or len(array) == 0:
                raise _refused(
                    f"episode {number}, {name}: {array.dtype} {list(array.shape)}",
                    f"{one.dtype} [T, {', '.join(map(str, shape))}] of at least one frame",
                    "convert it where it is recorded: a cast here could cut it",
                )
            if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
                at = np.argwhere(~np.isfinite(array))[0]
                raise _refused(
                    f"episode {number}, {name}: NaN or Inf in frame {at[0]}", "finite numbers", "drop the frame"
                )
            arrays[name] = array
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise _refused(f"episode {number} with lengths {lengths}", "one length", "align the streams by time first")
        pictures = {name: arrays.pop(name) for name in list(arrays) if wanted[name].dtype in ("video", "image")}
        return arrays, pictures, next(iter(lengths.values()))

    def _table(self, columns: Arrays) -> Any:
        stored = []
        for one in self._schema:
            array = columns[one.name]
            if self._info.features[one.name].dtype == "image":
                stored.append(images.encode(array))
                continue
            flat = self._arrow.array(
                array.reshape(-1).tolist() if array.dtype.kind == "U" else np.ascontiguousarray(array).reshape(-1)
            )
            for size in reversed(array.shape[1:]):
                flat = self._arrow.FixedSizeListArray.from_arrays(flat, size)
            stored.append(flat.cast(one.type))
        return self._arrow.Table.from_arrays(stored, schema=self._schema)

    def _film(self, name: str, frames: NDArray[np.uint8]) -> dict[str, Any]:
        encoder = self._videos.get(name)
        if encoder is None or encoder.megabytes >= self._info.video_files_size_in_mb:
            if encoder is not None:
                encoder.close()
            at = self._video_at[name] = _after(self._video_at.get(name, (0, -1)), self._info.chunks_size)
            path = self._folder / layout.VIDEO_PATH.format(video_key=name, chunk_index=at[0], file_index=at[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            height, width, _ = self._info.features[name].shape
            encoder = self._videos[name] = Encoder(path, self._info.fps, height, width, codec=self._codec)
        begin = encoder.frames
        encoder.add(frames)
        at = self._video_at[name]
        return {
            f"videos/{name}/chunk_index": at[0],
            f"videos/{name}/file_index": at[1],
            f"videos/{name}/from_timestamp": begin / self._info.fps,
            f"videos/{name}/to_timestamp": encoder.frames / self._info.fps,
        }

    def _next_file(self) -> None:
        if self._data is not None:
            self._data.close()
        self._data_at = _after(self._data_at, self._info.chunks_size)
        path = self._folder / layout.DATA_PATH.format(chunk_index=self._data_at[0], file_index=self._data_at[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        self._data, self._data_bytes = self._parquet.ParquetWriter(path, self._schema, write_page_checksum=True), 0

    def close(self) -> None:
        if self._data is not None:
            self._data.close()
        for encoder in self._videos.values():
            encoder.close()

    def finish(self, splits: Mapping[str, str] | None) -> Info:
        """Everything of meta/ but info.json."""
        if not self._rows:
            raise _refused("no episode", "at least one", "check the recordings")
        path = self._folder / layout.EPISODES_PATH.format(chunk_index=0, file_index=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {name: [row[name] for row in self._rows] for name in self._rows[0]}
        self._parquet.write_table(self._arrow.table(columns), path, write_page_checksum=True)
        tasks = tables.task_table(list(self._tasks))
        self._parquet.write_table(tasks, self._folder / layout.TASKS, write_page_checksum=True)
        parts = [_stats_of(row) for row in self._rows]
        merged = {name: stats.to_json(stats.merge([part[name] for part in parts])) for name in parts[0]}
        _write(self._folder / layout.STATS, merged)
        info = replace(
            self._info,
            total_episodes=len(self._rows),
            total_frames=self._frames,
            total_tasks=len(self._tasks),
            splits=dict(splits) if splits is not None else {"train": f"0:{len(self._rows)}"},
        )
        _, problems = layout.parse(info.to_json())
        if problems:
            raise _refused("; ".join(problems), "an info.json that can be read", "correct features and splits")
        return info


def _stats_of(row: Mapping[str, Any]) -> dict[str, stats.Stats]:
    found: dict[str, dict[str, Any]] = {}
    for column, value in row.items():
        if column.startswith("stats/"):
            name, _, what = column.removeprefix("stats/").rpartition("/")
            found.setdefault(name, {})[what] = value
    return {name: stats.from_json(one) for name, one in found.items()}


def _after(at: tuple[int, int], chunks_size: int) -> tuple[int, int]:
    chunk, file = at
    return (chunk + 1, 0) if file + 1 >= chunks_size else (chunk, file + 1)


def _check_features(features: Mapping[str, Feature], fps: int) -> None:
    problems = [f"feature {name} is the writer's own" for name in features if name in DEFAULTS]
    for name, one in features.items():
        if one.dtype in ("video", "image") and (len(one.shape) != 3 or one.shape[2] != 3):
            problems.append(f"{name}, {one.dtype}, has shape {list(one.shape)}, not [H, W, 3]")
        elif one.dtype == "video" and (one.shape[0] % 2 or one.shape[1] % 2):
            size = f"{one.shape[0]} x {one.shape[1]}"
            problems.append(f"{name} is a video of {size}: sizes must be even (crop a row, or store it as images)")
        elif one.dtype == "string" and one.shape != (1,):
            problems.append(f"{name} is text of shape {list(one.shape)}, not [1]")
        elif one.dtype not in (*layout.NUMBERS, "bool", "string", "video", "image"):
            problems.append(f"{name} has dtype {one.dtype!r}")
        if "/" in name or not name:
            problems.append(f"{name!r} is no name: '/' separates columns")
    if not features or isinstance(fps, bool) or not isinstance(fps, int) or fps < 1:
        problems.append(f"{len(features)} features at {fps!r} frames a second")
    if problems:
        raise _refused(
            "; ".join(problems), "features as published, and a whole number of frames a second", "docs/data.md"
        )


def _refused(got: str, wanted: str, next_step: str) -> LeRobotError:
    return LeRobotError(got=got, wanted=wanted, where="lerobot.write", next_step=next_step)


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=4) + "\n", encoding="utf-8")
