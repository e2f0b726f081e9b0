"""The crops of seal_scout: physics against oracles that do not share its formulas, planted faults, real folders."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_digits

from gradledger.core.errors import UsageError
from gradledger.data.malformed import malformed, survivors
from gradledger.recipes import _seal_data as data
from gradledger.recipes import _seal_folder as folders
from gradledger.recipes import _seal_physics as physics
from gradledger.recipes.seal_scout import experiment

NONE = np.zeros((0, 4))
SCENE = physics.Scene(
    line="blue cap",
    offset=(0.0, 0.3),
    centre=(0.4, -0.2),
    blur=0.8,
    light=1.0,
    gradient=0.0,
    highlight=0.0,
    tone=1.0,
    waves=NONE,
    print_=NONE,
    dirt=(0.0, 0.0, 0.0),
)
FINER = 16


def rendered_by_force(scene: physics.Scene) -> np.ndarray:
    """Hard discs on a fine grid, a Gaussian lens, boxes for pixels: (H, W) of the red channel over the lamp's red."""
    height, width = physics.HEIGHT * FINER, physics.WIDTH * FINER
    step = physics.PITCH / FINER
    y, x = np.mgrid[:height, :width].astype(float)
    x, y = (x + 0.5) * step - width * step / 2, (y + 0.5) * step - height * step / 2
    cap, ring = physics.LINES[scene.line]
    scene_x, scene_y = scene.centre
    fine = np.full((height, width), physics.BELT)
    fine[(x - scene_x) ** 2 + (y - scene_y) ** 2 <= physics.RING**2] = ring[0]
    at_x, at_y = scene_x + scene.offset[0], scene_y + scene.offset[1]
    fine[(x - at_x) ** 2 + (y - at_y) ** 2 <= physics.CAP**2] = cap[0]
    seen = gaussian_filter(fine, scene.blur * FINER, mode="nearest")
    return seen.reshape(physics.HEIGHT, FINER, physics.WIDTH, FINER).mean(axis=(1, 3))


@pytest.mark.parametrize("blur", [0.4, 0.9, 2.5])
def test_edges_are_those_of_hard_discs_behind_a_lens(blur: float) -> None:
    scene = replace(SCENE, blur=blur)
    found, wanted = physics.radiance(scene)[0], rendered_by_force(scene)
    contrast = 0.68 - 0.14
    # the edge is taken for a straight one: off by half its width over the radius, and nowhere by more
    allowed = contrast * 0.5 * blur * physics.PITCH / physics.CAP + 0.01
    inside = (slice(3, -3), slice(3, -3))  # the force has no world beyond its frame
    assert np.abs(found - wanted)[inside].max() < allowed
    assert np.abs(found - wanted)[inside].mean() < allowed / 4


def test_an_offset_far_below_a_pixel_moves_the_moment_of_the_picture_by_just_that() -> None:
    blur, finer = 0.2, 4
    still = replace(SCENE, offset=(0.0, 0.0), centre=(0.0, 0.0), blur=blur)
    step = physics.PITCH / finer
    x = (np.arange(physics.WIDTH * finer) + 0.5) * step - physics.WIDTH * physics.PITCH / 2
    cap, ring = physics.LINES[SCENE.line]
    width = physics.PITCH * np.hypot(blur, np.sqrt(1 / 12))
    weight = (cap[0] - ring[0]) * np.pi * (physics.CAP**2 + width**2)  # a disc whose edge is a normal along r
    nothing = physics.radiance(still, finer=finer)[0]
    for offset in (0.02, -0.3, 1.1):
        change = physics.radiance(replace(still, offset=(offset, 0.0)), finer=finer)[0] - nothing
        assert (change * x).sum() * step**2 / weight == pytest.approx(offset, rel=0.002)


def test_the_camera_counts_electrons() -> None:
    level = np.full((3, 200, 200), 0.3)
    seen = physics.sense(level, np.random.default_rng(0)).astype(float)
    electrons = 0.3 * physics.ELECTRONS
    wanted = np.sqrt(electrons + physics.READ**2) * 255 / physics.ELECTRONS
    assert seen.mean() == pytest.approx(0.3 * 255, abs=0.05)
    assert seen.std() == pytest.approx(np.hypot(wanted, np.sqrt(1 / 12)), rel=0.02)
    assert physics.sense(np.full((3, 4, 4), 2.0), np.random.default_rng(0)).min() == 255


def test_the_lamp_tells_of_the_offset_as_much_as_is_declared() -> None:
    found = list(physics.scenes(3000, np.random.default_rng(1)))
    offset, light = np.array([one.offset[0] for one, _, _ in found]), np.array([one.light for one, _, _ in found])
    assert np.corrcoef(offset, np.log(light))[0, 1] == pytest.approx(physics.CORRELATION, abs=0.03)
    assert offset.std() == pytest.approx(physics.SPREAD, rel=0.05)
    read = np.array([read for _, _, read in found])
    assert (read - offset).std() == pytest.approx(physics.GAUGE, rel=0.1)


@pytest.fixture(scope="module")
def crops() -> data.Data:
    return data.load(data.GENERATED, 120, 2, "offset_mm")


def test_what_was_saved_twice_is_found_and_nothing_else(crops: data.Data) -> None:
    ids = crops.recording.ids
    twice = {(f"b{number:04d}-{frame}", f"r{number:04d}-{frame}") for number in range(0, 120, 12) for frame in (0, 1)}
    assert {(ids[a], ids[b]) for a, b in data.copies(crops)} == twice
    again = physics.record(12, 2, 5)
    assert np.array_equal(physics.record(12, 2, 5).images, again.images)
    assert len(set(again.offset[:2, 0].tolist())) == 1  # one cap, one reading
    assert again.images[0].tobytes() != again.images[1].tobytes()


def test_whole_caps_stay_together_and_a_split_that_trusts_names_is_caught(crops: data.Data) -> None:
    named = (data.GENERATED, 120, 2, "offset_mm")
    made = data.sides(*named, "burst")
    assert made.problems() == []
    assert data.leaks_of(crops, made) == []
    side = dict(zip(made.ids, made.sides, strict=True))
    assert all(side[f"r{number:04d}-0"] == side[f"b{number:04d}-1"] for number in range(0, 120, 12))
    assert data.leaks_of(crops, data.sides(*named, "named"))
    assert data.leaks_of(crops, data.sides(*named, "frame"))
    counts = data.sides(*named, "frame").counts()
    assert all(abs(counts[name] / 260 - share) < 0.01 for name, share in data.SHARES.items())


def test_malformed_batches_of_training_data_are_refused_one_and_all(crops: data.Data) -> None:
    some = np.random.default_rng(0).permutation(len(crops.recording.ids))[:96]
    batch = {"image": crops.recording.images[some], "offset": crops.recording.offset[some]}
    contract = data.schema(crops).fitted(batch)
    cases = list(malformed(contract, batch))
    assert survivors(lambda one, declared: contract.require(one, declared=declared), iter(cases)) == []
    kinds = [one.kind for one in cases]
    assert {"HWC for CHW", "axes H and W swapped", "BGR for RGB", "m for mm", "empty batch"} <= set(kinds)


def test_a_folder_comes_back_as_it_was_written(crops: data.Data, tmp_path: Path) -> None:
    few = physics.record(3, 2, 3)
    folders.write(few, tmp_path)
    again, unit = folders.read(tmp_path)
    assert unit == "mm"
    assert np.array_equal(again.images, few.images)
    assert np.array_equal(again.offset, few.offset)
    assert (again.burst, again.line, again.time) == (few.burst, few.line, few.time)


def test_a_folder_without_names_of_bursts_has_them_from_its_times(tmp_path: Path) -> None:
    folders.write(physics.record(4, 3, 3), tmp_path)
    rows = list(csv.DictReader((tmp_path / folders.TABLE).open()))
    with (tmp_path / folders.TABLE).open("w", newline="") as file:
        writer = csv.DictWriter(file, ["file", "offset_mm", "time_s"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    found, _ = folders.read(tmp_path)
    assert [found.burst[at : at + 3] for at in range(0, 12, 3)] == [(f"burst 0.{k}",) * 3 for k in range(4)]


def damaged(folder: Path, what: str) -> str:
    """Damage a folder; returns what its error must say."""
    table, image = folder / folders.TABLE, folder / "images" / "b0001-0.png"
    text = table.read_text()
    match what:
        case "unit":
            table.write_text(text.replace("offset_mm", "offset_m"))
            return "no column 'offset_mm'; 'offset_m' is in another unit"
        case "label":
            rows = text.splitlines()
            rows[2] = ",".join([rows[2].split(",")[0], "nan", *rows[2].split(",")[2:]])
            table.write_text("\n".join(rows) + "\n")
            return "row 3: offset_mm = 'nan'"
        case "missing":
            image.unlink()
            return "No such file"
        case "truncated":
            image.write_bytes(image.read_bytes()[:300])
            return "truncated"
        case "size":
            Image.new("RGB", (8, 8)).save(image)
            return "crops of 2 sizes"
        case "mode":
            Image.new("I;16", (32, 28)).save(image)
            return "mode I;16"
        case "twice":
            table.write_text(text + text.splitlines()[1] + "\n")
            return "is there twice"
        case "groups":
            table.write_text(text.replace("burst", "bursts").replace("time_s", "time"))
            return "frames of one cap cannot be told"
    table.write_text("")
    return "no rows"


@pytest.mark.parametrize("what", ["unit", "label", "missing", "truncated", "size", "mode", "twice", "groups", "empty"])
def test_a_damaged_folder_is_refused_with_the_reason(what: str, tmp_path: Path) -> None:
    folders.write(physics.record(2, 2, 3), tmp_path)
    wanted = damaged(tmp_path, what)
    with pytest.raises(folders.CropError) as told:
        folders.read(tmp_path)
    assert wanted in str(told.value)


TABLES = {
    "a row too short": ("images/b0000-1.png", "row 3: 1 cells, 7 columns"),
    "a row too long": ("images/b0000-1.png,0.1,b,l,0,c,1,x", "row 3: 8 cells, 7 columns"),
    "a comma in a number": ('images/b0000-1.png,"0,5",b,l,0,c,1', "row 3: offset_mm = '0,5'"),
    "a quote that is never closed": ('images/b0000-1.png,0.1,"b,l,0,c,1', "unexpected end of data"),
    "a burst without a name": ("images/b0000-1.png,0.1,,l,0,c,1", "row 3: burst = ''"),
    "light that is no number": ("images/b0000-1.png,0.1,b,l,0,c,bright", "row 3: light = 'bright'"),
    "an hour for seconds": ("images/b0000-1.png,0.1,b,l,12:30,c,1", "row 3: time_s = '12:30'"),
    "a file elsewhere": ("../good/images/b0000-1.png,0.1,b,l,0,c,1", "which lies outside"),
    "no name of a file": (",0.1,b,l,0,c,1", "row 3: [Errno 21] Is a directory"),
    "a name with a zero byte": ("images/b\0.png,0.1,b,l,0,c,1", "row 3: "),
    "a cell without end": (f"images/b0000-1.png,0.1,{'b' * 200_000},l,0,c,1", "field larger than"),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_table_with_a_bad_row_is_refused_at_its_line(what: str, tmp_path: Path) -> None:
    row, wanted = TABLES[what]
    folders.write(physics.record(2, 2, 3), tmp_path)
    table = tmp_path / folders.TABLE
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines[:2], row, *lines[3:]]) + "\n")
    with pytest.raises(folders.CropError) as told:
        folders.read(tmp_path)
    assert wanted in told.value.got


def test_a_table_as_spreadsheets_write_it_is_read(tmp_path: Path) -> None:
    folders.write(physics.record(2, 2, 3), tmp_path)
    wanted, _ = folders.read(tmp_path)
    table = tmp_path / folders.TABLE
    table.write_bytes(("\ufeff" + table.read_text().replace("\n", "\r\n\r\n")).encode())  # a mark, and empty lines
    found, _ = folders.read(tmp_path)
    assert found.ids == wanted.ids
    assert np.array_equal(found.images, wanted.images)
    table.write_text(table.read_text().replace("condition", "burst", 1))
    with pytest.raises(folders.CropError, match="column 'burst' is there twice"):
        folders.read(tmp_path)


def test_real_digits_as_a_folder_of_files_are_read_and_learned(tmp_path: Path) -> None:
    """Real pictures, and a real measure of them: where the ink's centre is, from the middle of the crop."""
    digits = load_digits()
    ink = digits.images[:600]
    offset = (ink * np.arange(8)).sum(axis=(1, 2)) / ink.sum(axis=(1, 2)) - 3.5
    grey = np.round(ink * (255 / 16)).astype(np.uint8)
    (tmp_path / "images").mkdir()
    table = io.StringIO()
    table.write("file,offset_mm,burst\n")
    for at, one in enumerate(grey):
        Image.fromarray(one).save(tmp_path / "images" / f"{at}.png")
        table.write(f"images/{at}.png,{0.5 * offset[at]:.6f},rows {at // 10}\n")
    (tmp_path / folders.TABLE).write_text(table.getvalue())
    config = {
        "data": str(tmp_path), "target": "offset_mm", "bursts": 0, "frames": 0, "net": "mlp", "split": "burst",
        "light": "recorded", "augment": False, "labels": "measured", "epochs": 12, "interrupt": False, "risk": 0.1,
        "alpha": 0.1,
    }  # fmt: skip
    found = experiment(config, 0)
    assert found.quantities["share_of_mean"] < 0.5
    assert found.predictions["said"].shape == found.predictions["target"].shape == (120, 1)
    with pytest.raises(UsageError, match="9 bursts"):
        data.require_enough(replace_bursts(data.load(str(tmp_path), 0, 0, "offset_mm"), 9))


def replace_bursts(given: data.Data, count: int) -> data.Data:
    """The same crops in so many bursts."""
    names = tuple(f"b{at % count}" for at in range(len(given.recording.ids)))
    return replace(given, recording=replace(given.recording, burst=names))
