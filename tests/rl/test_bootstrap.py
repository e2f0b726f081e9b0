"""Targets and losses against hand-worked numbers, float64 and the monolithic loss."""

from __future__ import annotations

import pytest
import torch

from gradledger.rl.bootstrap import td_error, td_loss, td_seed, td_target


def test_vanilla_takes_the_targets_maximum_and_double_the_onlines_choice() -> None:
    reward, discount = torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.5])
    target_q = torch.tensor([[1.0, 4.0], [2.0, 0.0]])
    online_q = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    assert td_target(reward, discount, target_q).tolist() == [3.0, 0.0]
    assert td_target(reward, discount, target_q, next_online_q=online_q).tolist() == [1.5, -1.0]


def test_a_termination_has_no_future_whatever_the_network_says_of_it() -> None:
    target = td_target(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([[float("nan"), float("inf")]]))
    assert target.tolist() == [1.0]


def test_a_truncation_has_one() -> None:
    assert td_target(torch.tensor([1.0]), torch.tensor([0.9]), torch.tensor([[10.0]])).tolist() == [10.0]


def test_the_target_carries_no_graph() -> None:
    q = torch.zeros(3, 2, requires_grad=True)
    target = td_target(torch.zeros(3), torch.ones(3), q, next_online_q=q)
    assert not target.requires_grad


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 7), (torch.float32, 32)])
def test_the_seed_is_the_losss_own_gradient(scale: int, dtype: torch.dtype, size: int) -> None:
    rng = torch.Generator().manual_seed(0)
    q = (3 * torch.randn(size, 6, generator=rng, dtype=dtype)).requires_grad_()
    action = torch.randint(0, 6, (size,), generator=rng)
    target = torch.randn(size, generator=rng, dtype=dtype)
    td_loss(q, action, target, scale=scale).backward()
    seed = td_seed(q, action, target, scale=scale)
    assert not seed.requires_grad
    assert (seed != 0).sum() == size
    if dtype == torch.float32:  # a power of two: division and product round alike
        assert torch.equal(seed, q.grad)
    else:
        assert (seed - q.grad).abs().max() < 1e-15


def test_the_listing_of_the_source_gives_the_same_seed() -> None:
    q, action = torch.tensor([[0.2, 5.0], [1.0, -0.5]]), torch.tensor([1, 0])
    target = torch.tensor([0.0, 0.5])
    diff = (q.gather(1, action[:, None]).squeeze(1) - target).clamp(-1, 1)
    d = torch.zeros_like(q)
    d[torch.arange(2), action] = 2.0 * diff / 2
    assert torch.equal(td_seed(q, action, target), d)
    assert d.tolist() == [[0.0, 1.0], [0.5, 0.0]]


def test_the_loss_is_the_mean_of_hubers() -> None:
    q, target = torch.tensor([[0.5], [3.0]]), torch.tensor([0.0, 0.0])
    loss = td_loss(q, torch.tensor([0, 0]), target, scale=1)
    assert loss.item() == pytest.approx((0.5 * 0.25 + (3.0 - 0.5)) / 2)


def test_weights_multiply_each_ones_loss_before_the_mean_over_the_batch() -> None:
    q, target = torch.tensor([[0.5], [3.0]], requires_grad=True), torch.tensor([0.0, 0.0])
    loss = td_loss(q, torch.tensor([0, 0]), target, scale=2, weight=torch.tensor([1.0, 0.25]))
    loss.backward()
    assert loss.item() == pytest.approx(2 * (0.5 * 0.25 + 0.25 * (3.0 - 0.5)) / 2)
    assert q.grad.tolist() == [[pytest.approx(2 * 0.5 / 2)], [pytest.approx(2 * 0.25 / 2)]]


def test_weights_of_one_change_no_bit() -> None:
    rng = torch.Generator().manual_seed(0)
    q, target = torch.randn(32, 6, generator=rng), torch.randn(32, generator=rng)
    action = torch.randint(0, 6, (32,), generator=rng)
    assert torch.equal(td_loss(q, action, target), td_loss(q, action, target, weight=torch.ones(32)))


def test_an_error_is_the_distance_of_the_taken_action_and_at_most_one() -> None:
    q = torch.tensor([[0.2, 9.0], [1.0, -0.5], [7.0, 0.0]], requires_grad=True)
    error = td_error(q, torch.tensor([0, 1, 0]), torch.tensor([0.5, 0.0, 0.0]))
    assert error.tolist() == [pytest.approx(0.3), 0.5, 1.0]
    assert not error.requires_grad
