"""Every number of the gradient lab, to the printed digits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradledger.recipes import _lab_gradients as lab

PRINTED: dict[str, Any] = {
    "hand.loss": 9.0,
    "hand.weight_grad": [[3.0, 3.0]] * 3,
    "hand.bias_grad": [[3.0, 3.0]],
    "completion.loss": 2.0,
    "completion.weight_grad": [[4.0, 0.0], [0.0, 0.0], [2.0, 0.0]],
    "numerical.loss": 17.0,
    "numerical.weight_grad": [[3.0, 5.0], [3.0, 5.0]],
    "scalar.grad": -4.0,
    "detach.shares": True,
    "clone.shares": False,
    "detach.write_arrives": True,
    "clone.write_arrives": False,
    "h3.frozen.detached.drift": 0.0,
    "h3.frozen.attached.drift": 0.0,
    "h3.trained.detached.drift": 0.0,
    "h3.frozen.detached.has_grad": False,
    "h3.frozen.attached.has_grad": False,
    "h3.trained.detached.has_grad": False,
    "h3.trained.attached.has_grad": True,
}
ROUNDED = {
    "hand.weight_grad_norm": (7.3485, 4),
    "scalar.central_difference": (-4.0, 9),
    "h1.norm": (0.764189, 6),
    "h2.norm_without_clear": (1.2994, 4),
    "h2.norm_with_clear": (0.7420, 4),
    "h2.ratio": (1.7511, 4),
    "h3.trained.attached.drift": (0.423201, 6),
    "h4.ratio": (2.0, 4),
    "break2.without_clear": (0.8660, 4),
    "break2.with_clear": (1.3056, 4),
}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return lab.everything()


def test_the_numbers_are_those_of_the_lab(measured: dict[str, Any]) -> None:
    assert {name: measured[name] for name in PRINTED} == PRINTED
    assert {name: round(measured[name], digits) for name, (_, digits) in ROUNDED.items()} == {
        name: value for name, (value, _) in ROUNDED.items()
    }
    assert measured["hand.weight_grad_norm"] == pytest.approx(3 * math.sqrt(6), abs=1e-6)
    assert measured["h1.closed_form_distance"] < 1e-6
    assert "scalar outputs" in measured["break1.error"]
    assert PRINTED.keys() | ROUNDED.keys() | {"h1.closed_form_distance", "break1.error"} == measured.keys()
