"""The experiments of the gradient lab: each a function that runs and returns numbers; nothing is printed or judged."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RNG_SEED, BATCH, JOINTS, STEPS, RATE = 42, 8, 6, 50, 0.01


def _policy_and_batch() -> tuple[nn.Linear, Tensor, Tensor]:
    """The policy first, then the observations, then the targets, all from one stream. (B, 6) each."""
    torch.manual_seed(RNG_SEED)
    policy = nn.Linear(JOINTS, JOINTS)
    return policy, torch.randn(BATCH, JOINTS), torch.randn(BATCH, JOINTS)


Rows = list[list[float]]


def layer(x: Rows, weight: Rows, bias: Rows, target: Rows, *, relu: bool) -> tuple[float, Tensor, Tensor]:
    """A case for paper: (loss, gradient of the weight, gradient of the bias) of (B, I) @ (I, O) + (1, O); the loss is a
    mean over the elements, and every number is exact in float32."""
    w, b = torch.tensor(weight, requires_grad=True), torch.tensor(bias, requires_grad=True)
    said = torch.tensor(x) @ w + b
    loss = F.mse_loss(torch.relu(said) if relu else said, torch.tensor(target))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), _grad(w), _grad(b)


def on_paper(case: Mapping[str, Any]) -> dict[str, float]:
    """A case against what was worked out by hand: `by_hand`, the gradient of the weight."""
    loss, weight, bias = layer(case["x"], case["weight"], case["bias"], case["target"], relu=case["relu"])
    return {
        "loss": loss,
        "off_by_hand": (weight - torch.tensor(case["by_hand"])).abs().max().item(),
        "weight_grad_norm": weight.norm().item(),
        "bias_grad_norm": bias.norm().item(),
    }


def scalar() -> dict[str, float]:
    """(2 w - 4)^2 at w = 1.5 in float64: its gradient, and the central difference with a step of 1e-3."""
    w = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)

    def squared(weight: Tensor) -> Tensor:
        return (weight * 2.0 - 4.0) ** 2

    squared(w).backward()  # type: ignore[no-untyped-call]
    step = 1e-3
    difference = (squared(w.detach() + step) - squared(w.detach() - step)).item() / (2 * step)
    return {"gradient": _grad(w).item(), "central_difference": difference}


def first_batch() -> dict[str, Any]:
    """H1: the gradient of the first batch against its closed form (2 / (N D)) (prediction - target)^T observation."""
    policy, obs, target = _policy_and_batch()
    prediction = policy(obs)
    F.mse_loss(prediction, target).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        closed = 2.0 / target.numel() * (prediction - target).t() @ obs
        away = (closed - _grad(policy.weight)).abs().max()
    return {"h1.norm": _grad(policy.weight).norm().item(), "h1.closed_form_distance": away.item()}


def two_batches(*, clear: bool) -> float:
    """H2: the gradient norm after the backward passes of two random batches, with or without a clear between."""
    policy, _, _ = _policy_and_batch()
    torch.manual_seed(RNG_SEED)
    batches = [(torch.randn(BATCH, JOINTS), torch.randn(BATCH, JOINTS)) for _ in range(2)]
    for obs, target in batches:
        if clear:
            policy.zero_grad()
        F.mse_loss(policy(obs), target).backward()  # type: ignore[no-untyped-call]
    return float(_grad(policy.weight).norm())


def second_backward() -> float:
    """H4: the gradient norm after two backward passes of one graph, over that after one."""
    policy, obs, target = _policy_and_batch()
    loss = F.mse_loss(policy(obs), target)
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    once = _grad(policy.weight).norm().item()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(_grad(policy.weight).norm() / once)


def q_learning(*, detached: bool, frozen: bool) -> tuple[float, bool]:
    """H3: one-step Q-learning for 50 steps. Returns (how far the target network's weights moved, whether they have a
    gradient). frozen: the target network asks for no gradient and is not in the optimizer."""
    torch.manual_seed(0)
    online = nn.Linear(4, 2)
    target_net = copy.deepcopy(online).requires_grad_(not frozen)
    trained = [*online.parameters(), *([] if frozen else target_net.parameters())]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    before = target_net.weight.detach().clone()
    for _ in range(STEPS):
        state, following, reward = torch.randn(16, 4), torch.randn(16, 4), torch.randn(16, 1)
        action = torch.randint(0, 2, (16, 1))
        value = target_net(following)
        value = value.detach() if detached else value
        td_target = reward + 0.99 * value.max(dim=1, keepdim=True).values
        loss = F.mse_loss(online(state).gather(1, action), td_target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return (target_net.weight.detach() - before).norm().item(), target_net.weight.grad is not None


def final_loss(*, clear: bool) -> float:
    """Break 2: the last of 50 losses of plain SGD, every batch new, with or without a clear."""
    torch.manual_seed(RNG_SEED)
    policy = nn.Linear(JOINTS, JOINTS)
    optimizer = torch.optim.SGD(policy.parameters(), lr=RATE)
    loss = torch.zeros(())
    for _ in range(STEPS):
        loss = F.mse_loss(policy(torch.randn(BATCH, JOINTS)), torch.randn(BATCH, JOINTS))
        if clear:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


def not_a_scalar() -> str:
    """Break 1: what torch says to the backward of a loss with 48 elements."""
    policy, obs, target = _policy_and_batch()
    try:
        (policy(obs) - target).pow(2).backward()
    except RuntimeError as error:
        return str(error)
    return ""


def storages() -> dict[str, bool]:
    """Which copies of an activation share its memory, and whether a write through one reaches it."""
    policy, obs, _ = _policy_and_batch()
    action = policy(obs)
    detached, cloned = action.detach(), action.detach().clone()
    told = {
        "detach_shares": detached.data_ptr() == action.data_ptr(),
        "clone_shares": cloned.data_ptr() == action.data_ptr(),
    }
    detached[0, 0] = 99.0
    told["detach_write_arrives"] = action[0, 0].item() == 99.0
    cloned[0, 0] = -1.0
    return told | {"clone_write_arrives": action[0, 0].item() == -1.0}


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None  # every caller has run a backward over it
    return tensor.grad
