"""What each of two processes runs for `test_parallel.py`: every scenario three ways, results saved for the tests.

    torchrun --nproc-per-node 2 parallel_worker.py FOLDER

A scenario that raises saves the error's text in the place of its results.
"""

from __future__ import annotations

import datetime
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradledger import sweep

STEPS, MICRO, BATCH, WIDTH = 3, 3, 4, 6
SMALL = 3e-4  # MB: a bucket for every two or three parameters


class Tied(nn.Module):
    """Uses the weight of another block, as an output layer does with an embedding."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.weight = other.weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Sometimes(nn.Module):
    """Uses its second layer only where the batch asks for it, and its third never."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.asked, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.always(x)
        return y + self.asked(x) if x[0, 0] > 0 else y


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, state: tuple[Tensor, Tensor]) -> Tensor:
        return self.layer(state[0]) + state[1]


def layers(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
    ).to(dtype)


def tied() -> nn.Sequential:
    first, both = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(first, nn.Tanh(), both, nn.Tanh(), both, Tied(first))


def norms() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
    )


def unused() -> nn.Sequential:
    return nn.Sequential(Sometimes(), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def skips() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Split(), Join(), nn.Tanh(), Split(), Join())


def pairs() -> nn.Sequential:
    """Blocks of several layers each, for sharding."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh()),
        nn.Sequential(nn.Linear(2 * WIDTH, 2 * WIDTH), nn.LayerNorm(2 * WIDTH)),
        nn.Tanh(),
        nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)),
    ).double()


# name: model, arguments of DistributedDataParallel, micro-batches a step, a plan that recomputes
REPLICATED: dict[str, tuple[Callable[[], nn.Sequential], dict[str, Any], int, str]] = {
    "layers": (layers, {}, 1, "0 (1 2) (3 4) 5"),
    "float64": (lambda: layers(torch.float64), {}, 1, "0 (1 2) (3 4) 5"),
    "tied": (tied, {}, 1, "0 (1 2 3) 4 5 6"),
    "norms": (norms, {}, 1, "(0 1 2) (3 4) 5"),
    "no_sync": (layers, {}, MICRO, "(0 1) 2 (3 4) 5"),
    "no_sync tied": (tied, {}, MICRO, "(0 1) 2 (3 4) 5 6"),
    "no_sync norms": (norms, {}, MICRO, "(0 1 2) (3 4) 5"),
    "bucket view": (tied, {"gradient_as_bucket_view": True}, MICRO, "(0 1) 2 (3 4) 5 6"),
    "unused": (unused, {"find_unused_parameters": True}, 1, "(0 1) 2 3"),
    "no_sync unused": (unused, {"find_unused_parameters": True}, MICRO, "(0 1) 2 3"),
    "static": (tied, {"static_graph": True}, 1, "(0 1) 2 (3 4) 5 6"),
    "skips": (skips, {}, 1, "0 (1 2) 3 (4 5) 6"),
}
WAYS = ("plain", "sweep", "sweep recomputing", "autograd", "autograd recomputing")


def batches(rank: int, steps: int = STEPS, micro: int = 1, dtype: torch.dtype = torch.float32) -> list[Any]:
    """The batches of one process: for each step a list of (x, y)."""
    made = torch.Generator().manual_seed(11 + rank)
    out = []
    for step in range(steps):
        one = []
        for _ in range(micro):
            x = torch.randn(BATCH, WIDTH, generator=made, dtype=dtype)
            x[0, 0] = x[0, 0].abs() if step == 1 or (step == 2 and rank == 1) else -x[0, 0].abs()
            one.append((x, torch.randn(BATCH, WIDTH, generator=made, dtype=dtype)))
        out.append(one)
    return out


def trained(
    model: nn.Module, net: nn.Module, backward: Callable[[Tensor, Tensor], Tensor], data: Any, held: Any
) -> Any:
    """Train; what is there after each step. `held(last)`: the context of one micro-batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    out = []
    for step in data:
        losses = []
        for k, (x, y) in enumerate(step):
            with held(k == len(step) - 1):
                losses.append(backward(x, y).detach())
        grads = {n: None if p.grad is None else _whole(p.grad).clone() for n, p in net.named_parameters()}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        out.append(
            {
                "losses": losses,
                "grads": grads,
                "norm": _whole(norm).clone(),
                "parameters": {n: _whole(p.detach()).clone() for n, p in net.named_parameters()},
                "buffers": {n: b.clone() for n, b in net.named_buffers()},
            }
        )
        optimizer.zero_grad()
    return out


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


def replicated(name: str, way: str, rank: int) -> Any:
    make, arguments, micro, plan = REPLICATED[name]
    torch.manual_seed(3)
    net = make()
    ddp = DistributedDataParallel(net, bucket_cap_mb=SMALL, **arguments)
    backward = _way(way, ddp, plan)
    dtype = next(net.parameters()).dtype
    return trained(
        ddp, net, backward, batches(rank, STEPS, micro, dtype), lambda last: nullcontext() if last else ddp.no_sync()
    )


def _way(way: str, model: nn.Module, plan: str) -> Callable[[Tensor, Tensor], Tensor]:
    if way == "plain":

        def plain(x: Tensor, y: Tensor) -> Tensor:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        return plain
    s = sweep.Sweep(
        model,
        nn.functional.mse_loss,
        plan=plan if "recomputing" in way else None,
        engine="sweep" if way.startswith("sweep") else "autograd",
    )
    return s.backward


def sharded(name: str, way: str, rank: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    net = pairs()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for k in (0, 1, 3):
        fully_shard(net[k], mesh=mesh, reshard_after_forward=True)
    if "container" in name:
        fully_shard(net, mesh=mesh)
    backward = _way(way, net, "(0 1) (2 3) 4")
    micro = MICRO if "no_sync" in name else 1

    class Held:
        def __init__(self, last: bool) -> None:
            self.last = last

        def __enter__(self) -> None:
            for k in (0, 1, 3):
                net[k].set_requires_gradient_sync(self.last)  # type: ignore[operator]

        def __exit__(self, *_: object) -> None:
            pass

    result = trained(net, net, backward, batches(rank, STEPS, micro, torch.float64), Held)
    if "container" in name:  # the container itself still runs
        with torch.no_grad():
            result.append({"evaluated": net(batches(0, dtype=torch.float64)[0][0][0])})
    return result


SHARDED = ("blocks", "container", "no_sync blocks", "no_sync container")


# what is refused, and what is done by hand ----------------------------------------------------------------------------


def other(rank: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    mse = nn.functional.mse_loss
    x, y = batches(rank)[0][0]

    def refused(name: str, call: Callable[[], Any]) -> None:
        try:
            call()
            out[name] = None
        except Exception as error:
            out[name] = f"{type(error).__name__}: {error}"

    torch.manual_seed(3)
    ddp = DistributedDataParallel(layers())
    s = sweep.Sweep(ddp, mse)
    refused("step", lambda: s.step(x, y, optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1)))
    refused("inputs", lambda: s.backward(x, y, inputs=[ddp.module[0].weight]))
    refused("inside", lambda: sweep.Sweep([ddp, nn.Tanh()], mse))
    refused("own forward", lambda: sweep.blocks(DistributedDataParallel(Sometimes())))
    with_hook = DistributedDataParallel(layers())
    with_hook.register_forward_hook(lambda *_: None)
    refused("hooked", lambda: sweep.blocks(with_hook))
    lacking = sweep.Sweep(DistributedDataParallel(unused()), mse)
    refused("missing", lambda: lacking.backward(x, y))

    # a loss that fails leaves the reducer at rest: the next step is as ever
    fails = sweep.Sweep(ddp, lambda q, t: (_ for _ in ()).throw(ValueError("no")) if t is None else mse(q, t))
    refused("fails", lambda: fails.backward(x, None))
    fails.backward(x, y)
    out["after failure"] = [p.grad.clone() for p in ddp.parameters()]
    ddp.zero_grad()
    s.backward(x, y)
    out["never failed"] = [p.grad.clone() for p in ddp.parameters()]
    ddp.zero_grad()

    # the walk in the user's hands, one block deferred; forward and a loss of the user's own
    for event in s.reverse(x, y):
        if event.block == "2":
            event.defer_weights()
    out["by hand"] = [p.grad.clone() for p in ddp.parameters()]
    ddp.zero_grad()
    step = s.forward(x)
    step.backward(mse(step.output, y))
    out["own loss"] = [p.grad.clone() for p in ddp.parameters()]
    ddp.zero_grad()
    out["budget"] = float(sweep.Sweep(ddp, mse, budget="min").backward(x, y))
    out["budget grads"] = [p.grad.clone() for p in ddp.parameters()]
    out["verified"] = str(s.verify(x, y))

    torch.manual_seed(3)
    several = DistributedDataParallel(layers(), bucket_cap_mb=SMALL)
    log: list[str] = []

    def sent(_, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations, and these would be text
        log.append("sent")
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        assert work is not None
        return work.get_future().then(lambda f: f.value()[0])

    several.register_comm_hook(None, sent)
    watched_walk = sweep.Sweep(several, mse)
    for _ in range(2):  # the reducer makes its buckets after the first step
        several.zero_grad()
        log.clear()
        for event in watched_walk.reverse(x, y):
            log.append(event.block)
    out["order"] = list(log)
    out["sent by a hook"] = [p.grad.clone() for p in several.parameters()]

    torch.manual_seed(3)
    wrapped = DistributedDataParallel(sweep.wrap(layers(), layers=["0", "2"]))
    mse(wrapped(x), y).backward()
    out["wrapped"] = [p.grad.clone() for p in wrapped.parameters()]

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    whole = fully_shard(layers(), mesh=mesh)
    refused("container's own", lambda: sweep.Sweep(whole, mse))
    net = pairs()
    for k in (0, 1, 3):
        fully_shard(net[k], mesh=mesh)
    t = sweep.Sweep(net, mse)
    refused("sharded budget", lambda: sweep.Sweep(net, mse, budget="min"))
    refused("sharded recompute_all", lambda: sweep.Sweep(net, mse, plan="recompute_all"))
    refused("sharded reverse", lambda: t.reverse(x, y))
    refused("sharded step", lambda: t.step(x, y, optimizer=torch.optim.SGD(net.parameters(), lr=0.1)))
    refused("sharded verify", lambda: t.verify(x, y))
    twice = nn.Sequential(both := nn.Linear(WIDTH, WIDTH), nn.Tanh(), both)
    fully_shard(both, mesh=mesh)
    refused("sharded twice", lambda: sweep.Sweep(twice, mse))
    whole_loss = mse(twice(x), y)
    whole_loss.backward()
    out["twice plainly"] = [_whole(p.grad).clone() for p in twice.parameters()]
    twice.zero_grad()
    sweep.Sweep(twice, mse, engine="autograd").backward(x, y)
    out["twice"] = [_whole(p.grad).clone() for p in twice.parameters()]
    watched = sweep.Sweep(net, mse, watch_cotangents=True)
    watched.backward(x.double(), y.double())
    out["watched"] = [record.block for record in watched.cotangents.reverse] if watched.cotangents else None
    return out


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    rank = dist.get_rank()
    results: dict[str, Any] = {}
    jobs: list[tuple[str, Callable[[], Any]]] = [
        (f"{name} / {way}", lambda name=name, way=way: replicated(name, way, rank))  # type: ignore[misc]
        for name in REPLICATED
        for way in WAYS
    ]
    jobs += [
        (f"{name} / {way}", lambda name=name, way=way: sharded(name, way, rank))  # type: ignore[misc]
        for name in SHARDED
        for way in WAYS
    ]
    jobs.append(("other", lambda: other(rank)))
    for name, job in jobs:
        try:
            results[name] = job()
        except Exception:
            results[name] = traceback.format_exc()
        dist.barrier()
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
