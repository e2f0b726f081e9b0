"""Pictures of LeRobotDataset v3: in tables to the bit, in videos within the codec's loss; damage of both is told."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from data.test_lerobot import DATA, FPS, TOP, recording
from gradledger.cli._app import build
from gradledger.data.errors import LeRobotError
from gradledger.data.groups import content_hash
from gradledger.data.lerobot import Episode, Feature, check, convert, open_folder, write
from gradledger.data.lerobot.video import Encoder, look
from gradledger.data.loader import Loader

WRIST = "observation.images.wrist"
FEATURES = {
    "action": Feature("float32", (2,)),
    TOP: Feature("video", (16, 32, 3), ["height", "width", "channels"]),
    WRIST: Feature("image", (10, 14, 3), ["height", "width", "channels"]),
}
LENGTHS = (14, 3, 12)


def pictures(number: int, length: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, (length, 10, 14, 3), np.uint8)


def episode(number: int) -> Episode:
    given, length = recording(number), LENGTHS[number]
    frames = {name: given.frames[name][:length] for name in ("action", TOP)}
    return Episode(frames | {WRIST: pictures(number, length)}, "pick")


RECORDED = [episode(number) for number in range(3)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures") / "set"
    write(folder, iter(RECORDED), FEATURES, fps=FPS, data_files_size_in_mb=0.005)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def close(got: Any, wanted: Any) -> None:
    """Within the loss of the codec, frame by frame, and the frame of this time, not of the one before."""
    assert got.dtype == np.uint8
    assert got.shape == wanted.shape
    off = np.abs(got.astype(int) - wanted.astype(int)).mean(axis=(1, 2, 3))
    other = np.abs(got[1:].astype(int) - wanted[:-1].astype(int)).mean(axis=(1, 2, 3))
    assert off.max() < 12
    assert np.all(off[1:] < other)


def test_round_trip_of_both_kinds(whole: Path) -> None:
    assert check(whole) == []
    folder = open_folder(whole, videos=True)
    assert (folder.info.videos, folder.info.images) == ([TOP], [WRIST])
    for number, recorded in enumerate(RECORDED):
        got = folder.episode(number)
        np.testing.assert_array_equal(got[WRIST], recorded.frames[WRIST])
        close(got[TOP], recorded.frames[TOP])
    assert set(folder.episode(0, videos=False)) == {"action", *list(got)[1:6]} - {TOP, WRIST}
    frame = folder[14 + 3 + 7]
    np.testing.assert_array_equal(frame[WRIST], RECORDED[2].frames[WRIST][7])
    assert TOP not in frame
    for name in (TOP, WRIST):
        every = np.concatenate([one.frames[name] for one in RECORDED]).reshape(-1, 3) / 255
        told = folder.stats()[name]
        np.testing.assert_allclose(np.reshape(told["mean"], 3), every.mean(0), atol=0.02)  # mean over episodes' frames
        np.testing.assert_allclose(np.reshape(told["max"], 3), every.max(0), atol=1e-12)
        assert told["count"] == [sum(LENGTHS)]


def test_stored_as_published(whole: Path) -> None:
    """Read with pyarrow and pillow alone."""
    files = sorted((whole / "data").rglob("*.parquet"))
    assert len(files) > 1
    rows = []
    for path in files:
        table = pq.read_table(path)
        assert table.schema.field(WRIST).type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        told = json.loads(table.schema.metadata[b"huggingface"])
        assert told == {"info": {"features": {WRIST: {"_type": "Image"}}}}
        assert TOP not in table.column_names
        rows += table.column(WRIST).to_pylist()
    assert rows[3]["path"] == "frame-000003.png"
    with Image.open(io.BytesIO(rows[14]["bytes"])) as picture:
        assert (picture.format, picture.size, picture.mode) == ("PNG", (14, 10), "RGB")
        np.testing.assert_array_equal(np.asarray(picture), RECORDED[1].frames[WRIST][0])
    info = json.loads((whole / "meta/info.json").read_text())
    assert info["features"][WRIST] == {
        "dtype": "image",
        "shape": [10, 14, 3],
        "names": ["height", "width", "channels"],
    }


def test_the_same_frames_are_the_same_bytes(tmp_path: Path) -> None:
    seen = set()
    for _ in range(150):
        encoder = Encoder(tmp_path / "film.mp4", FPS, 16, 32)
        encoder.add(MOVING)
        encoder.close()
        look(tmp_path / "film.mp4", FPS)  # leaves its own numbers in the memory that the next one gets
        seen.add(content_hash((tmp_path / "film.mp4").read_bytes()))
    assert len(seen) == 1


def test_pictures_go_through_the_loader(whole: Path) -> None:
    def run(workers: int) -> list[str]:
        loader = Loader(open_folder(whole), batch_size=8, rng_seed=0, randomness="none", num_workers=workers)
        return [content_hash(batch) for batch in loader]

    assert run(0) == run(2)


# Damage --------------------------------------------------------------------------------------------------------------


def column(change: Callable[[list[Any]], Any], kind: Any = None) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        table = pq.read_table(folder / DATA)
        values = table.column(WRIST).to_pylist()
        change(values)
        array = pa.array(values, kind or table.schema.field(WRIST).type)
        pq.write_table(table.set_column(table.column_names.index(WRIST), WRIST, array), folder / DATA)

    return damage


def png(picture: Any, form: str = "png") -> bytes:
    held = io.BytesIO()
    Image.fromarray(picture).save(held, form)
    return held.getvalue()


def each(value: Callable[[Any], Any]) -> Callable[[list[Any]], None]:
    def change(values: list[Any]) -> None:
        values[:] = [value(one) for one in values]

    return change


def at(number: int, value: Callable[[Any], Any]) -> Callable[[list[Any]], None]:
    def change(values: list[Any]) -> None:
        values[number] = value(values[number])

    return change


def film(*parts: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        encoder = Encoder(folder / f"videos/{TOP}/chunk-000/file-000.mp4", FPS, 16, 32)
        encoder.add(np.concatenate(parts))
        encoder.close()

    return damage


MOVING = np.concatenate([one.frames[TOP] for one in RECORDED])
STILL = np.repeat(MOVING[4:5], 18, axis=0)
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a row without a picture": (column(at(4, lambda one: None)), "has 1 empty pictures"),
    "a picture without bytes": (column(at(4, lambda one: {**one, "bytes": None})), "has 1 empty pictures"),
    "numbers for pictures": (column(each(lambda one: 3), pa.int64()), "is int64, not a struct of bytes and path"),
    "a picture cut off": (
        column(at(5, lambda one: {**one, "bytes": one["bytes"][:200]})),
        "frame 5 is no whole picture (OSError",
    ),
    "a picture that is none": (
        column(at(0, lambda one: {**one, "bytes": b"GIF?"})),
        "frame 0 is no whole picture (UnidentifiedImageError",
    ),
    "a flipped byte in a picture": (
        column(at(2, lambda one: {**one, "bytes": one["bytes"][:90] + b"\x00\x01\x02" + one["bytes"][93:]})),
        "frame 2 is no whole picture (",
    ),
    "pictures of another size": (
        column(each(lambda one: {**one, "bytes": png(np.zeros((8, 8, 3), np.uint8))})),
        "frame 0 is 8 x 8, the feature says [10, 14, 3]",
    ),
    "the same picture again and again": (
        column(each(lambda one: {**one, "bytes": png(pictures(0, 1)[0])})),
        "equal frames up to frame",
    ),
    "a video with frozen frames": (film(MOVING[:5], STILL, MOVING[23:]), "equal frames up to frame"),
    "a video shorter than promised": (film(MOVING[:-1]), "28 frames, its episodes promise 29: shorter than promised"),
    "a video that skips": (film(MOVING[:1]), "1 frames, its episodes promise 29"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_reported(copy: Path, kind: str) -> None:
    damage, says = DAMAGE[kind]
    damage(copy)
    found = check(copy)
    assert any(says in text for text in found), found
    with pytest.raises(LeRobotError, match="problem") as caught:
        open_folder(copy, videos=True)
    assert says in str(caught.value)


def test_a_frozen_camera_is_not_a_scene_that_stands_still(tmp_path: Path) -> None:
    """Key frames of one picture differ by the codec's drift; those of one scene by the noise of the sensor."""
    rng = np.random.default_rng(0)
    down, right = np.mgrid[0:96, 0:128]
    scene = np.stack([120 + 60 * np.sin(right / 9), 100 + 50 * np.cos(down / 11), 128 + (right + down) / 3], axis=-1)

    def seen(frames: Any) -> Any:
        path = tmp_path / "film.mp4"
        encoder = Encoder(path, FPS, 96, 128)
        encoder.add(np.clip(frames, 0, 255).astype(np.uint8))
        encoder.close()
        return look(path, FPS)

    for noise in (0.5, 2.0, 4.0):
        shots = scene + noise * rng.normal(size=(25, *scene.shape))
        assert seen(shots).still < FPS
        frozen = seen(np.concatenate([shots[:10], np.repeat(shots[9:10], 25, axis=0)]))
        assert frozen.still >= FPS
        assert frozen.still_at >= 20


def test_a_video_that_is_too_short_is_told_when_it_is_read(copy: Path) -> None:
    DAMAGE["a video shorter than promised"][0](copy)
    folder = open_folder(copy)  # presence only
    close(folder.episode(1)[TOP], RECORDED[1].frames[TOP])
    with pytest.raises(LeRobotError, match=r"got 11 of 12 frames.*the video is too short"):
        folder.episode(2)


# Conversion ----------------------------------------------------------------------------------------------------------


def test_a_table_with_pictures(tmp_path: Path) -> None:
    lengths = LENGTHS
    arrays = {
        "episode": np.repeat(np.arange(3), lengths),
        "action": np.concatenate([one.frames["action"] for one in RECORDED]),
        "top": MOVING,
        "wrist": np.concatenate([one.frames[WRIST] for one in RECORDED]),
    }
    np.savez(tmp_path / "f.npz", **arrays)

    def run(*words: Any) -> tuple[int, str]:
        given = ("data", "lerobot", "convert", tmp_path / "f.npz", tmp_path / "set", "--fps", FPS, "--task", "pick")
        done = CliRunner().invoke(build(), [*map(str, (*given, *words))])
        return done.exit_code, done.output + done.stderr

    code, text = run("--videos", "top")
    assert code == 2
    assert "column wrist of uint8 [29, 10, 14, 3], which are pictures" in text
    assert "--videos wrist (small, lossy) or --images wrist (exact)" in text
    for words, says in (
        (("--videos", "top,wrist", "--images", "wrist"), "each in one of the two: action, top, wrist"),
        (("--videos", "front"), "columns of the file"),
        (("--videos", "action", "--images", "top,wrist"), "action of float32 [29, 2] as video"),
    ):
        code, text = run(*words)
        assert code == 2
        assert says in text
    assert not (tmp_path / "set").exists()
    code, text = run("--videos", "top", "--images", "wrist")
    assert (code, text) == (0, f"{tmp_path / 'set'}: 3 episodes, 29 frames\n")
    assert check(tmp_path / "set") == []
    folder = open_folder(tmp_path / "set")
    np.testing.assert_array_equal(folder.episode(2)["wrist"], RECORDED[2].frames[WRIST])
    close(folder.episode(2)["top"], RECORDED[2].frames[TOP])


def test_version_2_1_with_both_kinds(tmp_path: Path) -> None:
    """Videos, one an episode, are encoded again; pictures in tables, here JPEG, stay as they were decoded."""
    source = tmp_path / "old"
    document = {
        "codebase_version": "v2.1",
        "fps": FPS,
        "chunks_size": 2,
        "robot_type": "arm",
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": {
            "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
            TOP: {"dtype": "video", "shape": [3, 16, 32], "names": ["channels", "height", "width"]},
            WRIST: {"dtype": "image", "shape": [10, 14, 3], "names": ["height", "width", "channels"]},
        },
    }
    (source / "meta").mkdir(parents=True)
    (source / "meta/info.json").write_text(json.dumps(document))
    (source / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "pick"}\n')
    lines, shown = [], []
    for number, recorded in enumerate(RECORDED):
        where = {"episode_chunk": number // 2, "episode_index": number}
        path = source / document["data_path"].format(**where)  # type: ignore[attr-defined]
        path.parent.mkdir(parents=True, exist_ok=True)
        files = [png(one, "jpeg") for one in recorded.frames[WRIST]]
        shown.append(np.stack([np.asarray(Image.open(io.BytesIO(one))) for one in files]))
        table = {
            "action": pa.array(recorded.frames["action"].tolist(), pa.list_(pa.float32())),
            WRIST: pa.array([{"bytes": one, "path": None} for one in files]),
            "task_index": pa.array([0] * len(files)),
        }
        pq.write_table(pa.table(table), path)
        path = source / document["video_path"].format(video_key=TOP, **where)  # type: ignore[attr-defined]
        path.parent.mkdir(parents=True, exist_ok=True)
        encoder = Encoder(path, FPS, 16, 32)
        encoder.add(recorded.frames[TOP])
        encoder.close()
        lines.append(json.dumps({"episode_index": number, "tasks": ["pick"], "length": len(files)}))
    (source / "meta/episodes.jsonl").write_text("\n".join(lines))
    convert(source, tmp_path / "new")
    assert check(tmp_path / "new") == []
    folder = open_folder(tmp_path / "new")
    assert folder.info.features[TOP].shape == (16, 32, 3)
    for number, recorded in enumerate(RECORDED):
        got = folder.episode(number)
        np.testing.assert_array_equal(got[WRIST], shown[number])
        close(got[TOP], recorded.frames[TOP])
    with pytest.raises(LeRobotError, match=r"its info\.json says which are which"):
        convert(source, tmp_path / "newer", videos=["top"])
    encoder = Encoder(path, FPS, 16, 32)
    encoder.add(RECORDED[2].frames[TOP][:5])
    encoder.close()
    with pytest.raises(LeRobotError, match="got 5 of 12 frames"):
        convert(source, tmp_path / "newer")
    del document["features"][TOP]  # type: ignore[attr-defined]
    (source / "meta/info.json").write_text(json.dumps(document))
    numbers = pa.table({**table, WRIST: pa.array([1] * len(files))})
    pq.write_table(numbers, source / "data/chunk-001/episode_000002.parquet")
    with pytest.raises(LeRobotError, match="a column that is int64, not a struct of bytes and path"):
        convert(source, tmp_path / "newer")
    assert not (tmp_path / "newer").exists()
