"""Read a LeRobotDataset v3 folder: refused with every problem at once, or frames and episodes as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data.errors import LeRobotError
from gradledger.data.lerobot import images, stats, tables, video
from gradledger.data.lerobot.check import Meta, check, read_meta
from gradledger.data.lerobot.layout import Info
from gradledger.data.table import from_arrow

Arrays = dict[str, NDArray[Any]]


class Folder:
    """A folder that was found whole. `len` and `[index]` are frames, so it is a data set for any loader.

    The last data file is kept in memory, so reading in order touches each file once.
    """

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._starts = np.array([row["dataset_from_index"] for row in meta.rows])
        # Where in the whole set each data file begins.
        self._begins: dict[tuple[int, int], int] = {}
        for row in meta.rows:
            self._begins.setdefault((row["data/chunk_index"], row["data/file_index"]), row["dataset_from_index"])
        self._kept: tuple[tuple[int, int], Arrays, dict[str, list[bytes]]] | None = None

    @property
    def info(self) -> Info:
        """meta/info.json."""
        return self._meta.info

    @property
    def tasks(self) -> list[str]:
        """Texts by task_index."""
        return list(self._meta.tasks)

    @property
    def episodes(self) -> int:
        """How many."""
        return len(self._meta.rows)

    def __len__(self) -> int:
        return self.info.total_frames

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One frame, videos left out: feature -> value of its shape (a number for shape [1]), and `task`.

        Pictures that are in the data files (dtype `image`) are decoded, (H, W, 3) bytes.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        row = self._meta.rows[number]
        key = (row["data/chunk_index"], row["data/file_index"])
        arrays, pictures = self._file(key)
        at = index - self._begins[key]
        frame = {name: array[at].copy() if array[at].ndim else array[at].item() for name, array in arrays.items()}
        shown = {name: images.decode(files[at], f"{name} of frame {index}").copy() for name, files in pictures.items()}
        return {**frame, **shown, "task": self._meta.tasks[int(arrays["task_index"][at])]}

    def episode(self, number: int, *, videos: bool = True) -> Arrays:
        """All frames of an episode, (T, *shape); videos and images decoded as (T, H, W, 3) bytes.

        Args:
            videos: False leaves pictures of both kinds out.

        Raises:
            LeRobotError: there is no such episode, or its video is not where it should be.
        """
        if not 0 <= number < self.episodes:
            raise LeRobotError(
                got=f"episode {number}",
                wanted=f"0 to {self.episodes - 1}",
                where=str(self._meta.folder),
                next_step="number the episodes from 0",
            )
        row = self._meta.rows[number]
        key = (row["data/chunk_index"], row["data/file_index"])
        arrays, pictures = self._file(key)
        begin = row["dataset_from_index"] - self._begins[key]
        found = {name: array[begin : begin + row["length"]] for name, array in arrays.items()}
        if videos:
            for name in self.info.videos:
                found[name] = self._film(name, row)
            for name, files in pictures.items():
                where = f"{name} of episode {number}"
                found[name] = np.stack([images.decode(one, where) for one in files[begin : begin + row["length"]]])
        return found

    def task_of(self, number: int) -> list[str]:
        """Tasks of an episode."""
        return list(self._meta.rows[number]["tasks"])

    def stats(self, episodes: Sequence[int] | None = None) -> dict[str, dict[str, Any]]:
        """Statistics of these episodes, merged from those of each; of all when None.

        Those in meta/stats.json are of everything, the held-out episodes included: for a training side pass its
        episodes.
        """
        rows = [self._meta.rows[number] for number in (range(self.episodes) if episodes is None else episodes)]
        if not rows:
            raise LeRobotError(
                got="no episodes", wanted="at least one", where="Folder.stats", next_step="pass the training episodes"
            )
        found = {}
        for name in self.info.features:
            parts = [stats.parse({what: row.get(f"stats/{name}/{what}") for what in stats.NAMES})[0] for row in rows]
            known = [part for part in parts if part is not None]
            if len(known) == len(rows):
                found[name] = stats.to_json(stats.merge(known))
        return found

    def _file(self, key: tuple[int, int]) -> tuple[Arrays, dict[str, list[bytes]]]:
        if self._kept is None or self._kept[0] != key:
            path = self._meta.folder / self.info.data_path.format(chunk_index=key[0], file_index=key[1])
            table, problems = tables.read(path, self._meta.folder)
            if table is None:
                raise _problems(self._meta.folder, problems)
            names = [name for name, one in self.info.features.items() if one.stored and one.dtype != "image"]
            arrays = {name: from_arrow(table.column(name), name) for name in names}
            self._kept = (key, arrays, {name: images.held(table.column(name)) for name in self.info.images})
        return self._kept[1], self._kept[2]

    def _film(self, name: str, row: dict[str, Any]) -> NDArray[np.uint8]:
        assert self.info.video_path is not None  # checked when the folder was opened
        path = self._meta.folder / self.info.video_path.format(
            video_key=name, chunk_index=row[f"videos/{name}/chunk_index"], file_index=row[f"videos/{name}/file_index"]
        )
        return video.read(path, row[f"videos/{name}/from_timestamp"], row["length"], self.info.fps)


def open_folder(folder: Path, *, videos: bool = False) -> Folder:
    """Check a folder and open it.

    Args:
        videos: decode the videos for the check too, see `check`.

    Raises:
        LeRobotError: with every problem at once.
    """
    problems = check(folder, videos=videos)
    meta, _ = read_meta(folder)
    if problems or meta is None:
        raise _problems(folder, problems)
    return Folder(meta)


def _problems(folder: Path, problems: list[str]) -> LeRobotError:
    return LeRobotError(
        got=f"{len(problems)} problem{'s' if len(problems) != 1 else ''}: " + "; ".join(problems),
        wanted="a whole LeRobotDataset v3.0",
        where=str(folder),
        next_step="repair or fetch these files again; `gradledger data lerobot check` prints one a line",
    )
