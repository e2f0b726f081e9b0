"""Transforms and augmentations: pure, invertible, true to what they claim, and clear about what they saw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.build import seal_batch, seal_schema
from gradledger.data import transform
from gradledger.data.augment import Compose, Light, Mirror, Noise, Patch, Shift, implausible
from gradledger.data.errors import DataError
from gradledger.data.groups import content_hash
from gradledger.data.loader import Loader
from gradledger.data.manifest import record
from gradledger.data.split import split
from gradledger.data.transform import Standardise, fit, fit_side, require_fitted_on


def manifest() -> Any:
    keys = {"episode": [at // 4 for at in range(200)]}
    return record(split(keys, shares={"train": 0.7, "test": 0.3}), range(200), keys)


def test_statistics_know_what_they_were_fitted_on(tmp_path: Path) -> None:
    one = manifest()
    values = np.random.default_rng(0).normal(3, 2, (200, 5))
    mine = fit_side(one, values)
    np.testing.assert_allclose(mine.mean, values[one.indices("train")].mean(0))
    require_fitted_on(mine, one)
    for leaky in (fit(values), fit(values, ids=[str(at) for at in range(200)]), fit_side(one, values, side="test")):
        with pytest.raises(DataError, match="of train and of no other"):
            require_fitted_on(leaky, one)
    transform.write({"pose": mine}, tmp_path / "statistics.json")
    assert transform.read(tmp_path / "statistics.json") == {"pose": mine}
    (tmp_path / "statistics.json").write_text("{}")
    with pytest.raises(DataError, match="KeyError"):
        transform.read(tmp_path / "statistics.json")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.floats(-1e3, 1e3), st.floats(0, 10), st.integers(0, 99))
def test_merged_statistics_are_those_of_everything(a: int, b: int, shift: float, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(a, 3)), shift + scale * rng.normal(size=(b, 3))
    got, wanted = fit(one).merged(fit(other)), fit(np.concatenate([one, other]))
    for name in ("mean", "std", "low", "high"):
        np.testing.assert_allclose(getattr(got, name), getattr(wanted, name), rtol=1e-9, atol=1e-9)
    assert got.count == a + b


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_standardise_and_back(kind: str) -> None:
    values: Any = np.random.default_rng(0).normal(3, 2, (50, 4)).astype(np.float32)
    values[:, 2] = 7.0
    step = Standardise(fit(values))
    if kind == "torch":
        values = torch.from_numpy(values.copy())
    before = content_hash(values)
    got = step.apply(values)
    assert got.dtype == values.dtype
    assert content_hash(values) == before
    assert abs(float(got.mean())) < 1e-5
    assert not np.asarray(got[:, 2]).any()
    np.testing.assert_allclose(np.asarray(step.invert(got)), np.asarray(values), rtol=1e-5)
    images = np.random.default_rng(0).random((20, 3, 4, 4))
    colours = Standardise(fit(images, axes=(0, 2, 3)), axes=(1,))
    np.testing.assert_allclose(colours.apply(images).mean(axis=(0, 2, 3)), 0, atol=1e-12)
    with pytest.raises(DataError, match=r"floats with \[3\] along axes \(1,\)"):
        colours.apply(np.moveaxis(images, 1, -1))
    with pytest.raises(DataError, match="int64"):
        step.apply(np.zeros((5, 4), np.int64))


def test_images_and_angles() -> None:
    image = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3)).astype(np.uint8)
    for one in (image, torch.from_numpy(image)):
        scaled = transform.channels_first(transform.bytes_to_unit(one))
        assert tuple(scaled.shape) == (4, 3, 6, 5)
        np.testing.assert_array_equal(np.asarray(scaled[1, 2]), image[1, :, :, 2].astype(np.float32) / 255)
        with pytest.raises(DataError, match="wanted uint8"):
            transform.bytes_to_unit(scaled)
        with pytest.raises(DataError, match="channels_first"):
            transform.channels_first(scaled)
    angles = np.random.default_rng(0).uniform(-np.pi, np.pi, (7, 3))
    np.testing.assert_allclose(transform.circle_to_angles(transform.angles_to_circle(angles)), angles)
    tensor = torch.from_numpy(angles)
    torch.testing.assert_close(transform.circle_to_angles(2 * transform.angles_to_circle(tensor)), tensor)
    with pytest.raises(DataError, match="an even last axis"):
        transform.circle_to_angles(angles)


def test_what_cannot_be_fitted() -> None:
    for values, says in (
        (np.zeros((0, 3)), "at least one sample"),
        (np.full((4, 2), np.nan), "2 entries without any number"),
        (np.full((4, 2), np.inf), "8 Inf"),
    ):
        with pytest.raises(DataError, match=says):
            fit(values)
    assert fit(np.full((3, 1), 0.1)).std == (0.0,)
    with pytest.raises(DataError, match="equal shapes"):
        fit(np.zeros((3, 2))).merged(fit(np.zeros((3, 1))))
    with pytest.raises(DataError, match="2 ids"):
        fit(np.zeros((3, 2)), ids=["a", "b"])


def crops(count: int = 12) -> list[dict[str, Any]]:
    batch = seal_batch(count)
    return [{name: values[at] for name, values in batch.items()} for at in range(count)]


WHOLE = Compose(
    (
        (Shift(2, target="offset", unit_per_pixel=0.5), 1.0),
        (Mirror(negate=(("offset", (0,)),)), 0.5),
        (Light(), 0.8),
        (Noise(0.01, "image", (0.0, 1.0)), 1.0),
        (Patch(0.1), 0.3),
    )
)


def test_plausible_augmentations() -> None:
    assert implausible(WHOLE, crops(), seal_schema()) == []
    assert len({content_hash(WHOLE(crops(1)[0], np.random.default_rng(seed))) for seed in range(50)}) == 50


def test_a_shift_moves_the_target_with_the_picture() -> None:
    """A single bright pixel says where it is."""
    for seed in range(20):
        image = np.zeros((1, 9, 9), np.float32)
        image[0, 4, 5] = 1.0
        sample = {"image": image, "offset": np.array([5.0, 4.0], np.float32)}
        moved = Shift(3, target="offset")(sample, np.random.default_rng(seed))
        y, x = np.argwhere(moved["image"][0])[0]
        assert moved["offset"].tolist() == [x, y]
        mirrored = Mirror(negate=(("offset", (0,)),), swap=(("pair", ((0, 1),)),))
        flipped = mirrored(
            {**sample, "offset": np.array([1.0, 0.0]), "pair": np.array([1, 2])}, np.random.default_rng(0)
        )
        y, x = np.argwhere(flipped["image"][0])[0]
        assert (x - 4, y - 4) == (-1, 0)
        assert flipped["offset"].tolist() == [-1.0, 0.0]
        assert flipped["pair"].tolist() == [2, 1]


def test_a_patch_leaves_what_must_be_seen() -> None:
    image = np.random.default_rng(0).random((3, 20, 20))
    sample = {"image": image, "at": np.array([10.0, 7.0])}
    for seed in range(200):
        covered = Patch(0.2, avoid="at")(sample, np.random.default_rng(seed))["image"]
        assert np.array_equal(covered[:, 7, 10], image[:, 7, 10])
        assert 0.1 < np.mean(covered != image) <= 0.2


def test_implausible_ones_are_found() -> None:
    def in_place(sample: Any, rng: Any) -> Any:
        sample["offset"] += rng.normal()
        return dict(sample)

    assert "it changes the sample it is given" in implausible(in_place, crops(), seal_schema())

    def elsewhere(sample: Any, rng: Any) -> Any:
        return {**sample, "offset": (sample["offset"] * np.random.random()).astype(np.float32)}

    assert any("draws from somewhere else" in text for text in implausible(elsewhere, crops(), seal_schema()))
    far = Shift(8, target="offset", unit_per_pixel=2.0)
    assert any("offset" in text and "wanted [-8, 8] mm" in text for text in implausible(far, crops(), seal_schema()))
    bright = replace(Noise(0.5, "image"), bounds=None)
    assert any("wanted [0, 1]" in text for text in implausible(bright, crops(), seal_schema()))


def test_refusals() -> None:
    rng = np.random.default_rng(0)
    hwc = {"image": np.zeros((8, 8, 3), np.float32), "label": np.array([1, 2])}
    for step, says in (
        (Shift(1), r"image of shape \[8, 8, 3\]"),
        (Light(), r"\[C, H, W\]"),
        (Noise(0.1, "label"), "noise on whole numbers"),
        (Noise(0.1, "nothing"), "no field 'nothing'"),
        (Shift(1, field="chw", target="label"), "x right, y down"),
    ):
        with pytest.raises(DataError, match=says):
            step({**hwc, "chw": np.zeros((3, 8, 8))}, rng)
    with pytest.raises(DataError, match=r"floats in \[0, 1\]"):
        Light()({"image": np.full((3, 4, 4), 200, np.uint8)}, rng)


class Augmented:
    """The bridge to the loader."""

    def __init__(self) -> None:
        self.samples = crops(10)

    def __len__(self) -> int:
        return 10

    def draw(self, index: int, rng: np.random.Generator) -> Any:
        return WHOLE(self.samples[index], rng)


def test_augmentation_is_the_same_in_any_worker() -> None:
    def batches(workers: int) -> list[str]:
        loader = Loader(Augmented(), batch_size=4, rng_seed=0, randomness="generator", num_workers=workers)
        return [content_hash(batch) for _ in range(2) for batch in loader]

    assert batches(0) == batches(2)
    assert len(set(batches(0))) == 6
