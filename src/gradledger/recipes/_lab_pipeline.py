"""The experiments of the pipeline lab on the 3-link planar arm: functions that run and return numbers.

Unit links; pose (x, y, phi) in (m, m, rad), joints (q1, q2, q3) in rad. q1 turns the full circle, q2 and q3 stay off
both singularities, and there the map from joints to pose can be inverted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

PAIRS, BATCH, WIDTH, EPOCHS, RATE, MARGIN = 8_000, 64, 128, 40, 3e-3, 0.15


def forward_kinematics(joints: Tensor) -> Tensor:
    """(..., 3) joints -> (..., 3) pose."""
    q1, q2, q3 = joints.unbind(-1)
    first, second, third = q1, q1 + q2, q1 + q2 + q3
    return torch.stack(
        [first.cos() + second.cos() + third.cos(), first.sin() + second.sin() + third.sin(), third], dim=-1
    )


def inverse_kinematics(pose: Tensor) -> Tensor:
    """(..., 3) pose -> (..., 3) joints, in closed form: two unit links meet at the wrist, the elbow bends left."""
    x, y, phi = pose.unbind(-1)
    wrist_x, wrist_y = x - phi.cos(), y - phi.sin()
    # Two unit links reach r = 2 cos(q2 / 2); atan2 keeps the precision that arccos loses near its ends.
    reach = torch.hypot(wrist_x, wrist_y)
    q2 = 2 * torch.atan2((4 - reach * reach).clamp_min(0).sqrt(), reach)
    q1 = torch.atan2(wrist_y, wrist_x) - q2 / 2
    q1 = torch.remainder(q1 + math.pi, 2 * math.pi) - math.pi
    return torch.stack([q1, q2, phi - q1 - q2], dim=-1)


def determinant(joints: Tensor) -> Tensor:
    """(..., 3) -> (...) of the Jacobian of the pose by the joints: sin q2, whatever q1 and q3 are."""
    return joints[..., 1].sin()


@dataclass(frozen=True)
class Data:
    """8,000 pairs under rng_seed 42, permuted, then 80 to 20. All (N, 3) float32."""

    train_pose: Tensor
    train_joints: Tensor
    validation_pose: Tensor
    validation_joints: Tensor

    @cached_property
    def baseline(self) -> float:
        """Validation error, mean squared in rad², of the mean of the training targets."""
        mean = self.train_joints.mean(0).expand_as(self.validation_joints)
        return nn.functional.mse_loss(mean, self.validation_joints).item()

    def pairs(self, *, by_first_joint: bool = False) -> TensorDataset:
        """The training pairs, as drawn or sorted by q1."""
        order = torch.argsort(self.train_joints[:, 0]) if by_first_joint else slice(None)
        return TensorDataset(self.train_pose[order], self.train_joints[order])


def make_data(rng_seed: int = 42) -> Data:
    """Draw the pairs."""
    torch.manual_seed(rng_seed)
    q1 = (torch.rand(PAIRS) * 2 - 1) * math.pi
    q2, q3 = (MARGIN + (math.pi - 2 * MARGIN) * torch.rand(PAIRS) for _ in range(2))
    joints = torch.stack([q1, q2, q3], dim=-1)
    pose = forward_kinematics(joints)
    order = torch.randperm(PAIRS)
    pose, joints, cut = pose[order], joints[order], PAIRS * 4 // 5
    return Data(pose[:cut], joints[:cut], pose[cut:], joints[cut:])


class IKNet(nn.Module):
    """Pose to joints, two hidden layers of 128."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, pose: Tensor) -> Tensor:
        """(B, 3) -> (B, 3)."""
        hidden = torch.relu(self.fc2(torch.relu(self.fc1(pose))))
        return self.fc3(hidden)  # type: ignore[no-any-return]


def fresh_net(rng_seed: int = 0) -> IKNet:
    """A net with the weights of this seed; the stream of torch stands behind them afterwards."""
    torch.manual_seed(rng_seed)
    return IKNet()


@dataclass(frozen=True)
class Trained:
    """losses: mean over the batches of each epoch. train, validation: mean squared error in rad² at the end."""

    losses: tuple[float, ...]
    train: float
    validation: float
    gradients_at_step: tuple[bool, ...]  # whether fc1.weight had a gradient when the optimizer stepped, first 3 steps


def train(
    data: Data,
    *,
    shuffle: bool,
    by_first_joint: bool = False,
    epochs: int = EPOCHS,
    clear: str = "before backward",
    on_epoch: Callable[[int, float], None] | None = None,
) -> Trained:
    """Adam, cosine over the epochs, batches of 64. clear: "before backward", or the fault "after backward"."""
    net = fresh_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    batches = DataLoader(data.pairs(by_first_joint=by_first_joint), batch_size=BATCH, shuffle=shuffle)
    losses: list[float] = []
    seen: list[bool] = []
    for epoch in range(epochs):
        total = 0.0
        for pose, joints in batches:
            if clear == "before backward":
                optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(pose), joints)
            loss.backward()  # type: ignore[no-untyped-call]
            if clear == "after backward":
                optimizer.zero_grad()
            if len(seen) < 3:
                seen.append(net.fc1.weight.grad is not None)
            optimizer.step()
            total += loss.item()
        scheduler.step()
        losses.append(total / len(batches))
        if on_epoch is not None:
            on_epoch(epoch, losses[-1])
    with torch.no_grad():
        errors = [
            nn.functional.mse_loss(net(pose), joints).item()
            for pose, joints in (
                (data.train_pose, data.train_joints),
                (data.validation_pose, data.validation_joints),
            )
        ]
    return Trained(tuple(losses), errors[0], errors[1], tuple(seen))


def early_optimizer(data: Data) -> dict[str, Any]:
    """H4: the head is replaced after the optimizer was built; 50 steps at 1e-3, each on the first batch of a new
    shuffle."""
    net = fresh_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net.fc3 = nn.Linear(WIDTH, 3)
    before = net.fc3.weight.detach().clone()
    batches = DataLoader(data.pairs(), batch_size=BATCH, shuffle=True)
    for _ in range(50):
        pose, joints = next(iter(batches))
        optimizer.zero_grad()
        nn.functional.mse_loss(net(pose), joints).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    gradient = net.fc3.weight.grad
    assert gradient is not None  # the last step ran a backward
    return {
        "h4.head_grad_norm": float(gradient.norm()),
        "h4.head_unchanged": torch.equal(before, net.fc3.weight),
        "h4.head_in_optimizer": id(net.fc3.weight) in held,
        "h4.body_in_optimizer": id(net.fc1.weight) in held,
    }


def order_of(data: Data, *, generator_seed: int, shuffle: bool = True, workers: int = 0) -> Tensor:
    """(N, 3): the poses of one epoch, in the order in which they come."""
    generator = torch.Generator().manual_seed(generator_seed)
    batches = DataLoader(
        data.pairs(),
        batch_size=BATCH,
        shuffle=shuffle,
        num_workers=workers,
        generator=generator,
        multiprocessing_context="fork" if workers else None,
    )
    return torch.cat([pose for pose, _ in batches])


def orders(data: Data) -> dict[str, bool]:
    """Who owns the order of the batches: the generator's seed, and only with shuffle=True."""
    first = order_of(data, generator_seed=0)
    return {
        "order.same_seed_same": torch.equal(first, order_of(data, generator_seed=0)),
        "order.other_seed_same": torch.equal(first, order_of(data, generator_seed=1)),
        "order.unshuffled_ignores_seed": torch.equal(
            order_of(data, generator_seed=0, shuffle=False), order_of(data, generator_seed=1, shuffle=False)
        ),
    }


def stepped_per_batch(steps: int = 400, *, horizon: int = 200, rate: float = RATE) -> list[float]:
    """The rates of a cosine that is stepped once a batch: it does not end at its horizon, it climbs again."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=horizon)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates
