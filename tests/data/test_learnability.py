"""Floors against what is known in closed form: an arm that has an inverse, one that has none, noise that was added."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from gradledger.data.errors import DataError, LearnabilityError
from gradledger.data.learnability import label_conflicts, noise_floor, require_reachable
from gradledger.data.neighbours import nearest

JOINTS = ["q1", "q2", "q3", "q4", "q5", "q6"]


def planar(count: int = 8000, seed: int = 0) -> tuple[Any, Any]:
    """Three links, elbows held in (0.15, pi - 0.15): pose (x, y, phi) has one inverse."""
    rng = np.random.default_rng(seed)
    q = np.stack([rng.uniform(-np.pi, np.pi, count), *rng.uniform(0.15, np.pi - 0.15, (2, count))], axis=1)
    a = np.cumsum(q, axis=1)
    return np.stack([np.cos(a).sum(1), np.sin(a).sum(1), a[:, 2]], axis=1), q


def six(count: int = 8000, seed: int = 0) -> tuple[Any, Any]:
    """Six joints, three of which enter only through their sum, an orientation in (-pi, pi]: no inverse."""
    q = np.random.default_rng(seed).uniform(-np.pi, np.pi, (count, 6))
    a = np.cumsum(q[:, :3], axis=1)
    turn = np.angle(np.exp(1j * q[:, 3:].sum(1)))
    return np.stack([np.cos(a).sum(1), np.sin(a).sum(1), turn], axis=1), q


@pytest.mark.parametrize("seed", range(4))
def test_the_planar_arm_can_be_learned(seed: int) -> None:
    pose, q = planar(seed=seed)
    assert noise_floor(pose, q).ratio < 0.01
    got = noise_floor(pose, q, names=JOINTS[:3], angles=JOINTS[:3])
    assert got.ratio < 0.01
    assert got.learnable
    assert "the target is a function of the input" in str(got)
    require_reachable(0.008304, got.mse)  # what a small network reaches on it


@pytest.mark.parametrize("seed", range(4))
def test_the_six_joint_sum_map_cannot(seed: int) -> None:
    pose, q = six(seed=seed)
    got = noise_floor(pose, q, names=JOINTS)
    assert got.ratio > 0.9
    assert not got.learnable
    assert "does not follow from the input" in str(got)
    with pytest.raises(LearnabilityError, match=r"got a goal of MSE 0.001, wanted at least the floor of these data"):
        require_reachable(1e-3, got.mse)


def test_the_floor_of_a_sum_is_the_one_of_theory() -> None:
    """Of three equal joints with a known sum, two thirds of each one's variance is left: E[q | S] = S / 3.

    So a height z = q4 + q5 + q6 that is not taken modulo a turn leaves 5/6 of the variance of six joints at most.
    """
    pose, q = six(20_000)
    z = q[:, 3:].sum(axis=1)
    assert 0.75 < noise_floor(np.column_stack([pose[:, :2], z]), q).ratio < 5 / 6
    got = noise_floor(z[:, None], q[:, 3:])
    for floor, variance in zip(got.floor, got.variance, strict=True):
        assert variance == pytest.approx(np.pi**2 / 3, rel=0.03)
        assert floor / variance == pytest.approx(2 / 3, abs=0.03)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3, 1.0])
def test_added_noise_is_found_again(noise: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (8000, 2))
    y = np.sin(x[:, 0]) * x[:, 1] + noise * rng.normal(size=8000)
    got = noise_floor(x, y)
    assert got.mse == pytest.approx(noise**2, rel=0.15, abs=2e-3)
    assert got.nearest[0] >= 0.97 * got.floor[0] - 1e-3


def test_under_a_second() -> None:
    pose, q = planar()
    noise_floor(pose[:200], q[:200])  # imports
    begin = time.process_time()
    noise_floor(pose, q)
    label_conflicts(pose, np.arange(8000) % 5)
    assert time.process_time() - begin < 1.0


def test_equal_inputs_with_different_targets_are_counted() -> None:
    pose, q = planar(1000)
    x = np.concatenate([pose, pose[:30], pose[:10]])
    y = np.concatenate([q, q[:20], q[20:30] + 1, q[:10]])
    got = noise_floor(x, y)
    assert (got.duplicates, got.contradictions) == (40, 10)
    assert "10 of 40 pairs of equal inputs have different targets" in str(got)
    assert got.distance > 0
    assert (noise_floor(pose, q).duplicates, noise_floor(pose, q).contradictions) == (0, 0)


def test_label_conflicts() -> None:
    digits, digit = load_digits(return_X_y=True)
    clean = label_conflicts(digits, digit)
    assert clean.share < 0.05
    assert clean.close < 0.01
    assert clean.chance == pytest.approx(0.9, abs=0.001)
    rng = np.random.default_rng(0)
    for share in (0.1, 0.3):
        wrong = np.where(rng.random(len(digit)) < share, (digit + rng.integers(1, 10, len(digit))) % 10, digit)
        got = label_conflicts(digits, wrong)
        # Two labels agree when both are right, or wrong by the same class.
        expected = 1 - (1 - share) ** 2 - share**2 / 9
        assert got.share == pytest.approx(expected, abs=0.05)
        assert got.error == pytest.approx(share, abs=0.08)
        assert len(got.pairs) == 10
        assert all(wrong[a] != wrong[b] for a, b in got.pairs)
    torn = label_conflicts(np.concatenate([digits, digits[:50]]), np.concatenate([digit, (digit[:50] + 1) % 10]))
    assert (torn.duplicates, torn.contradictions) == (50, 50)
    assert "50 of 50 pairs of equal inputs have different classes" in str(torn)
    assert label_conflicts(digits, [f"class {one}" for one in digit]).share == clean.share


def recordings(count: int = 40, frames: int = 50, seed: int = 0) -> tuple[Any, Any, list[int]]:
    """Frames: a slow input, and a target that is a constant of its recording and so no function of the input."""
    rng = np.random.default_rng(seed)
    begin = rng.uniform(-1, 1, (count, 1, 2))
    x = begin + 0.01 * np.cumsum(rng.normal(size=(count, frames, 2)), axis=1)
    y = np.repeat(rng.normal(size=count), frames)
    return x.reshape(-1, 2), y, np.repeat(np.arange(count), frames).tolist()


def test_frames_of_one_recording_are_not_called_learnable() -> None:
    x, y, episode = recordings()
    got = noise_floor(x, y)
    assert got.ratio < 0.2  # what it would be without a word
    assert got.side_by_side
    assert not got.learnable
    assert "not known of new recordings" in str(got)
    assert "Next: pass the groups (the recording of each row)" in str(got)
    told = noise_floor(x, y, groups=episode)
    assert told.ratio > 0.8
    assert not told.learnable
    assert "does not follow from the input" in str(told)
    assert "recording" not in str(told)
    wide = np.column_stack([x, np.zeros((len(x), 20))])  # the same through blocks of products, not a tree
    assert noise_floor(wide, y, groups=episode).floor == pytest.approx(told.floor, rel=1e-9)
    shuffled = np.random.default_rng(1).permutation(len(x))
    again = noise_floor(x[shuffled], y[shuffled], groups=[episode[at] for at in shuffled])
    assert again.floor == pytest.approx(told.floor, rel=1e-9)


def test_pairs_across_groups_are_those_of_brute_force() -> None:
    rng = np.random.default_rng(0)
    for dimensions in (2, 20):
        rows, groups = rng.normal(size=(300, dimensions)), rng.integers(0, 4, 300)
        rows[:100] *= 0.01  # one clump, mostly of groups that are near themselves
        groups[:90] = 0
        distance = np.square(rows[:, None] - rows[None]).sum(axis=2)
        distance[groups[:, None] == groups[None]] = np.inf
        wanted = np.argsort(distance, axis=1, kind="stable")[:, :7]
        asked = np.arange(0, 300, 3)
        square, index = nearest(rows, 7, queries=asked, groups=groups)
        np.testing.assert_array_equal(index, wanted[asked])
        np.testing.assert_allclose(square, np.take_along_axis(distance, wanted, 1)[asked], rtol=1e-9)


def test_a_function_of_the_input_stays_one_across_recordings() -> None:
    x, _, episode = recordings(200, 20)
    y = np.sin(3 * x[:, 0]) + x[:, 1]
    got = noise_floor(x, y, groups=episode)
    assert got.ratio < 0.05
    assert got.learnable
    assert "is a function of the input" in str(got)


def test_sorted_rows_can_be_declared_independent() -> None:
    x = np.sort(np.random.default_rng(0).uniform(size=1000))
    got = noise_floor(x[:, None], np.sin(9 * x))
    assert got.side_by_side
    assert noise_floor(x[:, None], np.sin(9 * x), groups=range(1000)).learnable
    assert noise_floor(x[:, None], np.sin(9 * x), groups=[None] * 1000).learnable
    pose, q = planar(2000)
    assert not noise_floor(pose, q).side_by_side


def test_classes_of_one_recording() -> None:
    """Digits in the order of their writers; sorted by class alone, rows are no recording."""
    digits, digit = load_digits(return_X_y=True)
    got = label_conflicts(digits, digit)
    assert got.side_by_side
    assert not got.learnable
    assert "pass the groups" in str(got)
    told = label_conflicts(digits, digit, groups=(np.arange(len(digit)) // 130).tolist())
    assert got.share < told.share < 0.1
    assert told.learnable
    order = np.random.default_rng(0).permutation(len(digit))
    by_class = order[np.argsort(digit[order], kind="stable")]
    assert not label_conflicts(digits[by_class], digit[by_class]).side_by_side
    far = noise_floor(digits, digit, groups=(np.arange(len(digit)) // 130).tolist())
    assert "the floor is a guess: nearest pairs are" in str(far)
    assert f"leave {far.nearest[0] / far.variance[0]:.2g} of the variance" in str(far)
    with pytest.raises(LearnabilityError, match="got 1797 group values of 1 groups"):
        label_conflicts(digits, digit, groups=[0] * len(digit))
    with pytest.raises(LearnabilityError, match="got 3 group values"):
        noise_floor(digits, digit, groups=[0, 1, 2])


def test_refusals() -> None:
    pose, q = planar(200)
    with pytest.raises(LearnabilityError, match="got 200 inputs, 199 targets"):
        noise_floor(pose, q[:-1])
    with pytest.raises(LearnabilityError, match=r"angles \['q9'\]"):
        noise_floor(pose, q, angles=["q9"])
    with pytest.raises(LearnabilityError, match="at least 100"):
        label_conflicts(pose[:50], [0] * 50)
    with pytest.raises(DataError, match="NaN or Inf"):
        noise_floor(np.where(pose > 1, np.nan, pose), q)
    with pytest.raises(LearnabilityError, match="a goal of error nan"):
        require_reachable(float("nan"), 0.1, metric="error")
