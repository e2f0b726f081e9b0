"""The published format v3.0 as data: files, info.json, features and their Arrow types, the columns of an episode."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradledger.data._needs import needs
from gradledger.data.lerobot import images

VERSION = "v3.0"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
# Seconds by which a time may be off the grid of frame counts.
TOLERANCE_S = 1e-4

NUMBERS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class Feature:
    """One entry of `features`: dtype is a number type, bool, string, image or video; shape of one frame.

    info: of a video, as published (`video.codec` and so on).
    """

    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> bool:
        """Whether it is a column of the data files; videos are files of their own."""
        return self.dtype != "video"

    @property
    def numeric(self) -> bool:
        """Whether it has statistics over numbers."""
        return self.dtype in NUMBERS or self.dtype == "bool"

    def to_json(self) -> dict[str, Any]:
        """As in info.json."""
        document = {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}
        return {**document, "info": dict(self.info)} if self.info else document


DEFAULTS: dict[str, Feature] = {
    "timestamp": Feature("float32", (1,)),
    "frame_index": Feature("int64", (1,)),
    "episode_index": Feature("int64", (1,)),
    "index": Feature("int64", (1,)),
    "task_index": Feature("int64", (1,)),
}


@dataclass(frozen=True)
class Info:
    """meta/info.json. chunks_size: files in a chunk folder. Sizes are limits in MB at which a new file begins."""

    fps: int
    features: dict[str, Feature]
    total_episodes: int = 0
    total_frames: int = 0
    total_tasks: int = 0
    robot_type: str | None = None
    splits: Mapping[str, str] = field(default_factory=dict)
    data_path: str = DATA_PATH
    video_path: str | None = None
    chunks_size: int = 1000
    data_files_size_in_mb: float = 100
    video_files_size_in_mb: float = 200

    @property
    def videos(self) -> list[str]:
        """Names of the video features."""
        return [name for name, feature in self.features.items() if feature.dtype == "video"]

    @property
    def images(self) -> list[str]:
        """Names of the features whose pictures are in the data files."""
        return [name for name, feature in self.features.items() if feature.dtype == "image"]

    def to_json(self) -> dict[str, Any]:
        """As published."""
        return {
            "codebase_version": VERSION,
            "robot_type": self.robot_type,
            "total_episodes": self.total_episodes,
            "total_frames": self.total_frames,
            "total_tasks": self.total_tasks,
            "chunks_size": self.chunks_size,
            "data_files_size_in_mb": self.data_files_size_in_mb,
            "video_files_size_in_mb": self.video_files_size_in_mb,
            "fps": self.fps,
            "splits": dict(self.splits),
            "data_path": self.data_path,
            "video_path": self.video_path,
            "features": {name: feature.to_json() for name, feature in self.features.items()},
        }


def parse(document: Any) -> tuple[Info | None, list[str]]:
    """(info, problems): info is None where the rest of the folder cannot be read without it."""
    if not isinstance(document, dict):
        return None, ["meta/info.json: not a JSON object"]
    if document.get("codebase_version") != VERSION:
        got = document.get("codebase_version")
        return None, [f"meta/info.json: codebase_version {got!r}, not {VERSION!r}: convert the data set first"]
    problems = [
        f"meta/info.json: {name} is {document.get(name)!r}, not a whole number of at least {least}"
        for name, least in (
            ("total_episodes", 0),
            ("total_frames", 0),
            ("total_tasks", 0),
            ("fps", 1),
            ("chunks_size", 1),
        )
        if not _whole(document.get(name), least)
    ]
    features, wrong = _features(document.get("features"))
    problems += wrong
    videos = [name for name, feature in features.items() if feature.dtype == "video"]
    problems += _template("data_path", document.get("data_path"), ("chunk_index", "file_index"))
    if videos:
        problems += _template("video_path", document.get("video_path"), ("video_key", "chunk_index", "file_index"))
    if problems:
        return None, problems
    splits = document.get("splits") or {}
    if not isinstance(splits, dict):
        problems.append(f"meta/info.json: splits is {splits!r}, not side: range")
    total = document["total_episodes"]
    for side, span in splits.items() if isinstance(splits, dict) else ():
        match = re.fullmatch(r"(\d+):(\d+)", str(span))
        if match is None or not int(match[1]) <= int(match[2]) <= total:
            problems.append(f"meta/info.json: split {side!r} is {span!r}, not a range within 0:{total}")
    info = Info(
        document["fps"],
        features,
        total,
        document["total_frames"],
        document["total_tasks"],
        document.get("robot_type"),
        splits if isinstance(splits, dict) else {},
        document["data_path"],
        document.get("video_path"),
        document["chunks_size"],
        document.get("data_files_size_in_mb", 100),
        document.get("video_files_size_in_mb", 200),
    )
    return info, problems


def arrow_type(feature: Feature) -> Any:
    """A scalar for shape (1,), a list of fixed size for one axis, lists in lists for more; pictures {bytes, path}."""
    if feature.dtype == "image":
        return images.arrow_type()
    arrow = needs("pyarrow", purpose="LeRobot data sets")
    kinds = {"bool": arrow.bool_(), "string": arrow.string()}
    kind = kinds[feature.dtype] if feature.dtype in kinds else getattr(arrow, feature.dtype)()
    if feature.shape == (1,):
        return kind
    for size in reversed(feature.shape):
        kind = arrow.list_(kind, size)
    return kind


def _whole(value: Any, least: int) -> bool:
    # Published data sets hold fps as 30 or as 30.0.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool) and value >= least


def _features(given: Any) -> tuple[dict[str, Feature], list[str]]:
    if not isinstance(given, dict) or not given:
        return {}, ["meta/info.json: no features"]
    found: dict[str, Feature] = {}
    problems = []
    for name, one in given.items():
        shape = one.get("shape") if isinstance(one, dict) else None
        dtype = one.get("dtype") if isinstance(one, dict) else None
        if not isinstance(shape, list) or not shape or not all(_whole(size, 1) for size in shape):
            problems.append(f"meta/info.json: feature {name} has shape {shape!r}")
        elif dtype not in (*NUMBERS, "bool", "string", "image", "video"):
            problems.append(f"meta/info.json: feature {name} has dtype {dtype!r}")
        elif not isinstance(one.get("names"), list | dict | None):
            problems.append(f"meta/info.json: feature {name} has names {one.get('names')!r}")
        elif dtype in ("image", "video") and len(shape) != 3:
            problems.append(f"meta/info.json: feature {name} is a picture of shape {shape!r}, not of three axes")
        else:
            sizes = tuple(int(size) for size in shape)
            found[name] = Feature(dtype, sizes, one.get("names"), one.get("info") or {})
    for name, feature in DEFAULTS.items():
        mine = found.get(name)
        if mine is None or (mine.dtype, mine.shape) != (feature.dtype, feature.shape):
            got = "missing" if mine is None else f"{mine.dtype} {list(mine.shape)}"
            problems.append(f"meta/info.json: default feature {name} is {got}, not {feature.dtype} [1]")
    return found, problems


def _template(name: str, given: Any, wanted: tuple[str, ...]) -> list[str]:
    try:
        text = str(given).format(**{one: "key" if one == "video_key" else 7 for one in wanted})
        changed = str(given).format(**{one: "other" if one == "video_key" else 8 for one in wanted})
    except (KeyError, IndexError, ValueError):
        return [f"meta/info.json: {name} {given!r} does not take {', '.join(wanted)}"]
    if text == changed or not isinstance(given, str) or text.startswith("/") or ".." in text.split("/"):
        return [f"meta/info.json: {name} {given!r} is no path template of {', '.join(wanted)} inside the folder"]
    return []
