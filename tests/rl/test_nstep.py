"""n-step windows against a loop in plain floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.rl.errors import ReplayError
from gradledger.rl.nstep import window


def by_hand(rewards: list[float], terminated: list[bool], truncated: list[bool], gamma: float):
    total, power = 0.0, 1.0
    for k, reward in enumerate(rewards):
        total += power * reward
        power *= gamma
        if terminated[k]:
            return total, 0.0, k + 1, True, False
        if truncated[k]:
            return total, power, k + 1, False, True
    return total, power, len(rewards), False, False


STEP = st.tuples(st.floats(-9, 9, width=32), st.booleans(), st.booleans())


@given(
    st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(STEP, min_size=n, max_size=n), min_size=1)), st.floats(0, 1)
)
@settings(max_examples=200, deadline=None)
def test_windows_equal_the_loop(batch: list[list[tuple[float, bool, bool]]], gamma: float) -> None:
    rewards, terminated, truncated = (np.array([[step[i] for step in row] for row in batch]) for i in range(3))
    folded = window(rewards, terminated, truncated, gamma=gamma)
    for b, row in enumerate(batch):
        total, discount, length, stopped, left = by_hand(*map(list, zip(*row, strict=True)), gamma)
        assert folded.reward[b] == pytest.approx(total, rel=1e-6, abs=1e-6)
        assert folded.discount[b] == pytest.approx(discount, rel=1e-6)
        assert (folded.length[b], folded.terminated[b], folded.truncated[b]) == (length, stopped, left)


def test_nothing_behind_the_end_is_read_not_even_nan() -> None:
    over = np.array([[False, True, False]])
    none = np.zeros_like(over)
    folded = window(np.array([[1.0, 2.0, np.nan]]), over, none, gamma=0.5)
    assert folded.reward.tolist() == [2.0]
    assert folded.discount.tolist() == [0.0]
    assert window(np.array([[1.0, 2.0, np.inf]]), none, over, gamma=0.5).discount.tolist() == [0.25]


def test_both_flags_at_once_count_as_a_termination() -> None:
    over = np.array([[True]])
    folded = window(np.array([[1.0]]), over, over, gamma=0.9)
    assert (folded.discount[0], folded.terminated[0], folded.truncated[0]) == (0.0, True, False)


@pytest.mark.parametrize("shape", [(3,), (3, 0)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    flags = np.zeros(shape, dtype=bool)
    with pytest.raises(ReplayError, match=r"wanted three arrays of one shape \(B, n\)"):
        window(np.zeros(shape), flags, flags, gamma=0.9)


def test_a_discount_above_one_is_refused() -> None:
    flags = np.zeros((1, 1), dtype=bool)
    with pytest.raises(ReplayError, match=r"gamma=1\.5"):
        window(np.zeros((1, 1)), flags, flags, gamma=1.5)
