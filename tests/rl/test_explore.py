"""Schedules and epsilon-greedy actions."""

from __future__ import annotations

import numpy as np
import pytest

from gradledger.rl.counters import Counters
from gradledger.rl.errors import EnvError
from gradledger.rl.explore import LinearSchedule, epsilon_greedy, random_actions


def test_a_line_and_then_its_end() -> None:
    schedule = LinearSchedule(1.0, 0.2, 100)
    assert [schedule.at(step) for step in (0, 50, 100, 10_000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


@pytest.mark.parametrize("wrong", [{"first": 1.5}, {"last": -0.1}, {"steps": 0}])
def test_what_is_no_probability_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(EnvError, match="probabilities in"):
        LinearSchedule(**wrong)


def test_the_share_of_random_actions_and_their_spread() -> None:
    rng = np.random.default_rng(0)
    played = np.concatenate([epsilon_greedy(np.full(100, 3), 0.4, 4, rng) for _ in range(400)])
    share = np.bincount(played, minlength=4) / len(played)
    assert share == pytest.approx([0.1, 0.1, 0.1, 0.7], abs=0.01)  # three standard deviations are 0.005


def test_the_stream_does_not_depend_on_what_is_played() -> None:
    one, two = np.random.default_rng(1), np.random.default_rng(1)
    epsilon_greedy(np.zeros(8, int), 0.0, 6, one)
    random_actions(8, 6, two)
    assert one.bit_generator.state == two.bit_generator.state


def test_counters_come_back_by_name() -> None:
    counters = Counters(env_step=3, frame=12, optimizer_step=2, target_sync=1, episode=1, evaluated_episode=4)
    assert Counters.from_state(counters.state()) == counters
    with pytest.raises(TypeError, match="step"):
        Counters.from_state({"step": 1})
