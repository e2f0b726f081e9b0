"""What each of two processes runs for `test_pipeline.py`: chains trained as pipelines, results saved for the tests.

torchrun --nproc-per-node 2 pipeline_worker.py FOLDER
"""

from __future__ import annotations

import datetime
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradledger import sweep

STEPS, MICRO, BATCH, WIDTH = 3, 4, 16, 6


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"x": self.layer(x), "skip": x, "again": x, "count": 2}


class Middle(nn.Module):
    """Hands the skip connection through."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "x": torch.tanh(self.layer(state["x"]))}


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, state: dict[str, Any]) -> Tensor:
        return self.layer(state["x"]) + state["skip"] * state["again"] / state["count"]


class Tied(nn.Module):
    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.weight = other.weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def layers() -> nn.Sequential:
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def norms() -> nn.Sequential:
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())))


def skips() -> nn.Sequential:
    return nn.Sequential(Split(), Middle(), Middle(), Join(), Split(), Middle(), Join())


def tied() -> nn.Sequential:
    first = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), first, nn.Tanh(), Tied(first), nn.Linear(WIDTH, WIDTH))


def functions() -> list[Any]:
    head = nn.Linear(WIDTH, WIDTH)
    return [nn.Linear(WIDTH, WIDTH), torch.tanh, lambda x: head(x).t().t(), nn.Linear(WIDTH, WIDTH)]


# name: model, stages, schedule
RUNS: dict[str, tuple[Callable[[], Any], int, Any]] = {
    "1f1b": (layers, 2, "1f1b"),
    "gpipe": (layers, 2, "gpipe"),
    "interleaved": (layers, 4, "interleaved"),
    "zero-bubble": (layers, 2, "zero-bubble"),
    "zero-bubble of four stages": (layers, 4, "zero-bubble"),
    "zero-bubble-v": (layers, 4, "zero-bubble-v"),
    "norms 1f1b": (norms, 2, "1f1b"),
    "norms zero-bubble": (norms, 2, "zero-bubble"),
    "norms zero-bubble-v": (norms, 4, "zero-bubble-v"),
    "skips 1f1b": (skips, 2, "1f1b"),
    "skips interleaved": (skips, 4, "interleaved"),
    "tied 1f1b": (tied, 2, "1f1b"),
    "functions 1f1b": (functions, 2, "1f1b"),
}
MSE = nn.functional.mse_loss


def batches() -> list[tuple[Tensor, Tensor]]:
    made = torch.Generator().manual_seed(5)
    return [
        (torch.randn(BATCH, WIDTH, generator=made), torch.randn(BATCH, WIDTH, generator=made)) for _ in range(STEPS)
    ]


def named(blocks: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers of blocks by block and name."""
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    seen: set[int] = set()
    for index, block in enumerate(blocks):
        for k, p in enumerate(block.parameters()):
            if id(p) not in seen:
                seen.add(id(p))
                parameters[f"{index}.{k}"] = p
        for k, (_, name, b) in enumerate(block.buffers()):
            buffers[f"{index}.{k}.{name}"] = b
    return parameters, buffers


def run(name: str) -> Any:
    make, stages, schedule = RUNS[name]
    torch.manual_seed(3)
    model = make()
    data = batches()
    before = torch.get_rng_state()
    pipe = sweep.pipeline(model, stages=stages, loss=MSE, example=data[0], microbatches=MICRO, schedule=schedule)
    untouched = torch.equal(before, torch.get_rng_state())
    mine = [k for s in pipe.stages for k in range(*pipe.placement.stages[s])]
    blocks = sweep.blocks(model)
    owned = {id(p) for p in pipe.parameters()}
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1, momentum=0.9)
    out: dict[str, Any] = {"placement": pipe.placement, "mine": mine, "untouched": untouched, "steps": []}
    for x, y in data:
        loss = pipe.step(x, y)
        parameters, buffers = named(blocks)
        parameters = {n: p for n, p in parameters.items() if id(p) in owned}
        grads = {n: None if p.grad is None else p.grad.clone() for n, p in parameters.items()}
        norm = pipe.clip_grad_norm_(0.5)
        optimizer.step()
        out["steps"].append(
            {
                "loss": loss,
                "grads": grads,
                "norm": norm,
                "parameters": {n: p.detach().clone() for n, p in parameters.items()},
                "buffers": {n: b.clone() for n, b in buffers.items() if int(n.split(".")[0]) in mine},
            }
        )
        optimizer.zero_grad()
    return out


def refused() -> dict[str, str | None]:
    out: dict[str, str | None] = {}
    x, y = batches()[0]

    def attempt(name: str, **changed: Any) -> None:
        arguments: dict[str, Any] = dict(stages=2, loss=MSE, example=(x, y), microbatches=MICRO)
        arguments.update(changed)
        model = arguments.pop("model", None) or layers()
        try:
            sweep.pipeline(model, **arguments)
            out[name] = None
        except Exception as error:
            out[name] = f"{type(error).__name__}: {error}"

    first = nn.Linear(WIDTH, WIDTH)
    attempt("stages", stages=3)
    attempt("schedule", schedule="backwards")
    attempt("odd batch", microbatches=5)
    attempt("tied ends", model=nn.Sequential(first, nn.Tanh(), Tied(first)))
    attempt("loss", loss=lambda q, t: (q - t) ** 2)
    attempt("loss with parameters", loss=nn.Sequential(first))
    attempt("state", model=nn.Sequential(Strange(), nn.Linear(WIDTH, WIDTH)))
    pipe = sweep.pipeline(layers(), stages=2, loss=MSE, example=(x, y), microbatches=MICRO)
    try:
        pipe.step(x[:8], y[:8])
        out["batch"] = None
    except Exception as error:
        out["batch"] = f"{type(error).__name__}: {error}"
    return out


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x, object()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    results: dict[str, Any] = {}
    for name in (*RUNS, "refused"):
        try:
            results[name] = refused() if name == "refused" else run(name)
        except Exception:
            results[name] = traceback.format_exc()
            print(name, results[name], file=sys.stderr)  # the other process may wait for this one in vain
        dist.barrier()
    torch.save(results, folder / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
