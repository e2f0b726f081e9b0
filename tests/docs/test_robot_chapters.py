"""The chapters of the two robot experiments: what they say is printed is printed, and their sketches run."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradledger.recipes import _seal_data
from gradledger.recipes.seal_scout import experiment
from page_blocks import ROOT, Block, blocks

CELLS, MODULES = 24, 22  # of a generated folder in the layout of elpv-dataset


def of(page: str) -> list[Block]:
    return blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), page=page)


def run(block: Block, folder: Path) -> str:
    """What a block prints when it is run in a folder."""
    out, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, f"{block.page}:{block.line}", "exec"), {"__name__": "__main__"})
    finally:
        os.chdir(before)
    return out.getvalue()


@pytest.mark.parametrize("page", ["seal_scout.md", "arm6_policy.md"])
def test_what_a_chapter_says_is_printed_is_printed(page: str, tmp_path: Path) -> None:
    found = of(page)
    wanted = "".join(block.text for block in found if "printed" in block.flags)
    said = "".join(run(block, tmp_path) for block in found if block.language == "python")
    assert wanted
    assert said == wanted


def elpv(folder: Path) -> None:
    """labels.csv and grey PNG files of 300 x 300 pixels, as the published data set has them; the cells are made up."""
    (folder / "images").mkdir(parents=True)
    rng, lines = np.random.default_rng(0), []
    for number in range(CELLS * MODULES):
        sure = float(rng.choice([0, 1 / 3, 2 / 3, 1]))
        cell = rng.normal(120, 8, (30, 30))
        dark = int(4 + 10 * sure)
        x, y = rng.integers(0, 30 - dark, 2)
        cell[y : y + dark, x : x + dark] *= 1 - 0.7 * sure
        name = f"images/cell{3 * number + 1:04d}.png"
        pixels = np.kron(np.clip(cell, 0, 255).astype(np.uint8), np.ones((10, 10), np.uint8))
        Image.fromarray(pixels).save(folder / name, compress_level=1)
        lines.append(f"{name}  {sure}   {'mono' if number % 2 else 'poly'}\n")
    (folder / "labels.csv").write_text("".join(lines))


def test_the_sketch_for_elpv_dataset_makes_a_folder_that_is_learned_from(tmp_path: Path) -> None:
    elpv(tmp_path / "elpv-dataset" / "src" / "elpv_dataset" / "data")
    (sketch,) = (block for block in of("seal_scout.md") if "labels.csv" in block.text)
    assert not sketch.runs  # there is nothing of it in a clone
    run(sketch, tmp_path)
    config = {
        "data": str(tmp_path / "runs" / "elpv_crops"), "target": "defect_probability", "bursts": 0, "frames": 0,
        "net": "conv", "split": "burst", "light": "recorded", "augment": False, "labels": "measured", "epochs": 4,
        "interrupt": False, "risk": 0.1, "alpha": 0.1,
    }  # fmt: skip
    data = _seal_data.load(*_seal_data.named(config))
    _seal_data.require_enough(data)
    recording = data.recording
    assert (data.unit, recording.images.shape) == ("probability", (CELLS * MODULES, 3, 28, 32))
    assert len(set(recording.burst)) == MODULES
    assert set(recording.line) == {"mono", "poly"}
    assert sorted({round(float(one), 3) for one in recording.offset[:, 0]}) == [0, 0.333, 0.667, 1]
    assert experiment(config, 0).quantities["share_of_mean"] < 0.8
