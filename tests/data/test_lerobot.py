"""LeRobotDataset v3: read back equal, every published rule kept, and all damage reported at once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.data.errors import DataError, LeRobotError
from gradledger.data.groups import content_hash
from gradledger.data.lerobot import Episode, Feature, check, convert, open_folder, stats, write
from gradledger.data.lerobot.check import read_meta
from gradledger.data.loader import Loader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FPS = 10
FEATURES = {
    "observation.state": Feature("float32", (3,), ["a", "b", "c"]),
    "action": Feature("float32", (2,), ["x", "y"]),
    "matrix": Feature("float64", (2, 2)),
    "next.done": Feature("bool", (1,)),
    "note": Feature("string", (1,)),
    "observation.images.top": Feature("video", (16, 32, 3), ["height", "width", "channels"]),
}
LENGTHS = (14, 3, 25, 8)
TOP = "observation.images.top"


def recording(number: int) -> Episode:
    rng = np.random.default_rng(number)
    length = LENGTHS[number]
    # A block that moves, on a gradient: every frame differs from the one before by far more than the codec's loss.
    pictures = np.zeros((length, 16, 32, 3), np.uint8)
    pictures[..., 1] = np.linspace(40, 120, 32).astype(np.uint8)
    for at in range(length):
        left = 2 * ((at + number) % 14)
        pictures[at, 4:12, left : left + 6] = (220, 30, 60)
    frames = {
        "observation.state": rng.normal(size=(length, 3)).astype(np.float32),
        "action": rng.normal(size=(length, 2)).astype(np.float32),
        "matrix": rng.normal(size=(length, 2, 2)),
        "next.done": np.arange(length) == length - 1,
        "note": np.array([f"frame {at} of {number}" for at in range(length)]),
        TOP: pictures,
    }
    task: Any = "pick the cap" if number != 2 else ["pick the cap"] * 5 + ["place it"] * 20
    return Episode(frames, task)


RECORDED = [recording(number) for number in range(4)]


def make(folder: Path, **more: Any) -> Path:
    given: dict[str, Any] = dict(fps=FPS, robot_type="cell", chunks_size=2, data_files_size_in_mb=0.0025) | more
    write(folder, iter(RECORDED), FEATURES, **given)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("lerobot") / "set")


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_round_trip(whole: Path) -> None:
    assert check(whole) == []
    folder = open_folder(whole, videos=True)
    assert (folder.episodes, len(folder), folder.tasks) == (4, sum(LENGTHS), ["pick the cap", "place it"])
    start = 0
    for number, recorded in enumerate(RECORDED):
        got = folder.episode(number)
        for name in FEATURES:
            if name != TOP:
                assert got[name].dtype.kind == recorded.frames[name].dtype.kind
                assert name == "note" or got[name].dtype == recorded.frames[name].dtype
                np.testing.assert_array_equal(got[name], recorded.frames[name])
        # A lossy codec on halved colours: close on the whole.
        difference = np.abs(got[TOP].astype(int) - recorded.frames[TOP].astype(int)).mean(axis=(1, 2, 3))
        assert difference.max() < 12
        wrong = np.abs(got[TOP][1:].astype(int) - recorded.frames[TOP][:-1].astype(int)).mean(axis=(1, 2, 3))
        assert np.all(difference[1:] < wrong)  # the frame of this time, not of the one before
        np.testing.assert_array_equal(got["index"], np.arange(start, start + LENGTHS[number]))
        start += LENGTHS[number]
    assert folder.task_of(2) == ["pick the cap", "place it"]
    frame = folder[14 + 3 + 5]
    assert frame["task"] == "place it"
    assert frame["note"] == "frame 5 of 2"
    assert frame["timestamp"] == pytest.approx(0.5)
    with pytest.raises(LeRobotError, match="got episode 4, wanted 0 to 3"):
        folder.episode(4)
    with pytest.raises(IndexError):
        folder[50]


def test_every_published_rule(whole: Path) -> None:
    """Read with pyarrow and json alone: names, types, places and numbers as the format states them."""
    info = json.loads((whole / "meta/info.json").read_text())
    assert {
        name: info[name] for name in ("codebase_version", "fps", "total_episodes", "total_frames", "total_tasks")
    } == {
        "codebase_version": "v3.0",
        "fps": 10,
        "total_episodes": 4,
        "total_frames": 50,
        "total_tasks": 2,
    }
    assert info["data_path"] == "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    assert info["video_path"] == "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    assert info["splits"] == {"train": "0:4"}
    assert info["features"]["timestamp"] == {"dtype": "float32", "shape": [1], "names": None}
    assert list(info["features"])[-5:] == ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    files = sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file())
    data = [name for name in files if name.startswith("data/")]
    films = [name for name in files if name.startswith("videos/")]
    assert data == ["data/chunk-000/file-000.parquet", "data/chunk-000/file-001.parquet"]
    assert films == [f"videos/{TOP}/chunk-000/file-000.mp4"]
    assert set(files) - set(data) - set(films) == {
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
    }
    episodes = pq.read_table(whole / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    end = 0
    for number, row in enumerate(episodes):
        assert (row["episode_index"], row["length"]) == (number, LENGTHS[number])
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (end, end + LENGTHS[number])
        end += LENGTHS[number]
        span = row[f"videos/{TOP}/to_timestamp"] - row[f"videos/{TOP}/from_timestamp"]
        assert span == pytest.approx(LENGTHS[number] / FPS, abs=1e-9)
        path = whole / info["data_path"].format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])
        groups = pq.ParquetFile(path)
        mine = [one["episode_index"] for one in episodes if one["data/file_index"] == row["data/file_index"]]
        assert groups.num_row_groups == len(mine)
        table = groups.read_row_group(mine.index(number))
        assert table.num_rows == LENGTHS[number]
        assert table.schema.field("timestamp").type == pa.float32()
        assert all(
            table.schema.field(name).type == pa.int64()
            for name in ("frame_index", "episode_index", "index", "task_index")
        )
        assert table.schema.field("action").type == pa.list_(pa.float32(), 2)
        np.testing.assert_allclose(table.column("timestamp").to_numpy(), np.arange(LENGTHS[number]) / FPS, atol=1e-6)
        state = RECORDED[number].frames["observation.state"].astype(np.float64)
        np.testing.assert_allclose(row["stats/observation.state/mean"], state.mean(0), atol=1e-12)
        np.testing.assert_allclose(
            row["stats/observation.state/q90"], np.quantile(state, 0.9, axis=0, method="inverted_cdf"), atol=1e-12
        )
        assert np.shape(row[f"stats/{TOP}/mean"]) == (3, 1, 1)
        assert 0 <= np.min(row[f"stats/{TOP}/min"]) <= np.max(row[f"stats/{TOP}/max"]) <= 1
        assert row["stats/action/count"] == [LENGTHS[number]]
    assert {row["data/file_index"] for row in episodes} == {0, 1}
    tasks = pq.read_table(whole / "meta/tasks.parquet")
    assert tasks.column("task_index").to_pylist() == [0, 1]
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    total = json.loads((whole / "meta/stats.json").read_text())
    state = np.concatenate([one.frames["observation.state"] for one in RECORDED]).astype(np.float64)
    for name, wanted in (("mean", state.mean(0)), ("std", state.std(0)), ("min", state.min(0)), ("max", state.max(0))):
        np.testing.assert_allclose(total["observation.state"][name], wanted, atol=1e-9)
    assert total["observation.state"]["count"] == [50]


def test_files_and_chunks_roll_over(tmp_path: Path) -> None:
    """A limit of nothing: a file an episode, and two files a chunk."""
    folder = make(tmp_path / "set", data_files_size_in_mb=0, video_files_size_in_mb=0)
    places = [f"chunk-{chunk:03d}/file-{number:03d}" for chunk in (0, 1) for number in (0, 1)]
    assert [str(path.relative_to(folder / "data")) for path in sorted((folder / "data").rglob("*.parquet"))] == [
        f"{place}.parquet" for place in places
    ]
    assert [str(path.relative_to(folder / "videos" / TOP)) for path in sorted(folder.rglob("*.mp4"))] == [
        f"{place}.mp4" for place in places
    ]
    assert check(folder) == []
    np.testing.assert_array_equal(open_folder(folder).episode(3)["action"], RECORDED[3].frames["action"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 999))
def test_merged_statistics(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(rng.normal(0, 5), rng.uniform(0, 3), (length, 2)) for length in lengths]
    got, every = stats.merge([stats.of(part) for part in parts]), np.concatenate(parts)
    wanted = stats.of(every)
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(got[name], wanted[name], atol=1e-9)
    assert np.all(got["q01"] <= wanted["q01"] + 1e-9)
    assert np.all(got["q99"] >= wanted["q99"] - 1e-9)
    assert np.all(got["q10"] <= got["q90"])
    assert stats.disagreement(got, wanted) == []


def test_statistics_of_the_training_episodes_only(whole: Path) -> None:
    folder = open_folder(whole)
    train = folder.stats([0, 2])
    wanted = np.concatenate([RECORDED[number].frames["action"] for number in (0, 2)]).astype(np.float64)
    np.testing.assert_allclose(train["action"]["mean"], wanted.mean(0), atol=1e-9)
    np.testing.assert_allclose(train["action"]["std"], wanted.std(0), atol=1e-9)
    assert folder.stats() == json.loads((whole / "meta/stats.json").read_text())
    with pytest.raises(LeRobotError, match="no episodes"):
        folder.stats([])


def test_it_is_a_data_set_for_the_loader(whole: Path) -> None:
    def run(workers: int) -> list[str]:
        loader = Loader(open_folder(whole), batch_size=16, rng_seed=0, randomness="none", num_workers=workers)
        return [content_hash(batch) for batch in loader]

    assert run(0) == run(2)
    assert len(run(0)) == 4


# Damage --------------------------------------------------------------------------------------------------------------


def info(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "meta/info.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return damage


def column(file: str, name: str, change: Callable[[list[Any]], Any], kind: Any = None) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        table = pq.read_table(folder / file)
        values = table.column(name).to_pylist()
        changed = change(values)
        array = pa.array(values if changed is None else changed, kind or table.schema.field(name).type)
        pq.write_table(table.set_column(table.column_names.index(name), name, array), folder / file)

    return damage


def put(at: int, value: Any) -> Callable[[list[Any]], None]:
    def change(values: list[Any]) -> None:
        values[at] = value

    return change


def file(name: str, change: Callable[[Path], Any]) -> Callable[[Path], None]:
    return lambda folder: change(folder / name)


def cut(share: float) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def frozen(folder: Path) -> None:
    from gradledger.data.lerobot.video import Encoder

    encoder = Encoder(folder / FILM, FPS, 16, 32)
    encoder.add(np.concatenate([RECORDED[0].frames[TOP][:1]] * 60))
    encoder.close()


def shortened(folder: Path) -> None:
    from gradledger.data.lerobot.video import Encoder

    encoder = Encoder(folder / FILM, FPS, 16, 32)
    encoder.add(RECORDED[0].frames[TOP][:2])
    encoder.close()


DATA, META = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
FILM, TASKS = f"videos/{TOP}/chunk-000/file-000.mp4", "meta/tasks.parquet"


def state_with(at: int, value: Any) -> Callable[[list[Any]], None]:
    def change(values: list[Any]) -> None:
        values[at] = [value, *values[at][1:]]

    return change


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "info missing": (file("meta/info.json", Path.unlink), "meta/info.json: the file is missing"),
    "info cut off": (file("meta/info.json", cut(0.5)), "meta/info.json: no JSON"),
    "older version": (info(lambda d: d.update(codebase_version="v2.1")), "codebase_version 'v2.1', not 'v3.0'"),
    "no fps": (info(lambda d: d.pop("fps")), "fps is None"),
    "path without file index": (
        info(lambda d: d.update(data_path="data/{chunk_index:03d}.parquet/../x")),
        "is no path template",
    ),
    "path out of the folder": (
        info(lambda d: d.update(data_path="../{chunk_index}/{file_index}")),
        "inside the folder",
    ),
    "default column gone": (info(lambda d: d["features"].pop("index")), "default feature index is missing"),
    "default column of another type": (
        info(lambda d: d["features"]["timestamp"].update(dtype="float64")),
        "default feature timestamp is float64 [1], not float32 [1]",
    ),
    "unknown dtype": (info(lambda d: d["features"]["action"].update(dtype="decimal")), "action has dtype 'decimal'"),
    "more episodes than there are": (info(lambda d: d.update(total_episodes=5)), "4 episodes, info.json says 5"),
    "more frames than there are": (info(lambda d: d.update(total_frames=51)), "sum to 50 frames, info.json says 51"),
    "more tasks than there are": (info(lambda d: d.update(total_tasks=3)), "2 tasks, info.json says 3"),
    "split beyond the end": (info(lambda d: d.update(splits={"train": "0:9"})), "'0:9', not a range within 0:4"),
    "feature of another shape": (
        info(lambda d: d["features"]["action"].update(shape=[3])),
        "action has shape [2], its feature says [3]",
    ),
    "feature of another dtype": (
        info(lambda d: d["features"]["action"].update(dtype="float64")),
        "action is float32, its feature says float64",
    ),
    "feature without a column": (
        info(lambda d: d["features"].update(extra={"dtype": "float32", "shape": [1], "names": None})),
        "column extra is missing",
    ),
    "column without a feature": (info(lambda d: d["features"].pop("action")), "column action is no feature"),
    "tasks missing": (file(TASKS, Path.unlink), "meta/tasks.parquet: the file is missing"),
    "tasks out of order": (column(TASKS, "task_index", lambda v: v[::-1]), "looked up by position"),
    "task without a text": (column(TASKS, "task", put(1, "")), "1 tasks without a text"),
    "task twice": (column(TASKS, "task", put(1, "pick the cap")), "a task is there twice"),
    "episodes missing": (file("meta/episodes", shutil.rmtree), "meta/episodes: no file"),
    "episodes without a footer": (file(META, cut(0.7)), "no footer"),
    "episode without its columns": (
        lambda f: pq.write_table(pq.read_table(f / META).drop_columns(["length"]), f / META),
        "no column length",
    ),
    "episode number skipped": (column(META, "episode_index", put(2, 7)), "episode 2: episode_index is 7"),
    "gap between episodes": (
        column(META, "dataset_from_index", put(1, 15)),
        "begins at frame 15, but the one before ends at 14",
    ),
    "length of another": (column(META, "length", put(0, 13)), "are not its length 13"),
    "task that no one knows": (column(META, "tasks", put(0, ["dance"])), "['dance'] are not all in"),
    "data missing": (file(DATA, Path.unlink), f"{DATA}: the file is missing"),
    "data without a footer": (file(DATA, cut(0.9)), "no footer: whoever wrote it was stopped"),
    "data empty": (file(DATA, lambda p: p.write_bytes(b"")), "no parquet file (0 bytes)"),
    "data damaged": (
        file(DATA, lambda p: p.write_bytes(p.read_bytes()[:-40] + b"\xff" * 32 + p.read_bytes()[-8:])),
        "damaged (",
    ),
    "a row lost": (
        lambda f: pq.write_table(pq.read_table(f / DATA).slice(0, 5), f / DATA),
        "5 rows, its episodes promise",
    ),
    "NaN": (
        column(DATA, "observation.state", state_with(4, float("nan"))),
        "observation.state is NaN or Inf in frame 4",
    ),
    "timestamps off the grid": (column(DATA, "timestamp", put(3, 0.35)), "frame 3 is at 0.350000 s, not 0.300000 s"),
    "frame index": (column(DATA, "frame_index", put(3, 9)), "frame_index is 9 in frame 3, not 3"),
    "episode index": (column(DATA, "episode_index", put(3, 1)), "episode_index is 1 in frame 3, not 0"),
    "index": (column(DATA, "index", put(3, 0)), "index is 0 in frame 3, not 3"),
    "task without string": (column(DATA, "task_index", put(0, 2)), "task_index 2 has no text"),
    "task of another": (column(DATA, "task_index", put(0, 1)), "its frames are of tasks ['pick the cap', 'place it']"),
    "stats missing": (file("meta/stats.json", Path.unlink), "meta/stats.json: the file is missing"),
    "value changed": (
        column(DATA, "action", state_with(2, 99.0)),
        "statistics of action disagree with the data: max[0]",
    ),
    "stats of a feature gone": (
        file(
            "meta/stats.json",
            lambda p: p.write_text(json.dumps({k: v for k, v in json.loads(p.read_text()).items() if k != "action"})),
        ),
        "nothing about action",
    ),
    "stats changed": (
        file(
            "meta/stats.json",
            lambda p: p.write_text(p.read_text().replace('"count": [\n            50', '"count": [\n            49')),
        ),
        "disagrees with the data: count 49, not 50",
    ),
    "video missing": (file(FILM, Path.unlink), f"{FILM}: the file is missing"),
    "video cut off": (file(FILM, cut(0.5)), f"{FILM}: InvalidDataError"),
    "video shorter than promised": (shortened, "2 frames, its episodes promise"),
    "camera frozen": (frozen, "the camera was frozen"),
    "video span of another length": (
        column(META, f"videos/{TOP}/to_timestamp", put(0, 9.0)),
        "is given 0.0000 to 9.0000 s, not its 14 frames at 10 a second",
    ),
    "video of another size": (
        info(lambda d: d["features"][TOP].update(shape=[32, 48, 3])),
        "frames of 16 x 32, the feature says [32, 48, 3]",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_reported(copy: Path, kind: str) -> None:
    damage, says = DAMAGE[kind]
    damage(copy)
    found = check(copy, videos="camera" in kind or "video" in kind)
    assert any(says in text for text in found), found
    with pytest.raises(LeRobotError, match="problem") as caught:
        open_folder(copy, videos="camera" in kind or "video" in kind)
    assert says in str(caught.value)


# Those that can be seen beside each other, each once; what they say may name numbers that another one changed.
TOGETHER = {
    **{
        kind: DAMAGE[kind]
        for kind in (
            "more episodes than there are",
            "more frames than there are",
            "more tasks than there are",
            "feature without a column",
            "column without a feature",
            "tasks out of order",
            "task without a text",
            "episode number skipped",
            "gap between episodes",
            "task that no one knows",
            "NaN",
            "timestamps off the grid",
            "frame index",
            "episode index",
            "index",
            "task without string",
            "stats changed",
            "video shorter than promised",
            "video span of another length",
            "video of another size",
        )
    },
    "split beyond the end": (DAMAGE["split beyond the end"][0], "'0:9', not a range within"),
    "a value in another file changed": (
        column("data/chunk-000/file-001.parquet", "next.done", put(0, True)),
        "statistics of next.done disagree with the data: mean[0]",
    ),
    "another value changed": (
        column(DATA, "matrix", put(2, [[9.0, 0.0], [0.0, 0.0]])),
        "statistics of matrix disagree with the data: max[0]",
    ),
    "stats of another feature gone": (
        file(
            "meta/stats.json",
            lambda p: p.write_text(
                json.dumps({k: v for k, v in json.loads(p.read_text()).items() if k != "matrix"}, indent=4)
            ),
        ),
        "nothing about matrix",
    ),
    "stats of a video that cannot be": (
        column(META, f"stats/{TOP}/max", put(1, [[[1.5]], [[1.0]], [[1.0]]])),
        f"episode 1: statistics of {TOP}: values outside [0, 1]",
    ),
}


def test_twenty_five_kinds_in_one_folder_all_in_one_list(copy: Path) -> None:
    assert len(TOGETHER) == 25
    assert len(DAMAGE) == 50
    for damage, _ in TOGETHER.values():
        damage(copy)
    found = check(copy)
    for kind, (_, says) in TOGETHER.items():
        assert any(says in text for text in found), (kind, found)
    with pytest.raises(LeRobotError, match=f"{len(found)} problems") as caught:
        open_folder(copy, videos=True)
    assert all(text in str(caught.value) for text in found)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "set"
    good = RECORDED[1]
    nan = {**good.frames, "action": np.full((3, 2), np.nan, np.float32)}
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([good, Episode(nan, "x")], {}, "episode 1, action: NaN or Inf in frame 0"),
        ([Episode({**good.frames, "action": np.zeros((4, 2), np.float32)}, "x")], {}, "lengths"),
        ([Episode({**good.frames, "action": np.zeros((3, 2))}, "x")], {}, r"action: float64 \[3, 2\], wanted float32"),
        ([Episode({"action": good.frames["action"]}, "x")], {}, "episode 0 with"),
        ([Episode(good.frames, ["x"])], {}, "1 tasks, wanted a task for each of 3 frames"),
        ([Episode(good.frames, "")], {}, "some empty"),
        ([], {}, "no episode"),
        ([good], {"fps": 0}, "at 0 frames a second"),
        ([good], {"splits": {"train": "0:7"}}, "not a range within 0:1"),
    ]
    for episodes, more, says in cases:
        with pytest.raises(LeRobotError, match=says):
            write(target, episodes, FEATURES, **({"fps": FPS} | more))
        assert list(tmp_path.iterdir()) == []
    for features, says in (
        ({"index": Feature("int64", (1,))}, "the writer's own"),
        ({"a/b": Feature("int64", (1,))}, "'/' separates columns"),
        ({"x": Feature("image", (4, 4, 1))}, r"x, image, has shape \[4, 4, 1\], not \[H, W, 3\]"),
        ({"x": Feature("video", (3, 4, 4))}, r"x, video, has shape \[3, 4, 4\], not \[H, W, 3\]"),
        ({"x": Feature("video", (17, 4, 3))}, "x is a video of 17 x 4: sizes must be even"),
        ({}, "0 features"),
    ):
        with pytest.raises(LeRobotError, match=says):
            write(target, [good], features, fps=FPS)
    write(target, [Episode({"x": np.arange(3)}, "t")], {"x": Feature("int64", (1,))}, fps=1)
    with pytest.raises(LeRobotError, match="which exists"):
        write(target, [good], FEATURES, fps=FPS)


def test_a_killed_writer_leaves_no_folder(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:

        def endless() -> Any:
            yield RECORDED[1]
            os._exit(9)

        write(tmp_path / "set", endless(), FEATURES, fps=FPS)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "set").exists()
    assert make(tmp_path / "set") == tmp_path / "set"


def test_convert_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "episode": np.repeat([4, 2, 9], [5, 1, 4]),
        "action": rng.normal(size=(10, 2)).astype(np.float32),
        "grip": rng.integers(0, 2, 10),
        "said": np.array(["pick"] * 6 + ["place"] * 4),
    }
    np.savez(tmp_path / "frames.npz", **arrays)
    convert(tmp_path / "frames.npz", tmp_path / "set", fps=5, task_column="said")
    assert check(tmp_path / "set") == []
    folder = open_folder(tmp_path / "set")
    assert [folder.task_of(number) for number in range(3)] == [["pick"], ["pick"], ["place"]]
    np.testing.assert_array_equal(folder.episode(2)["action"], arrays["action"][6:])
    with pytest.raises(LeRobotError, match="either one task or a column of tasks"):
        convert(tmp_path / "frames.npz", tmp_path / "other", fps=5)
    arrays["episode"] = np.array([1, 1, 2, 1, 2, 2, 2, 2, 2, 2])
    np.savez(tmp_path / "frames.npz", **arrays)
    with pytest.raises(LeRobotError, match="episode 1 in pieces"):
        convert(tmp_path / "frames.npz", tmp_path / "other", fps=5, task="pick")
    with pytest.raises(DataError, match="no such file"):
        convert(tmp_path / "gone.npz", tmp_path / "other", fps=5, task="pick")
    assert not (tmp_path / "other").exists()


def test_convert_version_2_1(tmp_path: Path) -> None:
    """One file an episode, tasks and episodes as lines of JSON."""
    source = tmp_path / "old"
    (source / "meta").mkdir(parents=True)
    (source / "data/chunk-000").mkdir(parents=True)
    document = {
        "codebase_version": "v2.1",
        "fps": 10,
        "chunks_size": 1000,
        "robot_type": "arm",
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": None,
        "features": {"action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]}},
    }
    (source / "meta/info.json").write_text(json.dumps(document))
    (source / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "pick"}\n{"task_index": 1, "task": "place"}\n')
    lines = []
    for number in range(3):
        action = RECORDED[number].frames["action"]
        lines.append(json.dumps({"episode_index": number, "tasks": ["pick"], "length": len(action)}))
        columns = {
            "action": pa.array(action.tolist(), pa.list_(pa.float32())),
            "task_index": pa.array([number % 2] * len(action)),
        }
        pq.write_table(pa.table(columns), source / document["data_path"].format(episode_chunk=0, episode_index=number))
    (source / "meta/episodes.jsonl").write_text("\n".join(lines))
    told = convert(source, tmp_path / "new")
    assert (told.robot_type, told.total_episodes, told.total_frames) == ("arm", 3, 42)
    assert check(tmp_path / "new") == []
    folder = open_folder(tmp_path / "new")
    for number in range(3):
        np.testing.assert_array_equal(folder.episode(number)["action"], RECORDED[number].frames["action"])
        assert folder.task_of(number) == [["pick", "place"][number % 2]]
    with pytest.raises(LeRobotError, match=r"codebase_version 'v3\.0'"):
        convert(tmp_path / "new", tmp_path / "newer")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert check(tmp_path / "gone") == [f"{tmp_path / 'gone'}: no such folder"]
    assert read_meta(tmp_path)[1] == ["meta/info.json: the file is missing"]
