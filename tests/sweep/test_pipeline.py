"""Chains trained as pipelines over two processes (gloo, CPU), against one process that accumulates the micro-batches.

Equal to the last bit: a stage computes what the blocks compute, each parameter adds its micro-batches in their order,
and the norm for the clip is taken over the same numbers.  Zero bubble takes input and weight halves apart; the same
products, so the same bits.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradledger import sweep
from gradledger.core.errors import SweepError
from gradledger.sweep._placement import split
from sweep import pipeline_worker as W


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("pipeline")
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", W.__file__, folder],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(W.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def result(results: list[dict[str, Any]], rank: int, name: str) -> Any:
    found = results[rank][name]
    assert not isinstance(found, str), f"rank {rank}, {name}: {found}"
    return found


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the processes have: with another number sums may be made in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def alone(name: str) -> list[dict[str, Any]]:
    """One process: plain backwards of the micro-batches, divided by their number."""
    torch.manual_seed(3)
    blocks = sweep.blocks(W.RUNS[name][0]())
    parameters, buffers = W.named(blocks)
    optimizer = torch.optim.SGD(list(parameters.values()), lr=0.1, momentum=0.9)
    out = []
    for x, y in W.batches():
        losses = []
        for part, target in zip(x.chunk(W.MICRO), y.chunk(W.MICRO), strict=True):
            state: Any = part
            for block in blocks:
                state = block.call(state)
            loss = nn.functional.mse_loss(state, target)
            loss.backward()
            losses.append(loss.detach())
        for p in parameters.values():
            assert p.grad is not None
            p.grad.div_(W.MICRO)
        grads = {n: p.grad.clone() for n, p in parameters.items() if p.grad is not None}
        norm = torch.nn.utils.clip_grad_norm_(list(parameters.values()), 0.5)
        optimizer.step()
        out.append(
            {
                "loss": torch.stack(losses).sum() / W.MICRO,
                "grads": grads,
                "norm": norm,
                "parameters": {n: p.detach().clone() for n, p in parameters.items()},
                "buffers": {n: b.clone() for n, b in buffers.items()},
            }
        )
        optimizer.zero_grad()
    return out


@pytest.mark.parametrize("name", W.RUNS)
def test_a_pipeline_gives_the_bits_of_one_process(results: list[dict[str, Any]], name: str) -> None:
    wanted = alone(name)
    parts = [result(results, rank, name)["steps"] for rank in (0, 1)]
    for step, whole in enumerate(wanted):
        losses = [p[step]["loss"] for p in parts if p[step]["loss"] is not None]
        assert len(losses) == 1
        assert torch.equal(losses[0], whole["loss"])
        for part in parts:
            assert torch.equal(part[step]["norm"], whole["norm"]), step
        for key in ("grads", "parameters", "buffers"):
            assert not parts[0][step][key].keys() & parts[1][step][key].keys()
            both = parts[0][step][key] | parts[1][step][key]
            assert both.keys() == whole[key].keys()
            for n, value in whole[key].items():
                assert torch.equal(both[n], value), (step, key, n)


@pytest.mark.parametrize("name", W.RUNS)
def test_both_processes_have_one_placement_and_nothing_else_moved(results: list[dict[str, Any]], name: str) -> None:
    first, second = (result(results, rank, name) for rank in (0, 1))
    assert first["placement"] == second["placement"]
    assert first["untouched"]
    assert second["untouched"]
    n = len(first["placement"].names)
    assert sorted(first["mine"] + second["mine"]) == list(range(n))
    if name.startswith("tied"):
        where = [{2, 4} <= set(part["mine"]) for part in (first, second)]
        assert any(where)


REFUSED = {
    "stages": ("stages=3 with schedule='1f1b' and 2 processes", "2 stages, one a process"),
    "schedule": ("schedule='backwards'", "zero-bubble-v"),
    "odd batch": ("(16, 6) float32 on cpu", "a multiple of the 5 micro-batches"),
    "tied ends": ("2 stages for 3 blocks, of which 2 must lie with the one before", "1 to 1 stages"),
    "loss": ("a loss that is no scalar tensor", "sum the losses"),
    "loss with parameters": ("a loss with parameters", "make its layers the last block"),
    "state": ("a object in the state after block 0", "tensors"),
    "batch": ("a batch with (8, 6) float32 on cpu", "(16, 6) float32 on cpu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_in_every_process(results: list[dict[str, Any]], name: str) -> None:
    said = [result(results, rank, "refused")[name] for rank in (0, 1)]
    for text in said:
        assert text is not None
        assert text.startswith("SweepError"), text
    assert all(part in said[0] for part in REFUSED[name]), said[0]


# placement ------------------------------------------------------------------------------------------------------------


def largest(seconds: list[float], cuts: tuple[int, ...]) -> float:
    edges = (0, *cuts, len(seconds))
    return max(sum(seconds[a:b]) for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize("rng_seed", range(60))
def test_no_other_cut_has_a_faster_slowest_stage(rng_seed: int) -> None:
    rng = random.Random(rng_seed)
    n = rng.randint(1, 9)
    seconds = [float(rng.choice([0, 1, 2, 3, 5, 8, 40])) for _ in range(n)]
    pairs = [tuple(sorted(rng.sample(range(n), 2))) for _ in range(rng.choice([0, 0, 1, 2]))] if n > 1 else []
    free = [c for c in range(1, n) if not any(low < c <= high for low, high in pairs)]
    for stages in range(1, len(free) + 2):
        cuts = split(seconds, stages, pairs)
        assert len(cuts) == stages - 1
        assert set(cuts) <= set(free)
        assert list(cuts) == sorted(set(cuts))
        best = min(largest(seconds, c) for c in itertools.combinations(free, stages - 1))
        assert largest(seconds, cuts) == best
    with pytest.raises(SweepError, match=f"{len(free) + 2} stages for {n} blocks"):
        split(seconds, len(free) + 2, pairs)


def test_a_long_chain_is_cut_at_once() -> None:
    seconds = [random.Random(k).random() for k in range(200)]
    cuts = split(seconds, 8)
    assert largest(seconds, cuts) <= sum(seconds) / 8 + max(seconds)


def test_a_pipeline_needs_processes() -> None:
    x = torch.ones(4, 2)
    with pytest.raises(SweepError, match=r"no process group.*torchrun"):
        sweep.pipeline(
            nn.Sequential(nn.Linear(2, 2)), stages=1, loss=nn.functional.mse_loss, example=(x, x), microbatches=2
        )


def test_a_placement_prints_its_stages() -> None:
    text = str(sweep.Placement(((0, 2), (2, 3)), (0.002, 0.001), ("a", "b", "c")))
    assert text.splitlines() == [
        "stage  blocks                         ms",
        "    0  a .. b                      2.000",
        "    1  c                           1.000",
        "balance 0.75",
    ]
