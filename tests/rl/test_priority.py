"""Prioritised draws: the tree against plain sums, the replay against the probabilities and weights of the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.rl.errors import ReplayError
from gradledger.rl.priority import PriorityTree
from gradledger.rl.replay import LEAST_ERROR, Replay, ReplaySpec
from rl.test_replay import play

PRIORITIES = st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0, 0.1]), min_size=1, max_size=40).filter(any)


@given(values=PRIORITIES, shares=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_draw_is_where_the_share_lies_when_priorities_lie_end_to_end(
    values: list[float], shares: list[float]
) -> None:
    tree = PriorityTree(len(values))
    tree.load(np.array(values))
    ends = np.cumsum(values)
    assert tree.total == pytest.approx(ends[-1])
    for share, slot in zip(shares, tree.draw(np.array(shares)), strict=True):
        assert values[slot] > 0
        # within rounding of its own stretch
        assert ends[slot] - values[slot] - 1e-9 <= share * ends[-1] <= ends[slot] + 1e-9


@given(
    slots=st.integers(1, 33),
    changes=st.lists(
        st.lists(st.tuples(st.integers(0, 32), st.floats(0, 9)), min_size=1, max_size=8), min_size=1, max_size=30
    ),
)
@settings(max_examples=100, deadline=None)
def test_a_tree_changed_many_times_equals_one_built_anew_to_the_bit(
    slots: int, changes: list[list[tuple[int, float]]]
) -> None:
    tree, plain = PriorityTree(slots), np.zeros(slots)
    for change in changes:
        at = np.array([slot % slots for slot, _ in change])
        values = np.array([value for _, value in change])
        tree.set(at, values)
        for slot, value in zip(at, values, strict=True):
            plain[slot] = value
    again = PriorityTree(slots)
    again.load(plain)
    assert np.array_equal(tree._sums, again._sums)
    assert np.array_equal(tree.values, plain)


def prioritised(alpha: float = 0.6, ticks: int = 77) -> Replay:
    """A ring that has wrapped, of two lanes with ends, padding and truncations, and errors of its own for each slot."""
    spec = ReplaySpec(30 * 2, 2, (3,), "int32", 4, 2, 0.99, None, priority=alpha)
    replay, _ = play(spec, [[5, 3], [9]], ticks, max_steps=6, life_every=0, seed=3)
    oldest, newest = replay._span()
    slots = torch.arange(oldest * 2, (newest + 1) * 2)
    valid = torch.from_numpy(replay._valid[slots.numpy() // 2 % 30, slots.numpy() % 2])
    replay.prioritise(slots[valid], errors(slots[valid]))
    return replay


def errors(slots: torch.Tensor) -> torch.Tensor:
    return ((slots * 7) % 11 + 1) / 10.0


def test_draws_are_in_proportion_to_the_errors_to_the_power_and_padding_is_never_drawn() -> None:
    replay = prioritised()
    oldest, may = replay._span()[0], replay.drawable()
    rows, lanes = replay._draw(60_000, np.random.default_rng(0))
    count = np.zeros(may.shape)
    np.add.at(count, (rows - oldest, lanes), 1)
    assert (count[~may] == 0).all()
    slots = torch.arange(oldest * 2, oldest * 2 + may.size)
    wanted = np.where(may, ((errors(slots).double() + LEAST_ERROR) ** 0.6).numpy().reshape(may.shape), 0.0)
    wanted *= 60_000 / wanted.sum()
    often = wanted > 5
    assert often.sum() > 25
    # chi squared with about 30 degrees of freedom: 75 is more than five standard deviations above its mean
    assert ((count[often] - wanted[often]) ** 2 / wanted[often]).sum() < 75


@pytest.mark.parametrize("correction", [0.0, 0.5, 1.0])
def test_weights_make_up_for_the_probabilities_and_the_largest_is_one(correction: float) -> None:
    replay = prioritised()
    batch = replay.sample(64, np.random.default_rng(1), correction=correction)
    chance = (errors(batch.slot).double() + LEAST_ERROR) ** 0.6 / replay._tree.total
    weight = (60 * chance) ** -correction  # (N P)^-beta; N and the sum divide out
    assert torch.allclose(batch.weight.double(), weight / weight.max(), rtol=1e-6)
    assert batch.weight.max() == 1
    assert correction == 0 or batch.weight.min() < 1


def test_with_full_correction_a_weighted_mean_is_that_of_uniform_draws() -> None:
    replay, rng = prioritised(), np.random.default_rng(2)
    oldest, may = replay._span()[0], replay.drawable()
    age, lane = np.nonzero(may)
    value = np.sin(((age + oldest) * 2 + lane) * 1.7)  # anything that depends on the transition
    batch = replay.sample(200_000, rng, correction=1.0)
    mine, weight = np.sin(batch.slot.numpy() * 1.7), batch.weight.double().numpy()
    assert (mine * weight).sum() / weight.sum() == pytest.approx(value.mean(), abs=0.02)
    assert abs(mine.mean() - value.mean()) > 0.03  # without the weights it is another mean


def test_what_is_new_comes_with_the_highest_priority_and_what_was_overwritten_is_passed_over() -> None:
    replay = prioritised()
    oldest, newest = replay._span()
    replay.prioritise(torch.tensor([newest * 2]), torch.tensor([5.0]))  # above all before
    no = np.zeros(2, dtype=bool)
    replay.add(np.ones((2, 3), np.int32), no, no, no, no, life_lost=no, valid=np.array([True, False]), starts=no)
    at = (newest + 1) % 30 * 2
    assert replay._tree.values[at] == pytest.approx((5.0 + LEAST_ERROR) ** 0.6)
    assert replay._tree.values[at + 1] == 0  # padding
    before = replay._tree.values.copy()
    replay.prioritise(torch.tensor([oldest * 2, (newest + 5) * 2]), torch.tensor([0.5, 0.5]))
    assert np.array_equal(replay._tree.values, before)


def test_a_restored_replay_draws_the_same_and_goes_on_the_same() -> None:
    one = prioritised()
    tensors, facts = one.state()
    two = Replay(one.spec)
    two.load_state({name: tensor.clone() for name, tensor in tensors.items()}, dict(facts))
    assert np.array_equal(one._tree._sums, two._tree._sums)
    for rng_seed in range(5):
        left, right = (replay.sample(16, np.random.default_rng(rng_seed)) for replay in (one, two))
        assert all(torch.equal(getattr(left, name), getattr(right, name)) for name in vars(left))
        for replay in (one, two):
            replay.prioritise(left.slot, left.weight * 2)
    no = np.zeros(2, dtype=bool)
    for replay in (one, two):
        replay.add(np.ones((2, 3), np.int32), no, no, no, no, life_lost=no, valid=~no, starts=no)
    assert np.array_equal(one._tree._sums, two._tree._sums)
    assert one._tree.values.max() == pytest.approx((2 + LEAST_ERROR) ** 0.6)


def test_a_ring_with_one_drawable_transition_of_small_priority_finds_it() -> None:
    spec = ReplaySpec(4000, 1, (3,), "int32", 1, 1, 0.99, None, priority=1.0)
    replay, _ = play(spec, [[10**6]], 3001, max_steps=None, life_every=0, seed=0)
    replay._terminated[:] = replay._truncated[:] = False
    replay._valid[:] = False
    replay._valid[2000] = True
    replay.prioritise(torch.tensor([2000]), torch.tensor([0.0]))
    batch = replay.sample(3, np.random.default_rng(0))
    assert batch.slot.tolist() == [2000] * 3


def test_uniform_draws_weigh_one_and_know_no_priorities() -> None:
    spec = ReplaySpec(60, 2, (3,), "int32", 4, 2)
    replay, _ = play(spec, [[5, 3], [9]], 50, max_steps=6, life_every=0, seed=3)
    batch = replay.sample(16, np.random.default_rng(5))
    assert batch.weight.tolist() == [1.0] * 16
    assert "priority" not in replay.state()[0]
    with pytest.raises(ReplayError, match="a replay with priority=0"):
        replay.prioritise(batch.slot, batch.weight)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_errors_that_cannot_be_are_refused_and_change_nothing(bad: float) -> None:
    replay = prioritised()
    before = replay._tree.values.copy()
    with pytest.raises(ReplayError, match="finite errors of at least 0"):
        replay.prioritise(torch.tensor([140, 141]), torch.tensor([0.5, bad]))
    assert np.array_equal(replay._tree.values, before)


def test_memory_counts_the_tree() -> None:
    plain, ranked = ReplaySpec(50_000, 8, (84, 84)), ReplaySpec(50_000, 8, (84, 84), priority=0.6)
    assert Replay(ranked).nbytes - Replay(plain).nbytes == 2 * 65_536 * 8
