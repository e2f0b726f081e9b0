"""What each of two processes runs for `test_ranks.py`: scenarios of saving and loading together.

    torchrun --nproc-per-node 2 rank_worker.py FOLDER

Each rank writes what it saw of every scenario to `FOLDER/<rank>.json`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from gradledger.core.checkpoints import candidates, complaint
from gradledger.data.groups import content_hash
from gradledger.data.loader import Loader
from gradledger.train import RunState, Shadow, _hashed, checkpoint, seed_all

STEPS, EVERY = 8, 3


class Refuses:
    """Takes no state on rank 1."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if dist.get_rank() == 1 and state["value"] == 7:
            raise ValueError("not on this rank")
        self.value = state["value"]


class Program:
    """A data-parallel run: dropout and noise of each rank's own, a shard of the data, batch statistics that differ."""

    def __init__(self, width: int = 16, **more: Any) -> None:
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        body = nn.Sequential(
            nn.Linear(4, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, 1)
        )
        # without broadcasts the running statistics of normalisation are those of each rank's own batches
        self.net = nn.parallel.DistributedDataParallel(body, broadcast_buffers=False)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.ema = Shadow(body)
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(40, 4, generator=generator)
        data = list(zip(x, x.sum(1, keepdim=True), strict=True))
        mine = (self.rank, dist.get_world_size())
        self.loader = Loader(data, batch_size=3, rng_seed=1, randomness="none", shard=mine)
        self.noise = np.random.Generator(np.random.Philox(100 + self.rank))
        seed_all(50 + self.rank)
        random.gauss(0, 1)  # leaves a second number waiting
        self.state = RunState(
            net=self.net,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            ema=self.ema,
            order=self.loader,
            noise=self.noise,
            **{"ranks": True, **more},
        )

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        own = random.gauss(0, 0.1) + float(self.noise.normal(0, 0.1)) + float(np.random.normal(0, 0.1))
        self.optimizer.zero_grad()
        loss = (self.net(x) - y - own).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.ema.blend(0.1)
        self.state.counters["optimizer_step"] += 1
        return float(loss.detach())

    def run(self, folder: Path | None) -> list[str]:
        """Losses to the bit, with a checkpoint every few steps."""
        losses = []
        while self.state.counters["optimizer_step"] < STEPS:
            for x, y in self.loader:
                losses.append(self.step(x, y).hex())
                done = self.state.counters["optimizer_step"]
                if folder is not None and done % EVERY == 0:
                    self.state.save(folder, done, facts={"loss": losses[-1]})
                if done == STEPS:
                    break
        return losses

    def weights(self) -> list[str]:
        held = (*self.net.state_dict().values(), *self.ema.model.parameters())
        return [content_hash({"": tensor}) for tensor in held]


def refused(call: Callable[[], Any]) -> str:
    """The error's text, "" where there is none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def goes_on(folder: Path) -> dict[str, Any]:
    alone = Program()
    losses = alone.run(folder / "run")
    again = Program()
    random.seed(9)
    saved = again.state.load(folder / "run")
    return {
        "losses": losses,
        "step": saved.step,
        "fact": saved.facts["loss"],
        "after": again.run(None),
        "weights": [alone.weights(), again.weights()],
    }


def files(folder: Path) -> dict[str, Any]:
    made = folder / "run" / "step-000000000006"
    return {path.name: path.stat().st_size for path in made.iterdir()}


def a_rank_without_its_file(folder: Path) -> str:
    program = Program()
    program.state.save(folder / "damaged", 1)
    dist.barrier()
    if program.rank == 0:
        (folder / "damaged/step-000000000001/rank-00001-random.safetensors").unlink()
    dist.barrier()
    return refused(lambda: program.state.load(folder / "damaged"))


def a_rank_that_cannot_write(folder: Path) -> Any:
    program = Program()
    program.state.save(folder / "full", 1)
    real = checkpoint.write_part

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    checkpoint.write_part = full
    said = refused(lambda: program.state.save(folder / "full", 2))
    checkpoint.write_part = real
    return said, program.state.load(folder / "full").step, program.state.save(folder / "full", 3).name


def the_first_cannot_write(folder: Path) -> Any:
    program = Program()
    program.state.save(folder / "first", 1)
    real = _hashed.save_file

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    if program.rank == 0:
        _hashed.save_file = full
    said = refused(lambda: program.state.save(folder / "first", 2))
    _hashed.save_file = real
    early = refused(lambda: program.state.save(folder / "first", -2))
    left = sorted(path.name for path in (folder / "first").iterdir())
    dist.barrier()
    return said, early, left, program.state.load(folder / "first").step


def another_network_on_one_rank(folder: Path) -> Any:
    program = Program()
    program.state.save(folder / "narrow", 1)
    net = nn.Linear(4, 1 + dist.get_rank())
    other = RunState(net=net, ranks=True)
    before = net.weight.clone()
    said = refused(lambda: other.load(folder / "narrow"))
    return said, torch.equal(before, net.weight)


def a_state_that_one_rank_refuses(folder: Path) -> Any:
    net, odd = nn.Linear(2, 1), Refuses()
    state = RunState(net=net, odd=odd, ranks=True)
    odd.value = 7
    state.save(folder / "odd", 1)
    odd.value = 1
    before = net.weight.detach().clone()
    said = refused(lambda: state.load(folder / "odd"))
    return said, odd.value, torch.equal(before, net.weight)


def for_itself(folder: Path) -> Any:
    """The common `if rank == 0: save`, and all load."""
    net = nn.Linear(2, 1)
    state = RunState(net=net)
    if dist.get_rank() == 0:
        state.save(folder / "itself", 1)
    dist.barrier()
    said = refused(lambda: state.load(folder / "itself"))
    together = refused(lambda: RunState(net=net, ranks=True).load(folder / "itself"))
    lost = state.load_weights(folder / "itself")
    return said, together, lost


def one_rank_alone(folder: Path) -> str:
    state = RunState(net=nn.Linear(2, 1), ranks=True, wait_s=3.0)
    said = refused(lambda: state.save(folder / "alone", 1)) if dist.get_rank() == 0 else ""
    dist.barrier()
    return said


def other_things_on_one_rank(folder: Path) -> str:
    more = {"extra": nn.Linear(1, 1)} if dist.get_rank() == 1 else {}
    return refused(lambda: RunState(net=nn.Linear(2, 1), ranks=True, **more).save(folder / "things", 1))


def in_pieces(folder: Path) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = nn.Linear(4, 2)
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    return refused(lambda: RunState(net=net, ranks=True))


def a_rank_that_dies(folder: Path) -> Any:
    """Rank 1 is gone in the middle of its file; rank 0 tells what it saw and what is left."""
    state = RunState(net=nn.Linear(2, 1), ranks=True, wait_s=20.0)
    torch.manual_seed(dist.get_rank())
    state.save(folder / "dies", 1)
    if dist.get_rank() == 1:
        checkpoint.write_part = lambda *_: os._exit(0)
    said = refused(lambda: state.save(folder / "dies", 2))
    left = {path.name: complaint(path, deep=True) for path in candidates(folder / "dies")}
    return said, left


SCENARIOS = (
    goes_on,
    files,
    a_rank_without_its_file,
    a_rank_that_cannot_write,
    the_first_cannot_write,
    another_network_on_one_rank,
    a_state_that_one_rank_refuses,
    for_itself,
    other_things_on_one_rank,
    in_pieces,
    one_rank_alone,
)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    said: dict[str, Any] = {}
    for scenario in SCENARIOS:
        try:
            said[scenario.__name__] = scenario(folder)
        except Exception:
            said[scenario.__name__] = {"broke": traceback.format_exc()}
            break
    told = folder / f"{dist.get_rank()}.json"
    told.write_text(json.dumps(said))
    told.write_text(json.dumps({**said, "a_rank_that_dies": a_rank_that_dies(folder)}))
    os._exit(0)  # a group in which one rank timed out cannot be taken down in order


if __name__ == "__main__":
    main()
