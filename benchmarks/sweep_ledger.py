"""Row 8: a record of every cotangent (norm, extremes, zeros, finite) against torch's detect_anomaly.

    python benchmarks/sweep_ledger.py [--quick]

Time of the sweep with the record, read after every step, against the sweep without and against `loss.backward()` with
and without `detect_anomaly`.  Then a NaN is planted in the backward pass of one block after the other, and each time
the record must name that block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import sweep_models as models
import torch
from _alternate import Goals, Work, alternate, arguments, finish, ratio, table
from sweep_models import Problem
from sweep_peers import Entry, plain, sweep
from torch import Tensor, nn


class _Spoil(torch.autograd.Function):
    """Gives its input on, and one NaN back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        d_in = d_out.clone()
        d_in.view(-1)[0] = float("nan")
        return d_in


class Spoiled(nn.Module):
    """A block whose vector-Jacobian product holds one NaN."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return self.block(_Spoil.apply(x))


def watched(problem: Problem) -> Work:
    """The sweep with the record, read after every step."""
    from gradledger.sweep import Sweep

    driver = Sweep(problem.blocks, problem.loss_fn, watch_cotangents=True)

    def step() -> Tensor:
        loss = driver.backward(problem.x, problem.y)
        assert driver.cotangents is not None
        return loss

    return step


def anomaly(problem: Problem) -> Work:
    """`loss.backward()` under torch's anomaly detection."""

    def step() -> Tensor:
        with torch.autograd.set_detect_anomaly(True):
            return problem.plain()

    return step


def births(make: Callable[[], Problem], every: int) -> tuple[int, int, str]:
    """Plant a NaN in each block but the first: how often it was named, of how many, the misses."""
    from gradledger.sweep import Sweep

    right, tried, missed = 0, 0, []
    for at in range(1, len(make().blocks), every):
        problem = make()
        problem.blocks[at] = Spoiled(problem.blocks[at])
        driver = Sweep(problem.blocks, problem.loss_fn, watch_cotangents=True)
        driver.backward(problem.x, problem.y)
        born = driver.cotangents.born if driver.cotangents is not None else None
        wanted = driver.chain.blocks[at].name
        tried += 1
        right += born is not None and born.block == wanted and born.phase == "reverse"
        if born is None or born.block != wanted:
            missed.append(f"{wanted} taken for {born}")
    return right, tried, "; ".join(missed)


def anomaly_says(make: Callable[[], Problem], at: int) -> str:
    """What torch says of the same fault."""
    problem = make()
    problem.blocks[at] = Spoiled(problem.blocks[at])
    spoiled = Problem(problem.name, problem.blocks, problem.x, problem.y, problem.loss_fn)
    with contextlib.suppress(UserWarning), torch.autograd.set_detect_anomaly(True):
        try:
            spoiled.plain()
        except RuntimeError as error:
            return str(error).splitlines()[0]
    return "nothing"


def main() -> None:
    """Times of three models, then the planted NaNs."""
    given = arguments(__doc__, rounds=21, quick=5)
    goals = Goals()
    rows = []
    for name, make in models.THREE.items():
        ways = {"plain": plain, "detect_anomaly": anomaly, "sweep": sweep(), "sweep, watched": watched}
        turns = alternate(
            {way: Entry.of(method, make) for way, method in ways.items()}, rounds=given.rounds, least_s=0.05
        )
        over = ratio(turns, "sweep, watched", "sweep")
        rows.append(
            (
                name,
                over,
                ratio(turns, "sweep, watched", "plain"),
                ratio(turns, "sweep", "plain"),
                ratio(turns, "detect_anomaly", "plain"),
            )
        )
        goals.at_most(f"{name}: sweep with the record / sweep", over.median, 1.05)
    table(rows, ("model", "watched / sweep", "watched / plain", "sweep / plain", "detect_anomaly / plain"))
    for name in ("q_network", "chain39"):
        make = models.THREE[name]
        right, tried, missed = births(make, 6 if given.quick and name == "chain39" else 1)
        goals.holds(f"{name}: NaN planted in a block, that block named", right == tried, f"{right} of {tried} {missed}")
    print(f"  detect_anomaly on the same fault: {anomaly_says(models.q_network, 2)}")
    finish(goals, given)


if __name__ == "__main__":
    main()
