"""seal_scout as a whole: what the folder of a small run holds, and what the path from bytes to an answer says."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gradledger.cli import _app
from gradledger.core.errors import GradledgerError
from gradledger.evidence import bundle, slices
from gradledger.evidence.record import TrialRecord
from gradledger.recipes import _seal_answer, _seal_faults, _seal_image, _seal_measures, _seal_nets
from gradledger.recipes import _seal_data as data
from gradledger.recipes import _seal_physics as physics
from gradledger.recipes._seal_answer import Rules
from gradledger.recipes._seal_nets import Scaling, Scout
from gradledger.recipes.seal_scout import Args, main, train
from recipes.pages import made_page

PLAIN = Scaling((0.2, 0.2, 0.2), (0.1, 0.1, 0.1), 0.0, 0.5)
SIZE = (physics.HEIGHT, physics.WIDTH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seal") / "run"


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    return train(Args(preset="smoke", out=folder))


def document(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def command(*words: str) -> Any:
    return CliRunner().invoke(_app.build(), list(words))


# ------------------------------------------------------------------------------------------------------- the whole run


def test_the_folder_is_sealed_and_every_level_of_checking_passes(folder: Path, told: dict[str, Any]) -> None:
    assert told["kind"] == "plumbing test"
    assert bundle.verify(folder) == []
    for words in (
        ("rescore", "--quantity", "mae", "--metric", "mae", "--prediction", "said", "--target", "target"),
        ("repredict", "--tolerance", "0"),
    ):
        said = command(words[0], str(folder), *words[1:])
        assert said.exit_code == 0, said.output
    assert said.output.count("equal to the last bit") == 2 * 8
    assert main(["--preset", "smoke", "--out", str(folder)]) == 0  # nothing is run again, nothing changes
    assert bundle.verify(folder) == []
    assert [one.in_version for one in bundle.openings(folder)] == [1]


def test_a_number_of_the_card_that_was_edited_is_named(folder: Path, told: dict[str, Any], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    card, shown = copy / "README.md", f"{told['model']['worst']:.3f} mm"
    assert shown in card.read_text()
    card.write_text(card.read_text().replace(shown, "0.001 mm"))
    assert any("results.json#model.worst" in one.field for one in bundle.verify(copy))


def test_a_run_that_was_stopped_ends_with_the_same_bits(told: dict[str, Any]) -> None:
    trials = {(one["arm"], one["rng_seed"]): one for one in told["trials"]}
    assert trials["resumed", 0]["weights"] == trials["conv", 0]["weights"]
    assert len({one["weights"] for one in trials.values()}) == 7
    assert {one["id"]: one["verdict"] for one in told["hypotheses"]}["R1"] == "supported"


def test_twins_are_found_where_the_split_trusts_names_and_nowhere_else(folder: Path, told: dict[str, Any]) -> None:
    found = document(folder, "leaks.json")
    assert found["copies"] == 4 * 3  # four of forty caps, three frames
    twins = {one["split"]: bool(one["found"]) for one in found["twins"]}
    assert twins == {"burst": False, "named": True, "frame": True}
    trials = {one["arm"]: one["mae"] for one in told["trials"]}
    assert [row["model"] for row in found["rows"]] == ["mlp", "conv"]  # both nets, each differing in the split alone
    for row in found["rows"]:
        assert row["leak"] == pytest.approx(row["grouped"] - row["random"])
        assert row["low"] is None  # one seed: no interval
        assert row["grouped"] == pytest.approx(trials[row["model"]], rel=1e-6)
        assert row["random"] == pytest.approx(trials[f"{row['model']}_frame"], rel=1e-6)


def test_every_malformed_crop_is_refused_with_its_reason(folder: Path, told: dict[str, Any]) -> None:
    rows = {one["input"]: one for one in document(folder, "rejections.json")["rows"]}
    assert {one["answer"] for one in rows.values()} == {"refused"}
    assert len(rows) == 30
    for name, words in {
        "empty file": "no bytes",
        "truncated file": "truncated",
        "floats in [0, 1]": "scaled floats",
        "NaN in one pixel": "not a number",
        "channels last": "channels last",
        "height and width swapped": "[1, 3, 32, 28]",
        "empty array": "H is 0",
        "pixels in another unit": "0.00075 mm to a pixel",
        "one grey level": "grey levels that differ",
        "an animation": "3 frames",
        "sixteen bits, RGB": "levels up to 65535",
        "turned by its EXIF": "EXIF orientation 6",
        "a header that promises a petabyte": "1000000000000000 by its header",
        "pixels that are not square": "0.7502 x 0.375 mm to a pixel",
    }.items():
        assert words in rows[name]["got"], rows[name]


def test_slices_share_out_the_error_and_the_worst_are_the_worst(folder: Path, told: dict[str, Any]) -> None:
    rows = document(folder, "slices.json")["rows"]
    for names in (physics.LINES, physics.CONDITIONS, (_seal_faults.AGREES, _seal_faults.DISAGREES)):
        cut = [one for one in rows if one["name"] in names]
        mean = sum(one["n"] * one["mean"] for one in cut) / sum(one["n"] for one in cut)
        assert mean == pytest.approx(told["model"]["mae"], rel=1e-6)
    worst = document(folder, "worst.json")["rows"]
    assert worst[0]["error"] == pytest.approx(told["model"]["worst"], rel=1e-6)
    assert len({one["id"][1:].partition("-")[0] for one in worst}) == len(worst)  # of each cap once, copies included
    assert [one["error"] for one in worst] == sorted((one["error"] for one in worst), reverse=True)


def test_the_path_is_timed_call_by_call_and_pictures_are_drawn(folder: Path, told: dict[str, Any]) -> None:
    found = document(folder, "latency.json")
    assert list(found["stages"]) == ["read", "check", "model", "decide"]
    assert found["whole"]["calls"] >= 1000
    assert [one["arm"] for one in document(folder, "nets.json")["rows"]] == ["conv", "mlp"]
    assert all(why is None for why in told["pictures"].values())
    assert all((folder / name).stat().st_size > 5_000 for name in told["pictures"])


def test_one_image_is_answered_from_the_sealed_folder_alone(folder: Path, told: dict[str, Any], tmp_path: Path) -> None:
    crop = tmp_path / "crop.png"
    crop.write_bytes(_seal_image.encode(physics.record(1, 1, 9).images[0]))
    said = command("predict-image", str(crop), "--bundle", str(folder))
    assert (said.exit_code, said.output.startswith("abstain: ")) in ((1, True), (0, False)), said.output
    crop.write_bytes(crop.read_bytes()[:200])
    said = command("predict-image", str(crop), "--bundle", str(folder))
    assert (said.exit_code, "truncated" in said.output) == (1, True), said.output
    absent = command("predict-image", str(tmp_path / "none.png"), "--bundle", str(folder)).exception
    assert isinstance(absent, GradledgerError)
    rules = Path(shutil.copytree(folder, tmp_path / "run")) / _seal_answer.RULES
    rules.write_text(rules.read_text().replace('"alpha": 0.1', '"alpha": 0.2'))
    refused = command("predict-image", str(crop), "--bundle", str(rules.parent)).exception
    assert "answer.json changed" in str(refused)


def test_the_environment_names_data_split_and_who_owns_every_seed(folder: Path, told: dict[str, Any]) -> None:
    found, saved = document(folder, "environment.json"), document(folder, "split.json")
    assert found["data"]["split"] == saved["sha256"]
    assert set(found["derived_seeds"]) == {"weights", "order", "labels", "stop"}
    record = TrialRecord(folder)
    arrays = record.predictions(next(iter(record.latest())))
    sides = np.array(saved["sides"])
    assert set(sides[arrays["at"]]) == {"test"}
    assert set(sides[arrays["cal_at"]]) == {"calibrate"}


def test_the_page_of_results_is_made_from_the_folder(folder: Path, told: dict[str, Any], tmp_path: Path) -> None:
    assert made_page("seal_results", folder, tmp_path / "docs") == 0
    page = (tmp_path / "docs" / "results" / "seal_scout.md").read_text()
    for one in told["trials"]:
        assert f"| {one['arm']} | 0 | finished | {one['mae']:.4f} |" in page
    assert told["plan"] in page
    assert "{{" not in page
    assert {one.name for one in (tmp_path / "docs" / "figures").iterdir()} >= {"seal_leak.png", "seal_worst.png"}
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    (copy / "leaks.json").write_text((copy / "leaks.json").read_text().replace("grouped", "grouqed"))
    assert made_page("seal_results", copy, tmp_path / "none") == 1
    assert not (tmp_path / "none").exists()


# ------------------------------------------------------------------------------------------------------------ the parts


def test_a_receptive_field_is_what_the_gradient_reaches() -> None:
    net = _seal_nets.convolutional((64, 64))[:-1]
    image = torch.zeros(1, 3, 64, 64, requires_grad=True)
    for one in net.modules():
        if isinstance(one, torch.nn.Conv2d):
            torch.nn.init.ones_(one.weight)
        if isinstance(one, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(one.bias)
    net.eval()(image)[0, 0, 4, 4].backward()
    reached = image.grad.abs().sum(dim=(0, 1, 2)).nonzero()
    assert len(reached) == _seal_nets.receptive_field() == 17


def test_a_scout_that_divides_the_light_out_does_not_see_the_lamp() -> None:
    image = torch.rand(4, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    for light, blind in (("normalised", True), ("recorded", False)):
        torch.manual_seed(0)
        scout = Scout("conv", SIZE, PLAIN, light).eval()
        with torch.no_grad():
            same = torch.allclose(scout(image), scout(image * 0.4), atol=1e-5)
        assert same is blind


class Brightness(torch.nn.Module):
    """Says three times the mean grey level over 255, and nothing else: a shortcut alone."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        level = 3 * image.mean(dim=(1, 2, 3))
        return torch.stack([level, torch.full_like(level, 0.1)], dim=1)


def test_the_counterfactual_tells_how_far_the_lamp_alone_moves_an_answer() -> None:
    images = np.full((2, 3, *SIZE), 100, np.uint8)
    moves = _seal_measures.pushed(Brightness(), images)  # type: ignore[arg-type]
    wanted = 3 * (100 * _seal_measures.BRIGHT - 100 * _seal_measures.DARK) / 255
    assert moves == pytest.approx([wanted] * 2, abs=0.01)


def test_a_net_that_reads_the_light_errs_with_what_the_label_does_not_say_of_it() -> None:
    crops = data.load(data.GENERATED, 200, 2, "offset_mm")
    label = crops.recording.offset[:, 0].astype(np.float64)
    cut, groups = _seal_faults.excess(crops), list(crops.recording.burst)
    assert abs(cut.count(_seal_faults.BRIGHTER) / len(cut) - 0.5) < 0.1
    level = np.log(crops.recording.images.astype(np.float64).mean(axis=(1, 2, 3)))
    noise = np.repeat(np.random.default_rng(0).normal(0, 0.1, 1000), 2)[: len(label)]
    for said, found in {
        "to the middle": (0.7 * label, False),
        "by the light": (label + 0.2 * (level - level.mean()), True),
    }.values():
        parts = slices.by_slice(said + noise - label, cut, groups)
        bright, dark = sorted(parts, key=lambda one: one.name)  # "brighter ...", "darker ..."
        assert bright.p is not None
        assert (bright.p < 0.01) is found
        # of what the label leaves of the light: the mean of either half of a normal, times the share that is read
        left = physics.SWING * math.sqrt(1 - physics.CORRELATION**2)
        assert bright.mean - dark.mean == pytest.approx(found * 0.2 * 2 * math.sqrt(2 / math.pi) * left, abs=0.012)


def test_the_gradient_of_the_loss_by_hand() -> None:
    said = torch.tensor([[0.3, 0.5], [1.0, 2.0]], requires_grad=True)
    _seal_nets.loss_of(said, torch.tensor([[0.0], [2.0]]), torch.tensor(1.0)).backward()
    # spread * (0.5 (away / spread)^2 + log spread), the first factor a constant; the mean of two
    wanted = [[0.3 / 0.5, 1 - (0.3 / 0.5) ** 2], [-1.0 / 2.0, 1 - (1.0 / 2.0) ** 2]]
    assert torch.allclose(said.grad, torch.tensor(wanted) / 2, atol=1e-6)


def test_moves_of_a_crop_are_moves() -> None:
    image = torch.arange(3.0 * 6 * 7).reshape(1, 3, 6, 7)
    moved = _seal_answer.moved(image)
    assert torch.equal(moved[0], image[0])
    for (x, y), one in zip(_seal_answer.MOVES, moved, strict=True):
        assert one[0, 3, 3] == image[0, 0, 3 - y, 3 - x]


def test_an_answer_has_its_interval_and_an_abstention_its_reason() -> None:
    contract = data.schema(data.load(data.GENERATED, 40, 3, "offset_mm"))
    raw = _seal_image.encode(physics.record(1, 1, 9).images[0])

    def said(limit: float | None, half_width: float | None) -> _seal_answer.Answer:
        return _seal_answer.answer(Brightness(), contract, Rules(limit, half_width, 0.1, "mm", physics.PITCH), raw)  # type: ignore[arg-type]

    whole = said(0.2, 0.25)
    assert whole.offset is not None
    assert (whole.low, whole.high) == (whole.offset - 0.25, whole.offset + 0.25)
    assert whole.text() == f"offset {whole.offset:+.3f} mm, interval {whole.low:+.3f} to {whole.high:+.3f} mm"
    assert whole.score == pytest.approx(0.1, rel=0.05)
    assert said(0.05, 0.25).text().startswith("abstain: an error of 0.1")
    assert "none keeps the risk" in said(None, 0.25).why
    assert "too few groups" in said(0.2, None).text()
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((3, *SIZE), np.float32))
    assert _seal_answer.answer(Brightness(), contract, Rules(1, 1, 0.1, "mm", None), buffer.getvalue()).offset is None  # type: ignore[arg-type]


def test_the_interval_of_a_leak_draws_seeds_and_caps() -> None:
    rng = np.random.default_rng(0)
    counts = np.full(60, 3.0)
    base = rng.gamma(4, 0.1, 60)
    same = np.stack([counts * base] * 3), counts
    none = _seal_faults._gap("m", same, same)
    assert (none.leak, none.low, none.high) == (0, 0, 0)
    other = np.stack([counts * (0.5 * base + 0.01 * k) for k in range(3)]), counts
    found = _seal_faults._gap("m", same, other)
    assert found.leak == pytest.approx(base.mean() - (0.5 * base + 0.01).mean())
    wanted = math.hypot(0.5 * base.std() / math.sqrt(60), 0.01 * math.sqrt(2 / 3) / math.sqrt(3))
    assert (found.high - found.low) / 3.92 == pytest.approx(wanted, rel=0.15)
    assert _seal_faults._gap("m", (same[0][:2], counts), (other[0][:2], counts)).low is None
