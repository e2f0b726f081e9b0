"""Augmentations that stay physically true: the target moves with the picture, the amounts are bounded and stated.

Each takes a sample (a mapping of arrays) and a generator and returns a new sample; what it is given stays as it is.
With `loader.Loader(randomness="generator")` the generator is a function of (rng_seed, epoch, index).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradledger.data.errors import DataError
from gradledger.data.groups import content_hash
from gradledger.data.schema import Schema

Sample = Mapping[str, Any]


class Augmentation(Protocol):
    """One random change of a sample."""

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Compose:
    """One after the other, each with the chance beside it; the draws do not depend on which of them happened."""

    steps: tuple[tuple[Augmentation, float], ...]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """A new sample."""
        changed = dict(sample)
        for step, chance in self.steps:
            own = np.random.Generator(np.random.Philox(key=int(rng.integers(2**63))))
            if own.random() < chance:
                changed = step(changed, own)
        return changed


@dataclass(frozen=True)
class Shift:
    """Move an image [C, H, W] by whole pixels, and the target with it.

    pixels: largest shift along each axis. field: the image. target: a field (..., 2) of positions (x right, y down) in
    the unit of `unit_per_pixel`, which moves along; "" only where the label truly does not depend on position. Rows
    and columns that come in are copies of the edge, so no colour appears that was not there.
    """

    pixels: int
    field: str = "image"
    target: str = ""
    unit_per_pixel: float = 1.0

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """A new sample."""
        image = _image(sample, self.field, "Shift")
        dx, dy = (int(step) for step in rng.integers(-self.pixels, self.pixels + 1, 2))
        height, width = image.shape[-2:]
        rows = np.clip(np.arange(height) - dy, 0, height - 1)
        columns = np.clip(np.arange(width) - dx, 0, width - 1)
        changed = {**sample, self.field: image[..., rows, :][..., columns].copy()}
        if self.target:
            move = np.array([dx, dy]) * self.unit_per_pixel
            target = _position(sample, self.target, "Shift")
            changed[self.target] = (target + move).astype(target.dtype)
        return changed


@dataclass(frozen=True)
class Mirror:
    """Flip an image left to right, and everything that has a side with it.

    negate: field -> entries that change sign (x of an offset, the angle about the viewing axis). swap: field -> pairs
    of entries that change places (left and right joint). A scene that is not symmetric (writing, a right-handed tool)
    must not be mirrored at all.
    """

    field: str = "image"
    negate: tuple[tuple[str, tuple[int, ...]], ...] = ()
    swap: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """A new sample, mirrored: the chance is in `Compose`."""
        changed = {**sample, self.field: _image(sample, self.field, "Mirror")[..., ::-1].copy()}
        for name, entries in self.negate:
            values = np.array(_numbers(sample, name, "Mirror"))
            values[..., list(entries)] *= -1
            changed[name] = values
        for name, pairs in self.swap:
            values = np.array(_numbers(changed, name, "Mirror"))
            for a, b in pairs:
                values[..., [a, b]] = values[..., [b, a]]
            changed[name] = values
        return changed


@dataclass(frozen=True)
class Light:
    """Exposure and colour of the light, for an image [C, H, W] of floats in [0, 1].

    gain: largest factor, drawn log-uniformly in [1/gain, gain]. tint: largest relative gain of single channels; keep it
    small where a colour decides the class. The result is clipped to [0, 1], as a camera does.
    """

    gain: float = 1.2
    tint: float = 0.05
    field: str = "image"

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """A new sample."""
        image = _unit_image(sample, self.field, "Light")
        factor = np.exp(rng.uniform(-np.log(self.gain), np.log(self.gain)))
        channels = 1.0 + rng.uniform(-self.tint, self.tint, (image.shape[-3], 1, 1))
        return {**sample, self.field: np.clip(image * factor * channels, 0.0, 1.0).astype(image.dtype)}


@dataclass(frozen=True)
class Noise:
    """Gaussian sensor noise: sigma in the unit of the field, or one number an entry of its last axis.

    bounds: clip to them, such as (0, 1) for an image; None leaves it.
    """

    sigma: float | tuple[float, ...]
    field: str
    bounds: tuple[float, float] | None = None

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """A new sample."""
        values = _numbers(sample, self.field, "Noise")
        if values.dtype.kind != "f":
            raise _bad(f"{self.field} as {values.dtype}", "floats: noise on whole numbers is cut off", "Noise")
        noisy = values + np.asarray(self.sigma) * rng.normal(size=values.shape)
        if self.bounds is not None:
            noisy = np.clip(noisy, *self.bounds)
        return {**sample, self.field: noisy.astype(values.dtype)}


@dataclass(frozen=True)
class Patch:
    """Cover one rectangle with the image's mean colour, as dirt or a hand does; at most `share` of the area.

    avoid: a field with the position (x, y) in pixels that must stay visible; "" to cover anything.
    """

    share: float = 0.05
    field: str = "image"
    avoid: str = ""

    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        """A new sample; the same picture again where no place was found in ten tries."""
        image = _image(sample, self.field, "Patch").copy()
        height, width = image.shape[-2:]
        high = max(1, int(height * np.sqrt(self.share)))
        wide = max(1, int(width * np.sqrt(self.share)))
        for _ in range(10):
            top, left = int(rng.integers(0, height - high + 1)), int(rng.integers(0, width - wide + 1))
            if self.avoid:
                x, y = _position(sample, self.avoid, "Patch")
                if left <= x < left + wide and top <= y < top + high:
                    continue
            image[..., top : top + high, left : left + wide] = image.mean(axis=(-2, -1), keepdims=True)
            break
        return {**sample, self.field: image}


def implausible(
    augment: Augmentation, samples: Sequence[Sample], schema: Schema, *, draws: int = 16, rng_seed: int = 0
) -> list[str]:
    """What an augmentation does wrong on real samples.

    [] when each draw is repeatable, leaves its input alone and keeps the schema.

    Args:
        samples: single samples. schema: of batches of them; each draw over all samples is checked as one batch.
    """
    found: dict[str, None] = {}
    for draw in range(draws):
        batch: list[dict[str, Any]] = []
        for at, sample in enumerate(samples):
            before = content_hash(sample)
            batch.append(augment(sample, np.random.default_rng([rng_seed, draw, at])))
            again = augment(sample, np.random.default_rng([rng_seed, draw, at]))
            if content_hash(sample) != before:
                found["it changes the sample it is given"] = None
            if content_hash(again) != content_hash(batch[-1]):
                found["one generator gives two results: it draws from somewhere else too"] = None
        stacked = {name: np.stack([np.asarray(one[name]) for one in batch]) for name in batch[0]}
        for violation in schema.check(stacked):
            found[f"draw {draw}: {violation}"] = None
    return list(found)


def _numbers(sample: Sample, name: str, where: str) -> NDArray[Any]:
    if name not in sample:
        raise _bad(f"no field {name!r}", f"one of {', '.join(sorted(sample))}", where)
    return np.asarray(sample[name])


def _image(sample: Sample, name: str, where: str) -> NDArray[Any]:
    image = _numbers(sample, name, where)
    if image.ndim != 3 or image.shape[0] not in (1, 3, 4):
        raise _bad(f"{name} of shape {list(image.shape)}", "[C, H, W] with 1, 3 or 4 channels", where)
    return image


def _unit_image(sample: Sample, name: str, where: str) -> NDArray[Any]:
    image = _image(sample, name, where)
    if image.dtype.kind != "f" or image.min() < 0 or image.max() > 1:
        raise _bad(f"{name} as {image.dtype} in [{image.min():g}, {image.max():g}]", "floats in [0, 1]", where)
    return image


def _position(sample: Sample, name: str, where: str) -> NDArray[Any]:
    values = _numbers(sample, name, where)
    if values.shape[-1:] != (2,) or values.dtype.kind != "f":
        raise _bad(f"{name} as {values.dtype} {list(values.shape)}", "floats (..., 2): x right, y down", where)
    return values


def _bad(got: str, wanted: str, where: str) -> DataError:
    return DataError(
        got=got, wanted=wanted, where=f"augment.{where}", next_step="name the right field or transform first"
    )
