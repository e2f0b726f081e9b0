"""Leaks as numbers: on scikit-learn's digits, on bursts with a known leak, and silence where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from gradledger.data.errors import DataError, SplitError
from gradledger.data.leaks import blocks, burst_test, group_control, twins
from gradledger.data.manifest import record
from gradledger.data.split import split

DIGITS, DIGIT = load_digits(return_X_y=True)


def test_digits_were_written_in_bursts() -> None:
    """1,797 digits in the order of their writers."""
    got = burst_test(DIGITS, standardise=False, windows=[130])
    assert got.found
    (window,) = got.windows
    assert 0.54 < window.share < 0.62
    assert 0.13 < window.chance < 0.15
    assert burst_test(DIGITS).found
    assert burst_test(DIGITS, labels=DIGIT.tolist()).found
    assert str(got).startswith("bursts: a random split leaks; 5")


def test_silent_on_shuffled_digits() -> None:
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(DIGITS))
        assert not burst_test(DIGITS[order]).found


def garments(count: int = 3000, seed: int = 0) -> tuple[Any, Any]:
    """Independent samples of ten classes in 64 dimensions with few directions of variation, as pictures have."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 10, count)
    middle, ways = 2 * rng.normal(size=(10, 64)), rng.normal(size=(12, 64))
    return middle[label] + rng.normal(size=(count, 12)) @ ways + 0.3 * rng.normal(size=(count, 64)), label


def test_silent_on_independent_data() -> None:
    for seed in range(3):
        values, label = garments(seed=seed)
        got = burst_test(values)
        assert not got.found
        assert all(abs(window.share - window.chance) < 0.02 for window in got.windows)
        leak = group_control(values[:800], label[:800], blocks(800, 50), repeats=2)
        assert not leak.found


def test_a_file_sorted_by_class_is_no_burst_once_labels_are_known() -> None:
    values, label = garments()
    order = np.argsort(label, kind="stable")
    assert burst_test(values[order]).found
    assert not burst_test(values[order], labels=label[order].tolist()).found


def known_bursts(kinship: float, seed: int = 0) -> tuple[Any, Any, list[int]]:
    """60 bursts of 20 frames; the class belongs to the burst, and frames share what the burst looks like."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 4, 60)
    look = rng.normal(size=(60, 12))
    burst = np.repeat(np.arange(60), 20)
    values = (
        0.35 * np.eye(12)[label[burst]] + kinship * look[burst] + np.sqrt(1 - kinship**2) * rng.normal(size=(1200, 12))
    )
    return values, label[burst], burst.tolist()


def test_the_leak_of_known_bursts_is_the_number_that_is_printed() -> None:
    """Without kinship the two splits agree; with it the random one looks near perfect and the whole groups do not."""
    values, label, burst = known_bursts(0.0)
    none = group_control(values, label, burst)
    assert not none.found
    assert abs(none.leak) < 0.06
    values, label, burst = known_bursts(0.95)
    much = group_control(values, label, burst)
    assert much.found
    assert much.random < 0.02
    # Four classes, looks that say nothing of the class: whole groups are near chance, 75 % error.
    assert 0.55 < much.grouped < 0.85
    assert f"leak {much.leak:+.4f}" in str(much)
    assert burst_test(values).found


def test_the_leak_on_digits() -> None:
    got = group_control(DIGITS, DIGIT, blocks(len(DIGITS), 130), standardise=False, repeats=2)
    assert got.found
    assert 1.9 < got.grouped / got.random < 3.2
    order = np.random.default_rng(0).permutation(len(DIGITS))
    assert not group_control(DIGITS[order], DIGIT[order], blocks(len(DIGITS), 130), repeats=2).found


def test_a_sample_of_whole_groups_tells_the_same() -> None:
    values, label, burst = known_bursts(0.95)
    got = group_control(values, label, burst, rows=400)
    assert got.groups < 30
    assert got.found
    few = group_control(values, label, [one // 4 for one in burst], rows=100)
    assert few.groups == 10


def test_values_as_targets() -> None:
    rng = np.random.default_rng(0)
    burst = np.repeat(np.arange(40), 15)
    look = rng.normal(size=(40, 5))
    values = look[burst] + 0.05 * rng.normal(size=(600, 5))
    target = rng.normal(size=(40, 2))[burst]
    got = group_control(values, target, burst.tolist(), task="values")
    assert got.found
    assert got.random < 0.05
    assert got.grouped > 0.8


def test_near_twins_across_sides() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 6))
    rows[1::2] = rows[::2] + 1e-3
    keys = {"id": list(range(400))}
    leaky = record(split(keys, shares={"train": 0.7, "test": 0.3}), range(400), keys)
    (text,) = twins(leaky, rows)
    assert "samples of test have a near twin in train" in text
    pairs = {"pair": [at // 2 for at in range(400)]}
    clean = record(split(pairs, shares={"train": 0.7, "test": 0.3}), range(400), pairs)
    assert twins(clean, rows) == []
    with pytest.raises(SplitError, match="got 10 rows, wanted the 400 samples"):
        twins(clean, rows[:10])


def test_refusals() -> None:
    with pytest.raises(SplitError, match="wanted at least 50 rows"):
        burst_test(np.zeros((10, 2)))
    with pytest.raises(DataError, match="1 NaN or Inf, the first in row 3"):
        burst_test(np.where(np.arange(100)[:, None] == 3, np.nan, 1.0))
    with pytest.raises(SplitError, match="at least 5 groups"):
        group_control(np.zeros((10, 2)), np.zeros(10), [0] * 10)
