"""Nearest rows of a table: those that stand beside each other along a trajectory say nothing."""

from __future__ import annotations

import numpy as np

from gradledger.ledger._regress import near, scaled


def test_rows_along_a_trajectory_are_no_nearest_rows() -> None:
    """A target that drifts slowly looks determined by any slow input, unless neighbours in time are left out."""
    t = np.linspace(0, 40 * np.pi, 1000)
    x = scaled(np.stack([np.cos(t), np.sin(t)], 1))
    drift = scaled(np.linspace(0, 1, 1000)[:, None])  # the same places, another target at each turn
    found = near(x, drift)
    assert found.close
    assert found.apart[0] > 0.05
    beside = ((drift[1:] - drift[:-1]) ** 2).mean() / 2
    assert beside < 1e-5  # what the rows beside each other would have said


def test_a_function_is_one_wherever_its_rows_stand() -> None:
    t = np.linspace(0, 40 * np.pi, 1000)
    x = scaled(np.stack([np.cos(t), np.sin(t)], 1))
    found = near(x, scaled((x[:, :1] * 2 + x[:, 1:]) / 3))
    assert found.close
    assert found.apart[0] < 0.01
    assert found.branches == (False,)


def test_two_trajectories_that_cross_are_two_branches() -> None:
    """The inverse of a fold: at every place one of two values, whatever the order of the rows."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1000, 1))
    y = np.where(rng.random((1000, 1)) < 0.5, 1.0, -1.0) * (2 + x)
    found = near(scaled(x), scaled(y))
    assert found.close
    assert found.branches == (True,)
