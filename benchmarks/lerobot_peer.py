"""A LeRobot folder that this library writes, opened by the library that the published tools read it with.

python benchmarks/lerobot_peer.py

Needs `datasets` and `pandas` (`pip install datasets`, in an environment of its own; nothing is fetched). Asked are the
type and the numbers of every column, the bytes of every picture, the tasks by their text, the rows of the episodes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import datasets
import numpy as np
import pandas

from gradledger.data.lerobot import Episode, Feature, write

LENGTHS, FPS = (14, 3, 12), 10
FEATURES = {
    "action": Feature("float32", (2,)),
    "matrix": Feature("float64", (2, 2)),
    "done": Feature("bool", (1,)),
    "note": Feature("string", (1,)),
    "wrist": Feature("image", (10, 14, 3), ["height", "width", "channels"]),
}


def episode(number: int) -> Episode:
    """One recording of noise."""
    rng, length = np.random.default_rng(number), LENGTHS[number]
    frames = {
        "action": rng.normal(size=(length, 2)).astype(np.float32),
        "matrix": rng.normal(size=(length, 2, 2)),
        "done": np.arange(length) == length - 1,
        "note": np.array([f"frame {at}" for at in range(length)]),
        "wrist": rng.integers(0, 256, (length, 10, 14, 3), np.uint8),
    }
    return Episode(frames, "pick" if number else "place")


def main() -> None:
    """Print what was found equal; an assertion stops it where anything is not."""
    recorded = [episode(number) for number in range(len(LENGTHS))]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "set"
        write(folder, iter(recorded), FEATURES, fps=FPS, data_files_size_in_mb=0.005)
        files = [str(path) for path in sorted((folder / "data").rglob("*.parquet"))]
        read = datasets.Dataset.from_parquet(files, cache_dir=str(Path(scratch) / "cache"))
        assert isinstance(read.features["wrist"], datasets.Image), read.features
        for name in FEATURES:
            wanted = np.concatenate([one.frames[name] for one in recorded])
            got = [np.asarray(row[name]).astype(wanted.dtype) for row in read]
            assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True)), name
        tasks = pandas.read_parquet(folder / "meta/tasks.parquet")
        assert tasks.index.name == "task"
        assert tasks.loc["pick", "task_index"] == 1
        rows = pandas.read_parquet(folder / "meta/episodes/chunk-000/file-000.parquet")
        assert rows["length"].tolist() == list(LENGTHS)
        assert [list(one) for one in rows["tasks"]] == [["place"], ["pick"], ["pick"]]
    versions = f"datasets {datasets.__version__}, pandas {pandas.__version__}"
    print(f"{versions}: {len(read)} frames of {len(FEATURES)} features in {len(files)} files equal")


if __name__ == "__main__":
    main()
