"""Three schemas as a robot cell has them, and good batches of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradledger.data.schema import Field, Schema

Batch = dict[str, Any]


def seal_schema() -> Schema:
    """Camera crops of a seal, its measured offset, its class."""
    return Schema(
        "seal crops",
        (
            Field(
                "image",
                ("B", "C", "H", "W"),
                (None, 3, 16, 16),
                "float32",
                "1",
                "camera",
                0.0,
                1.0,
                channel="C",
                role="image",
            ),
            Field("offset", ("B", "A"), (None, 2), "float32", "mm", "cap", -8.0, 8.0, channel="A"),
            Field("label", ("B",), (None,), "int64", low=0, high=2, role="label"),
        ),
    )


def seal_batch(samples: int = 32, seed: int = 0) -> Batch:
    """Reddish crops: red is brighter than blue in each."""
    rng = np.random.default_rng(seed)
    light = rng.uniform(0.6, 1.0, (samples, 1, 1, 1))
    tint = np.array([0.7, 0.5, 0.3]).reshape(1, 3, 1, 1)
    image = light * tint + rng.normal(0, 0.05, (samples, 3, 16, 16))
    return {
        "image": np.clip(image, 0, 1).astype(np.float32),
        "offset": np.clip(rng.normal((2.0, -1.0), 1.0, (samples, 2)), -8, 8).astype(np.float32),
        "label": rng.integers(0, 3, samples),
    }


def arm_schema() -> Schema:
    """Windows of an arm's joints; time and joints have the same size, so that a swap keeps the shape."""
    return Schema(
        "arm windows",
        (
            Field("joints", ("B", "T", "A"), (None, 6, 6), "float32", "rad", "base", -3.2, 3.2, channel="A"),
            Field("tool", ("B", "T", "X"), (None, 6, 3), "float32", "m", "base", -1.5, 1.5, channel="X"),
            Field("time", ("B", "T"), (None, 6), "float64", "s", role="time", low=0.0, max_gap=0.15, max_age=5.0),
            Field("force", ("B", "T"), (None, 6), "float32", "N", missing="mask", mask="touching"),
            Field("touching", ("B", "T"), (None, 6), "bool", constant_ok=True),
        ),
    )


def arm_batch(samples: int = 32, seed: int = 0) -> Batch:
    """Each joint has a middle of its own, as arms have."""
    rng = np.random.default_rng(seed)
    middle = np.array([0.0, -1.2, 1.6, -0.4, 1.0, 0.3])
    joints = middle + rng.normal(0, 0.2, (samples, 1, 6)) + rng.normal(0, 0.02, (samples, 6, 6))
    tool = np.array([0.4, 0.0, 0.3]) + rng.normal(0, 0.1, (samples, 6, 3))
    time = rng.uniform(0, 100, (samples, 1)) + 0.1 * np.arange(6)
    touching = rng.random((samples, 6)) < 0.7
    force = np.where(touching, rng.normal(5, 1, (samples, 6)), np.nan)
    return {
        "joints": joints.astype(np.float32),
        "tool": tool.astype(np.float32),
        "time": time,
        "force": force.astype(np.float32),
        "touching": touching,
    }


def bin_schema() -> Schema:
    """Raw bytes of a camera, a pose in degrees and mm, with gaps in one sensor."""
    return Schema(
        "bin picking",
        (
            Field(
                "raw", ("B", "H", "W", "C"), (None, 12, 10, 3), "uint8", "1", "wrist", 0, 255, channel="C", role="image"
            ),
            Field("height", ("B",), (None,), "float32", "mm", "table", 0.0, 900.0),
            Field("angle", ("B", "A"), (None, 3), "float32", "deg", "table", -180.0, 180.0, channel="A"),
            Field("range", ("B", "R"), (None, 4), "float32", "m", low=0.0, high=4.0, missing="nan", max_missing=0.5),
            Field("success", ("B",), (None,), "int64", low=0, high=1, role="label"),
        ),
        allow_extra=True,
    )


def bin_batch(samples: int = 32, seed: int = 0) -> Batch:
    """Bluish bytes; a tenth of the ranges is missing."""
    rng = np.random.default_rng(seed)
    raw = np.array([60, 90, 170]) + rng.normal(0, 12, (samples, 12, 10, 3)) + rng.normal(0, 10, (samples, 1, 1, 1))
    far = rng.uniform(0.2, 3.5, (samples, 4))
    far[rng.random((samples, 4)) < 0.1] = np.nan
    return {
        "raw": np.clip(raw, 0, 255).astype(np.uint8),
        "height": rng.uniform(200, 700, samples).astype(np.float32),
        "angle": (np.array([40.0, -60.0, 90.0]) + rng.normal(0, 15, (samples, 3))).astype(np.float32),
        "range": far.astype(np.float32),
        "success": rng.integers(0, 2, samples),
    }


CASES = {"seal": (seal_schema, seal_batch), "arm": (arm_schema, arm_batch), "bin": (bin_schema, bin_batch)}
