"""Scores: which episodes count, and that nothing of the training takes part."""

from __future__ import annotations

import numpy as np
import pytest

from gradledger.rl.env import Lanes, LaneSpec
from gradledger.rl.errors import EnvError
from gradledger.rl.evaluate import evaluate
from gradledger.rl.simulators import AtariSimulator, AtariSpec, GymSimulator, GymSpec
from rl.counting import Counting


def zeros(states: np.ndarray) -> np.ndarray:
    return np.zeros(len(states), dtype=np.int64)


def test_each_lane_plays_its_quota_so_that_short_episodes_are_not_favoured() -> None:
    lanes = Lanes(Counting([[2], [50]]), LaneSpec())
    scored = evaluate(zeros, lanes, episodes_per_lane=2, epsilon=0.0)
    assert scored.lengths == (2, 2, 50, 50)
    assert scored.returns == (3.0, 3.0, 1275.0, 1275.0)
    assert scored.mean == 639.0
    assert scored.deviation == pytest.approx(734.3895, abs=1e-3)


def test_the_record_says_how_it_was_played() -> None:
    lanes = Lanes(GymSimulator(GymSpec(lanes=2)), LaneSpec(rng_seed=7, max_steps=500))
    record = evaluate(zeros, lanes, episodes_per_lane=3, stack=1, epsilon=0.05, rng_seed=2).record()
    assert record["episodes"] == 6
    assert (record["epsilon"], record["rng_seed"]) == (0.05, 2)
    assert record["environment"]["name"] == "CartPole-v1"
    assert record["environment"]["rng_seed"] == 7
    assert all(8 <= length <= 12 for length in record["lengths"])  # always left: the pole falls at once


def test_the_policy_sees_stacks_with_zeros_before_a_start() -> None:
    seen: list[np.ndarray] = []

    def policy(states: np.ndarray) -> np.ndarray:
        seen.append(states.copy())
        return zeros(states)

    evaluate(policy, Lanes(Counting([[3]]), LaneSpec()), episodes_per_lane=2, stack=3, epsilon=0.0)
    positions = [[int(frame[2]) for frame in state[0]] for state in seen]
    assert positions == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 0], [0, 0, 1], [0, 1, 2]]
    assert not seen[4][0, :2].any()  # not even the lane's number: the frames are blank


def test_the_film_is_the_first_episode_of_lane_0_and_equal_seeds_score_equally() -> None:
    def once():
        lanes = Lanes(AtariSimulator(AtariSpec(lanes=1)), LaneSpec(rng_seed=11, max_steps=30))
        return evaluate(zeros, lanes, episodes_per_lane=1, epsilon=0.5, film=True)

    one, two = once(), once()
    assert one == two
    assert one.film.shape == (30, 84, 84)
    assert one.truncated == 1
    assert np.array_equal(one.film, two.film)


def test_nothing_to_play_is_refused() -> None:
    with pytest.raises(EnvError, match="episodes_per_lane=0"):
        evaluate(zeros, Lanes(Counting([[2]]), LaneSpec()), episodes_per_lane=0)
