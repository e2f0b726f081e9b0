"""Lanes over an environment that says where each frame comes from, over ALE and over CartPole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from gradledger.rl.env import Lanes, LaneSpec
from gradledger.rl.errors import EnvError
from gradledger.rl.simulators import NO_LIMIT, AtariSimulator, AtariSpec, GymSimulator, GymSpec
from gradledger.rl.transition import Step
from rl.counting import Counting


def equal_steps(one: Step, two: Step) -> list[str]:
    """Names of the fields that differ."""
    return [
        field.name
        for field in fields(Step)
        if (
            getattr(one, field.name) != getattr(two, field.name)
            if field.name == "episodes"
            else not np.array_equal(getattr(one, field.name), getattr(two, field.name))
        )
    ]


def test_an_episode_its_padding_and_the_next() -> None:
    lanes = Lanes(Counting([[3]]), LaneSpec())
    first = lanes.reset()[0]
    steps = [lanes.step(np.array([0])) for _ in range(5)]
    assert first[2] == 0
    assert [step.next_frames[0, 2] for step in steps] == [1, 2, 3, 0, 1]
    assert [step.next_frames[0, 1] - first[1] for step in steps] == [0, 0, 0, 1, 1]
    assert [bool(step.terminated[0]) for step in steps] == [False, False, True, False, False]
    assert [bool(step.valid[0]) for step in steps] == [True, True, True, False, True]
    assert [bool(step.starts[0]) for step in steps] == [False, False, False, True, False]
    assert [float(step.rewards[0]) for step in steps] == [1, 2, 3, 0, 1]
    assert [(e.episode_return, e.length, e.truncated) for step in steps for e in step.episodes] == [(6, 3, False)]


def test_the_limit_truncates_shows_the_real_last_frame_and_resets_by_hand() -> None:
    world = Counting([[100]])
    lanes = Lanes(world, LaneSpec(max_steps=4))
    lanes.reset()
    steps = [lanes.step(np.array([1])) for _ in range(7)]
    assert [step.next_frames[0, 2] for step in steps] == [1, 2, 3, 4, 0, 1, 2]
    assert [bool(step.truncated[0]) for step in steps] == [False, False, False, True, False, False, False]
    assert not any(step.terminated.any() for step in steps)
    assert [bool(step.valid[0]) for step in steps] == [True, True, True, True, False, True, True]
    assert [float(step.rewards[0]) for step in steps] == [1, 2, 3, 4, 0, 1, 2]
    assert [(e.length, e.truncated) for step in steps for e in step.episodes] == [(4, True)]
    assert world.resets[1:] == [(0, None)]


def test_an_end_at_the_limit_itself_is_a_termination() -> None:
    lanes = Lanes(Counting([[4]]), LaneSpec(max_steps=4))
    lanes.reset()
    last = [lanes.step(np.array([1])) for _ in range(4)][-1]
    assert (bool(last.terminated[0]), bool(last.truncated[0])) == (True, False)


def test_a_game_that_ends_inside_the_padding_after_a_truncation_counts_for_nothing() -> None:
    """The game plays on during the padding step; here it ends there, at its fifth step."""
    lanes = Lanes(Counting([[5, 9]]), LaneSpec(max_steps=4))
    lanes.reset()
    steps = [lanes.step(np.array([0])) for _ in range(7)]
    assert [bool(step.terminated[0]) for step in steps] == [False] * 7
    assert [step.next_frames[0, 2] for step in steps] == [1, 2, 3, 4, 0, 1, 2]
    assert [bool(step.valid[0]) for step in steps] == [True] * 4 + [False, True, True]


def test_lanes_end_on_their_own() -> None:
    lanes = Lanes(Counting([[2, 3], [4], [1]]), LaneSpec(max_steps=3))
    lanes.reset()
    ends = [(int(t), e.lane, e.length, e.truncated) for t in range(8) for e in lanes.step(np.zeros(3, int)).episodes]
    assert ends == [
        (0, 2, 1, False),
        (1, 0, 2, False),
        (2, 1, 3, True),
        (2, 2, 1, False),
        (4, 2, 1, False),
        (5, 0, 3, False),
        (6, 1, 3, True),
        (6, 2, 1, False),
    ]


def test_a_lost_life_is_told_and_ends_nothing() -> None:
    lanes = Lanes(Counting([[7]], life_every=3), LaneSpec())
    lanes.reset()
    steps = [lanes.step(np.array([0])) for _ in range(10)]
    assert [t for t, step in enumerate(steps) if step.life_lost[0]] == [2, 5]
    assert [t for t, step in enumerate(steps) if step.terminated[0]] == [6]


def test_a_seed_is_due_at_the_first_end_after_so_many_steps_and_shortens_the_log() -> None:
    world = Counting([[5], [8]])
    lanes = Lanes(world, LaneSpec(reseed_after=9))
    lanes.reset()
    for _ in range(13):
        lanes.step(np.array([0, 0]))
    seeded = [(lane, seed) for lane, seed in world.resets if seed is not None]
    assert [lane for lane, _ in seeded] == [0, 1, 1, 0]  # lane 1: 8 steps and padding; lane 0: two episodes and padding
    assert len({seed for _, seed in seeded}) == 4
    assert [len(lanes.state()[0][f"log.{lane}"]) for lane in range(2)] == [1, 4]


def test_equal_seeds_play_equally_and_others_do_not() -> None:
    def seeds(rng_seed: int) -> list[Any]:
        world = Counting([[2], [3]])
        lanes = Lanes(world, LaneSpec(rng_seed=rng_seed, reseed_after=4))
        lanes.reset()
        for _ in range(20):
            lanes.step(np.zeros(2, int))
        return world.resets

    assert seeds(1) == seeds(1)
    assert not {s for _, s in seeds(1) if s is not None} & {s for _, s in seeds(2) if s is not None}


def test_staggered_lanes_have_played_their_share_before_the_first_counted_step() -> None:
    lanes = Lanes(Counting([[100]] * 4), LaneSpec(stagger=40))
    frames = lanes.reset()
    assert frames[:, 2].tolist() == [0, 10, 20, 30]
    assert lanes.starts.all()  # the first that anyone sees of these episodes
    assert [len(lanes.state()[0][f"log.{lane}"]) for lane in range(4)] == [0, 10, 20, 30]


MAKERS: dict[str, tuple[Callable[[], Lanes], int]] = {
    "counting": (
        lambda: Lanes(
            Counting([[3, 8, 5], [30], [1, 2]], life_every=2), LaneSpec(max_steps=7, reseed_after=20, stagger=5)
        ),
        120,
    ),
    "cartpole": (
        lambda: Lanes(GymSimulator(GymSpec(lanes=3)), LaneSpec(rng_seed=4, max_steps=25, reseed_after=60)),
        150,
    ),
    "pong": (lambda: Lanes(AtariSimulator(AtariSpec(lanes=2)), LaneSpec(rng_seed=1, max_steps=40)), 110),
    "breakout, sticky": (
        lambda: Lanes(
            AtariSimulator(AtariSpec("breakout", lanes=2, sticky=0.25)),
            LaneSpec(rng_seed=5, max_steps=90, reseed_after=150),
        ),
        260,
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_restored_twin_goes_on_to_the_bit(name: str) -> None:
    make, ticks = MAKERS[name]
    one = make()
    one.reset()
    rng = np.random.default_rng(0)
    actions = rng.integers(0, one.simulator.actions, (ticks, one.simulator.lanes))
    at = (ticks // 3, ticks - 10) if "sticky" in name else (ticks // 3, ticks // 3 + 1, ticks // 2, ticks - 10)
    states, steps = {}, []
    for tick in range(ticks):
        if tick in at:
            states[tick] = one.state()
        steps.append(one.step(actions[tick]))
    assert any(step.episodes for step in steps)
    for tick, (arrays, facts) in states.items():
        two = make()
        two.load_state(arrays, facts)
        assert np.array_equal(two.frames, steps[tick - 1].next_frames)
        assert np.array_equal(two.starts, steps[tick - 1].starts)
        for later in range(tick, ticks):
            assert equal_steps(two.step(actions[later]), steps[later]) == []
        arrays_one, arrays_two = one.state()[0], two.state()[0]
        assert all(np.array_equal(arrays_one[key], arrays_two[key]) for key in arrays_one)
        two.close()
    one.close()


def test_the_number_of_threads_changes_nothing() -> None:
    one, two = (
        Lanes(AtariSimulator(AtariSpec(lanes=3, threads=threads, sticky=0.25)), LaneSpec()) for threads in (1, 2)
    )
    assert np.array_equal(one.reset(), two.reset())
    actions = np.random.default_rng(0).integers(0, 6, (60, 3))
    assert [name for row in actions for name in equal_steps(one.step(row), two.step(row))] == []


def test_a_state_of_other_settings_is_refused_by_name() -> None:
    one = Lanes(GymSimulator(GymSpec(lanes=2)), LaneSpec(max_steps=10))
    one.reset()
    with pytest.raises(EnvError, match=r"got max_steps=20, wanted max_steps=10"):
        Lanes(GymSimulator(GymSpec(lanes=2)), LaneSpec(max_steps=20)).load_state(*one.state())


def test_a_simulator_with_a_stream_of_its_own_is_found_out() -> None:
    one = Lanes(Counting([[9]], strays=True), LaneSpec())
    one.reset()
    for _ in range(5):
        one.step(np.array([0]))
    with pytest.raises(EnvError, match="another picture in lane 0 after its 5 actions"):
        Lanes(Counting([[9]], strays=True), LaneSpec()).load_state(*one.state())


def test_calls_out_of_turn_are_refused() -> None:
    lanes = Lanes(Counting([[9], [9]]), LaneSpec())
    with pytest.raises(EnvError, match="not reset"):
        lanes.send(np.zeros(2, int))
    with pytest.raises(EnvError, match="wanted send before it"):
        lanes.receive()
    lanes.reset()
    with pytest.raises(EnvError, match=r"wanted 2 actions in 0\.\.2"):
        lanes.send(np.array([0, 3]))
    with pytest.raises(EnvError, match=r"wanted 2 actions in 0\.\.2"):
        lanes.send(np.array([0]))
    lanes.send(np.zeros(2, int))
    with pytest.raises(EnvError, match="a step under way"):
        lanes.send(np.zeros(2, int))
    with pytest.raises(EnvError, match="during a step"):
        lanes.state()


@pytest.mark.parametrize("spec", [LaneSpec(max_steps=0), LaneSpec(reseed_after=0), LaneSpec(rng_seed=-1)])
def test_specs_that_make_no_sense_are_refused(spec: LaneSpec) -> None:
    with pytest.raises(EnvError, match="correct the LaneSpec"):
        Lanes(Counting([[1]]), spec)


def test_atari_settings_leave_no_default_of_ale_unsaid() -> None:
    import inspect

    from ale_py.vector_env import AtariVectorEnv

    simulator = AtariSimulator(AtariSpec(lanes=1, sticky=0.25))
    named = set(inspect.signature(AtariVectorEnv.__init__).parameters) - {"self", "game", "num_envs"}
    assert named <= set(simulator.settings)
    said = simulator.settings
    assert (said["repeat_action_probability"], said["reward_clipping"], said["episodic_life"]) == (0.25, False, False)
    assert (said["frameskip"], said["autoreset_mode"], said["max_num_frames_per_episode"]) == (4, "NextStep", NO_LIMIT)
    assert said["ale_py"]


def test_unknown_games_and_impossible_specs_are_refused() -> None:
    with pytest.raises(EnvError, match="game 'PongNoFrameskip-v4'"):
        AtariSimulator(AtariSpec("PongNoFrameskip-v4"))
    with pytest.raises(EnvError, match=r"sticky=1\.0"):
        AtariSimulator(AtariSpec(sticky=1.0))
    with pytest.raises(EnvError, match="wanted Discrete actions"):
        GymSimulator(GymSpec("Pendulum-v1", lanes=1))


def test_pong_scores_are_raw_and_a_game_is_one_episode() -> None:
    lanes = Lanes(AtariSimulator(AtariSpec(lanes=2)), LaneSpec(rng_seed=3))
    lanes.reset()
    episodes, steps = [], 0
    while len(episodes) < 2 and steps < 1500:
        episodes += lanes.step(np.zeros(2, int)).episodes
        steps += 1
    assert [episode.episode_return for episode in episodes[:2]] == [-21.0, -21.0]
    assert all(not episode.truncated for episode in episodes)
