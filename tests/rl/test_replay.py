"""The replay against brute force: every transition is written down as it happens and looked for in what is drawn."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.rl.env import Lanes, LaneSpec
from gradledger.rl.errors import ReplayError
from gradledger.rl.replay import Replay, ReplaySpec
from gradledger.rl.stack import FrameStack
from gradledger.rl.transition import Batch
from rl.counting import Counting


@dataclass
class Told:
    """One real step, told by a witness that keeps whole stacks and knows nothing of rings."""

    tick: int
    stack: np.ndarray
    action: int
    reward: float
    terminated: bool
    truncated: bool
    life_lost: bool
    after: np.ndarray | None = None


@dataclass
class Witness:
    """Per lane: the steps of the episode under way, and all finished or running ones by tick."""

    spec: ReplaySpec
    by_tick: list[dict[int, Told]] = field(default_factory=list)
    episodes: list[list[Told]] = field(default_factory=list)

    def expected(self, lane: int, tick: int, added: int) -> tuple[Any, ...] | None:
        """(stack, action, return, next stack, discount, length, terminated, truncated), or None where not drawable."""
        told = self.by_tick[lane].get(tick)
        if told is None:
            return None
        oldest = max(0, added - self.spec.rows)
        total, power, length = 0.0, 1.0, 0
        step: Told | None = told
        while True:
            assert step is not None
            clip = self.spec.reward_clip
            total += power * (step.reward if clip is None else max(-clip, min(clip, step.reward)))
            power *= self.spec.gamma
            length += 1
            terminated = step.terminated or (self.spec.life_loss_terminates and step.life_lost)
            truncated = step.truncated and not terminated
            if terminated or truncated or length == self.spec.n_step:
                break
            step = self.by_tick[lane].get(step.tick + 1)
            if step is None:
                return None  # has not happened yet
        if step.tick + 1 > added - 1 or step.after is None:
            return None  # what it led to is not in the ring yet
        # How much of the stack is real, and does it reach into overwritten rows?
        real = sum(1 for frame in told.stack[:-1] if frame.any())
        if tick - real < oldest:
            return None
        discount = 0.0 if terminated else power
        return told.stack, told.action, total, step.after, discount, length, terminated, truncated


def play(
    spec: ReplaySpec, lengths: list[list[int]], ticks: int, *, max_steps: int | None, life_every: int, seed: int
) -> tuple[Replay, Witness]:
    lanes = Lanes(Counting(lengths, life_every=life_every), LaneSpec(max_steps=max_steps, reseed_after=50))
    replay, witness = Replay(spec), Witness(spec, [{} for _ in lengths])
    rng = np.random.default_rng(seed)
    lanes.reset()
    lanes.frames = lanes.frames + 1  # no frame is all zeros, so that padding of a stack can be told from frames
    seen = FrameStack(lanes.frames, stack=spec.stack)
    for tick in range(ticks):
        frames, starts, before = lanes.frames, lanes.starts, seen.state()
        actions = rng.integers(0, 3, len(lengths))
        step = lanes.step(actions)
        lanes.frames = lanes.frames + 1
        replay.add(
            frames,
            actions,
            step.rewards,
            step.terminated,
            step.truncated,
            life_lost=step.life_lost,
            valid=step.valid,
            starts=starts,
        )
        seen.push(lanes.frames, step.starts)
        after = seen.state()
        for lane in range(len(lengths)):
            if step.valid[lane]:
                witness.by_tick[lane][tick] = Told(
                    tick,
                    before[lane],
                    int(actions[lane]),
                    float(step.rewards[lane]),
                    bool(step.terminated[lane]),
                    bool(step.truncated[lane]),
                    bool(step.life_lost[lane]),
                    after[lane],
                )
    return replay, witness


def row(batch: Batch, index: int) -> tuple[Any, ...]:
    return (
        batch.state[index].numpy(),
        int(batch.action[index]),
        float(batch.reward[index]),
        batch.next_state[index].numpy(),
        float(batch.discount[index]),
        int(batch.length[index]),
        bool(batch.terminated[index]),
        bool(batch.truncated[index]),
    )


def check_all(replay: Replay, witness: Witness, ticks: int) -> int:
    """Compare what may be drawn, and each of these transitions, with the witness; how many they are."""
    spec = replay.spec
    oldest = max(0, ticks - spec.rows)
    may = replay.drawable()
    wanted = [
        (age, lane, told)
        for age in range(ticks - oldest)
        for lane in range(spec.lanes)
        if (told := witness.expected(lane, oldest + age, ticks)) is not None
    ]
    assert {(age, lane) for age, lane, _ in wanted} == set(map(tuple, np.argwhere(may).tolist()))
    rows = np.array([oldest + age for age, _, _ in wanted], dtype=np.int64)
    lanes = np.array([lane for _, lane, _ in wanted], dtype=np.int64)
    if len(wanted):
        batch = replay._gather(rows, lanes, np.ones(len(rows), dtype=np.float32))
        for index, (_, _, told) in enumerate(wanted):
            state, action, total, after, discount, *rest = told
            got = row(batch, index)
            if spec.stack == 1:
                state, after = state[0], after[0]
            assert np.array_equal(got[0], state)
            assert np.array_equal(got[3], after)
            assert got[1] == action
            assert got[2] == pytest.approx(total, rel=1e-6)
            assert got[4] == pytest.approx(discount, rel=1e-6)
            assert list(got[5:]) == rest
    return len(wanted)


@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    rows=st.integers(0, 20),
    ticks=st.integers(1, 70),
    stack=st.integers(1, 4),
    n_step=st.integers(1, 4),
    max_steps=st.none() | st.integers(1, 6),
    life_every=st.integers(0, 4),
    life_loss_terminates=st.booleans(),
    clip=st.none() | st.just(2.0),
)
@settings(max_examples=250, deadline=None)
def test_what_may_be_drawn_and_what_is_drawn_equal_the_witness(
    lengths, rows, ticks, stack, n_step, max_steps, life_every, life_loss_terminates, clip
) -> None:
    lanes = len(lengths)
    capacity = (stack + n_step + 1 + rows) * lanes + lanes - 1  # does not divide evenly
    spec = ReplaySpec(
        capacity, lanes, (3,), "int32", stack, n_step, 0.9, clip, life_loss_terminates=life_loss_terminates
    )
    replay, witness = play(spec, lengths, ticks, max_steps=max_steps, life_every=life_every, seed=1)
    check_all(replay, witness, ticks)


def test_a_long_run_wraps_many_times_and_stays_right() -> None:
    spec = ReplaySpec(40 * 3, 3, (3,), "int32", 4, 3, 0.99, None)
    for ticks in (39, 40, 41, 43, 200, 333):
        replay, witness = play(spec, [[7, 2], [30], [1, 1, 5]], ticks, max_steps=12, life_every=0, seed=2)
        assert check_all(replay, witness, ticks) > 40


def test_draws_are_uniform_over_the_drawable_ones_and_reach_them_all() -> None:
    spec = ReplaySpec(30 * 2, 2, (3,), "int32", 4, 2, 0.99, None)
    replay, _ = play(spec, [[5, 3], [9]], 77, max_steps=6, life_every=0, seed=3)
    oldest = 77 - 30
    count = np.zeros((30, 2))
    rng = np.random.default_rng(0)
    draws = 40_000
    rows, lanes = replay._draw(draws, rng)
    np.add.at(count, (rows - oldest, lanes), 1)
    may = replay.drawable()
    assert (count[~may] == 0).all()
    share = draws / may.sum()
    # chi squared with about 40 degrees of freedom: 90 is five standard deviations above its mean
    assert ((count[may] - share) ** 2 / share).sum() < 90


def test_a_ring_with_one_drawable_transition_finds_it() -> None:
    spec = ReplaySpec(4000, 1, (3,), "int32", 1, 1, 0.99, None)
    replay, witness = play(spec, [[1]], 3001, max_steps=None, life_every=0, seed=0)
    # every odd row is padding; hide all but one real row
    valid = replay._valid
    valid[:] = False
    valid[2000] = True
    batch = replay.sample(3, np.random.default_rng(0))
    assert np.array_equal(batch.state[2].numpy(), witness.by_tick[0][2000].stack[0])


def test_the_same_generator_draws_the_same_batch_and_one_call_is_reproducible_after_a_restore() -> None:
    spec = ReplaySpec(60, 2, (3,), "int32", 4, 2)
    one, _ = play(spec, [[5, 3], [9]], 50, max_steps=6, life_every=0, seed=3)
    tensors, facts = one.state()
    two = Replay(spec)
    two.load_state({name: tensor.clone() for name, tensor in tensors.items()}, dict(facts))
    left, right = one.sample(16, np.random.default_rng(5)), two.sample(16, np.random.default_rng(5))
    assert all(torch.equal(getattr(left, name), getattr(right, name)) for name in vars(left))
    more = copy.deepcopy(two)
    frame = np.ones((2, 3), dtype=np.int32)
    for replay in (one, more):
        no = np.zeros(2, dtype=bool)
        replay.add(frame, no, no, no, no, life_lost=no, valid=~no, starts=no)
    left, right = one.sample(16, np.random.default_rng(6)), more.sample(16, np.random.default_rng(6))
    assert all(torch.equal(getattr(left, name), getattr(right, name)) for name in vars(left))


def test_a_batch_owns_its_memory() -> None:
    spec = ReplaySpec(60, 2, (3,), "int32", 1, 1)
    replay, _ = play(spec, [[5], [9]], 20, max_steps=None, life_every=0, seed=3)
    batch = replay.sample(8, np.random.default_rng(0))
    before = {name: value.clone() for name, value in vars(batch).items()}
    for array in replay._arrays().values():
        array[...] = 0
    assert all(torch.equal(value, before[name]) for name, value in vars(batch).items())


def test_fifty_thousand_atari_frames_stay_well_under_half_a_gigabyte() -> None:
    replay = Replay(ReplaySpec(50_000, 8, (84, 84)))
    assert replay.nbytes < 354e6
    assert replay._frames.dtype == np.uint8
    assert replay.spec.rows * 8 == 50_000


def test_an_empty_or_nearly_empty_ring_says_what_it_needs() -> None:
    replay = Replay(ReplaySpec(100, 2, (3,), "int32", 4, 3))
    with pytest.raises(ReplayError, match="add at least 7 rows"):
        replay.sample(1, np.random.default_rng(0))
    spec = ReplaySpec(100, 1, (3,), "int32", 4, 3)
    replay, _ = play(spec, [[50]], 3, max_steps=None, life_every=0, seed=0)
    assert len(replay) == 3
    with pytest.raises(ReplayError, match="3 transitions, none with a whole window"):
        replay.sample(1, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 10}, "use a capacity of at least 12"),
        ({"stack": 0}, "sizes of at least 1"),
        ({"gamma": 1.1}, "gamma=1.1"),
        ({"reward_clip": 0.0}, "reward_clip=0.0"),
        ({"priority": 1.5}, "priority=1.5"),
    ],
)
def test_impossible_specs_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        Replay(replace(ReplaySpec(100, 2, (3,)), **changes))


def test_other_frames_and_other_states_are_refused() -> None:
    replay = Replay(ReplaySpec(100, 2, (84, 84)))
    no = np.zeros(2, dtype=bool)
    with pytest.raises(ReplayError, match=r"got frames float32 \(2, 84, 84\), wanted uint8 \(2, 84, 84\)"):
        replay.add(np.zeros((2, 84, 84), np.float32), no, no, no, no, life_lost=no, valid=no, starts=no)
    tensors, facts = Replay(ReplaySpec(100, 2, (42, 42))).state()
    with pytest.raises(ReplayError, match="array 'frames'"):
        replay.load_state(tensors, {**facts, "added": 0} | {"added": 3})
