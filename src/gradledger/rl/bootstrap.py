"""The bootstrap target of (Double) DQN, and the loss against it as a value and as a seed cotangent."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

SeedScale = Literal[1, 2]


def td_target(
    reward: Tensor, discount: Tensor, next_target_q: Tensor, *, next_online_q: Tensor | None = None
) -> Tensor:
    """Return reward + discount * value of the next state, without a graph.

    Args:
        reward: (B,) n-step return of each window. discount: (B,) 0 after a termination, else gamma^k.
        next_target_q: (B, A) the target network's values of the next state.
        next_online_q: (B, A) the online network's values; given, the online network selects the action and the target
            network evaluates it (Double DQN). Without it the target network does both.

    Returns:
        (B,) the `td_target`. Where the discount is 0 the next values do not count, whatever they are (also nan).

    Reference: van Hasselt, Guez and Silver, Deep Reinforcement Learning with Double Q-learning, 2016.
    """
    with torch.no_grad():
        chooser = next_target_q if next_online_q is None else next_online_q
        value = next_target_q.gather(1, chooser.argmax(dim=1, keepdim=True)).squeeze(1)
        return reward + torch.where(discount == 0, torch.zeros_like(value), discount * value)


def td_error(q: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """(B, A), (B,), (B,) -> (B,) |q of the taken action - target|, at most 1, without a graph: a transition's priority.

    Clipped as the loss clips it. Reference: Schaul and others, 2016, section 4.
    """
    with torch.no_grad():
        return (q.gather(1, action[:, None]).squeeze(1) - target).abs().clamp(max=1)


def td_loss(
    q: Tensor, action: Tensor, target: Tensor, *, scale: SeedScale = 2, weight: Tensor | None = None
) -> Tensor:
    """Huber loss with threshold 1 of the taken actions' values, *mean* over the batch, times `scale`.

    Args:
        q: (B, A). action: (B,) int64. target: (B,), without a graph.
        scale: 2 makes the gradient 2 * clamp(q - target, -1, 1) / B, which is that of the squared error as long as the
            error is below 1; 1 is the Huber loss itself. Adam divides a constant factor out again; what it changes is
            how often the clip at a global norm bites, and the weight of Adam's epsilon.
        weight: (B,) factors on each one's loss, before the mean over B (not over the sum of the weights).

    Returns:
        Scalar loss.
    """
    taken = q.gather(1, action[:, None]).squeeze(1)
    if weight is None:
        return scale * smooth_l1_loss(taken, target)
    return scale * (weight * smooth_l1_loss(taken, target, reduction="none")).mean()


def td_seed(q: Tensor, action: Tensor, target: Tensor, *, scale: SeedScale = 2) -> Tensor:
    """The cotangent of q under `td_loss`: scale * clamp(q - target, -1, 1) / B at the taken action, else 0.

    Returns:
        (B, A), without a graph.
    """
    with torch.no_grad():
        taken = q.gather(1, action[:, None])
        error = (taken - target[:, None]).clamp(-1, 1)
        return torch.zeros_like(q).scatter(1, action[:, None], scale * error / len(q))
