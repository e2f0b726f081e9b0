"""Experiments of the pipeline lab on what is held beside the weights: random streams, the state of a run, the data."""

from __future__ import annotations

import copy
import math
import tempfile
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gradledger.data.learnability import noise_floor
from gradledger.data.loader import Loader
from gradledger.recipes import _lab_pipeline as lab
from gradledger.train import RunState

STOP, AFTER = 60, 5  # optimizer steps before the stop, in the middle of an epoch, and after it
SIX = 10_000  # samples of the arm with six joints


class _Drawing(Dataset[tuple[Tensor, Tensor]]):
    """A pose, and a number that is drawn when it is fetched."""

    def __init__(self, pose: Tensor) -> None:
        self._pose = pose

    def __len__(self) -> int:
        return len(self._pose)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self._pose[at], torch.randn(())


def worker_streams(data: lab.Data) -> dict[str, bool]:
    """What the number of workers decides: not the order of the batches, but each sample's own random numbers."""

    def epoch(workers: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        batches = DataLoader(
            _Drawing(data.train_pose),
            batch_size=lab.BATCH,
            shuffle=True,
            num_workers=workers,
            generator=torch.Generator().manual_seed(0),
            multiprocessing_context="fork" if workers else None,
        )
        pose, drawn = zip(*batches, strict=True)
        return torch.cat(pose), torch.cat(drawn)

    (alone, drawn), (beside, drawn_beside), (again, drawn_again) = epoch(0), epoch(2), epoch(2)
    return {
        "order_of_two_workers_same": torch.equal(alone, beside),
        "numbers_of_two_workers_same": torch.equal(drawn, drawn_beside),
        "two_workers_repeat": torch.equal(beside, again) and torch.equal(drawn_beside, drawn_again),
    }


class _Run:
    """The training of the lab, with all that decides how it goes on."""

    def __init__(self, data: lab.Data) -> None:
        self.net = lab.fresh_net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lab.RATE)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=lab.EPOCHS)
        pairs = TensorDataset(data.train_pose, data.train_joints)
        self.loader = Loader(pairs, batch_size=lab.BATCH, rng_seed=0, randomness="none")
        self.state = RunState(
            net=self.net, optimizer=self.optimizer, scheduler=self.scheduler, order=self.loader, counters={"epoch": 0}
        )

    def steps(self, count: int) -> list[float]:
        """So many optimizer steps; the loss before each."""
        losses: list[float] = []
        while len(losses) < count:
            for pose, joints in self.loader:
                self.optimizer.zero_grad()
                loss = nn.functional.mse_loss(self.net(pose), joints)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                losses.append(loss.item())
                if len(losses) == count:
                    return losses
            self.scheduler.step()
            self.state.counters["epoch"] += 1
        return losses


def resumed(data: lab.Data, state: Literal["whole", "weights"]) -> dict[str, Any]:
    """A run that is stopped in the middle of an epoch, and new objects that go on from its checkpoint: with all of it,
    or with the weights alone. The run that was never stopped is the measure.

    least_update, largest_update: of the first step after it, |change| over the rate, over the coordinates that have a
    gradient; least over all but one in a hundred, for a gradient near Adam's eps moves less.
    """
    run = _Run(data)
    run.steps(STOP)
    again = _Run(data)
    with tempfile.TemporaryDirectory() as folder:
        run.state.save(folder, STOP)
        if state == "whole":
            again.state.load(folder)
        else:
            again.state.load_weights(folder)
    before = copy.deepcopy(list(again.net.parameters()))
    rate = again.optimizer.param_groups[0]["lr"]
    losses = again.steps(1)
    moved, filled = [], []
    for old, new in zip(before, again.net.parameters(), strict=True):
        assert new.grad is not None  # the step ran a backward
        moved.append(((new.detach() - old.detach()).abs() / rate).flatten())
        filled.append(new.grad.flatten() != 0)
    shares = torch.cat(moved)[torch.cat(filled)]
    losses += again.steps(AFTER - 1)
    straight = run.steps(AFTER)
    return {
        "losses_equal": losses == straight,
        "loss_over_straight": math.fsum(losses) / math.fsum(straight),
        "least_update": shares.quantile(0.01).item(),
        "largest_update": shares.max().item(),
    }


def learnability(data: lab.Data, arm: Literal["planar", "six joints"]) -> dict[str, float]:
    """What the data allow, asked before anything is trained: floor of the squared error in rad², and its share of the
    variance; of the planar arm also its determinant and how well its closed form inverts it."""
    if arm == "six joints":
        pose, joints = six_joints()
        floor = noise_floor(pose.numpy(), joints.numpy())
        return {"floor": floor.mse, "floor_over_variance": floor.ratio}
    joints = torch.cat([data.train_joints, data.validation_joints])
    pose = torch.cat([data.train_pose, data.validation_pose])
    floor = noise_floor(pose.numpy(), joints.numpy())
    turns = lab.determinant(joints.double())
    return {
        "floor": floor.mse,
        "floor_over_variance": floor.ratio,
        "smallest_determinant": turns.min().item(),
        "largest_determinant": turns.max().item(),
        "inverse_distance": (lab.inverse_kinematics(pose) - joints).abs().max().item(),
    }


def six_joints() -> tuple[Tensor, Tensor]:
    """(N, 3) pose, (N, 6) joints of an arm whose last three joints enter by their sum alone: z = q4 + q5 + q6."""
    drawn = torch.Generator().manual_seed(42)
    joints = (torch.rand(SIX, 6, generator=drawn) * 2 - 1) * math.pi
    angles = joints[:, :3].cumsum(1)
    return torch.stack([angles.cos().sum(1), angles.sin().sum(1), joints[:, 3:].sum(1)], dim=1), joints


def cosine_per_batch() -> dict[str, float]:
    """A cosine of horizon 200 that is stepped once a batch: its rate at 100, 200 and 400 steps, over the first one."""
    rates = lab.stepped_per_batch()
    return {f"rate_at_{at}": rates[at] / rates[0] for at in (100, 200, 400)}
