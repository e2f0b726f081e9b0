"""The experiments of the gradient lab: each a function that runs and returns numbers; nothing is printed or judged."""

from __future__ import annotations

import copy
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


def by_hand() -> dict[str, Any]:
    """Cases small enough for paper: losses are means over the elements, gradients are exact in float32."""
    x, w, b = torch.ones(1, 3), torch.ones(3, 2, requires_grad=True), torch.ones(1, 2, requires_grad=True)
    loss = F.mse_loss(torch.relu(x @ w + b), torch.ones(1, 2))
    loss.backward()  # type: ignore[no-untyped-call]
    told: dict[str, Any] = {
        "hand.loss": loss.item(),
        "hand.weight_grad": _grad(w).tolist(),
        "hand.bias_grad": _grad(b).tolist(),
        "hand.weight_grad_norm": _grad(w).norm().item(),
    }
    for name, inputs, weights in (
        ("completion", [[2.0, 0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        ("numerical", [[1.0, 1.0]], [[1.0, 2.0], [3.0, 4.0]]),
    ):
        w = torch.tensor(weights, requires_grad=True)
        loss = F.mse_loss(torch.tensor(inputs) @ w, torch.ones(1, 2))
        loss.backward()  # type: ignore[no-untyped-call]
        told |= {f"{name}.loss": loss.item(), f"{name}.weight_grad": _grad(w).tolist()}
    w = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)

    def scalar(weight: Tensor) -> Tensor:
        return (weight * 2.0 - 4.0) ** 2

    scalar(w).backward()  # type: ignore[no-untyped-call]
    step = 1e-3
    difference = (scalar(w.detach() + step) - scalar(w.detach() - step)).item() / (2 * step)
    return told | {"scalar.grad": _grad(w).item(), "scalar.central_difference": difference}


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
        "detach.shares": detached.data_ptr() == action.data_ptr(),
        "clone.shares": cloned.data_ptr() == action.data_ptr(),
    }
    detached[0, 0] = 99.0
    told["detach.write_arrives"] = action[0, 0].item() == 99.0
    cloned[0, 0] = -1.0
    return told | {"clone.write_arrives": action[0, 0].item() == -1.0}


def everything() -> dict[str, Any]:
    """All quantities of the lab by name."""
    kept, cleared = two_batches(clear=False), two_batches(clear=True)
    told = by_hand() | first_batch() | storages()
    told |= {"h2.norm_without_clear": kept, "h2.norm_with_clear": cleared, "h2.ratio": kept / cleared}
    for frozen in (True, False):
        for detached in (True, False):
            drift, graded = q_learning(detached=detached, frozen=frozen)
            name = f"h3.{'frozen' if frozen else 'trained'}.{'detached' if detached else 'attached'}"
            told |= {f"{name}.drift": drift, f"{name}.has_grad": graded}
    told |= {"h4.ratio": second_backward(), "break1.error": not_a_scalar()}
    return told | {"break2.without_clear": final_loss(clear=False), "break2.with_clear": final_loss(clear=True)}


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None  # every caller has run a backward over it
    return tensor.grad
