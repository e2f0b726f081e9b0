"""A trial that is stopped at a step drawn from its seed, and goes on as another process would find it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from gradledger.evidence import trial
from gradledger.train import RunState, seed


class Training(Protocol):
    """What a recipe trains: its whole state, and an epoch that can be stopped."""

    state: RunState
    losses: list[float]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Holds everything that is learned."""

    @property
    def loader(self) -> Sized:
        """Its length is that of an epoch, in optimizer steps."""

    def epoch(self, *, until: int | None = None) -> None:
        """The rest of the current epoch; `until` stops it after so many optimizer steps in all."""


T = TypeVar("T", bound=Training)


def trained(
    make: Callable[[], T], config: Mapping[str, Any], rng_seed: int, *, series: Sequence[str] = ("losses",)
) -> T:
    """All epochs of a trial. With `interrupt` in its settings it is stopped at a step drawn from the seed, and a new
    process's worth of objects goes on from its checkpoint.

    make: everything of the trial, built anew. series: its lists that only tell what happened, and are in no checkpoint.
    """
    run, epochs, stop = make(), config["epochs"], None
    if config["interrupt"]:
        in_all = epochs * len(run.loader)
        stop = int(np.random.default_rng(seed.derived(rng_seed, "stop")).integers(1, in_all))
    while run.state.counters["epoch"] < epochs:
        run.epoch(until=stop)
        if stop is not None and run.state.counters["optimizer_step"] == stop:
            with tempfile.TemporaryDirectory() as folder:
                run.state.save(folder, stop)
                told, run = {name: getattr(run, name) for name in series}, make()
                for group in run.optimizer.param_groups:
                    for parameter in group["params"]:
                        nn.init.zeros_(parameter)  # what the checkpoint does not bring would be missed
                run.state.load(folder)
            for name, values in told.items():
                setattr(run, name, values)
            stop = None
        trial.tell(run.state.counters["epoch"], epochs, **({"loss": run.losses[-1]} if run.losses else {}))
    return run
