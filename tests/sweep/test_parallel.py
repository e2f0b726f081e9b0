"""Two processes (gloo, CPU): a sweep inside DistributedDataParallel or over sharded blocks, against the plain backward
of the same wrapper, and against one process that does the work of both.

With two processes the bits are equal: a gradient is (a/2 + b/2), halving is exact and a sum of two has one order.  One
process that sees both batches as one sums over samples in another order, so there only float64 and a tolerance of
rounding is right.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sweep import parallel_worker as W

ROUNDING = 1e-12  # relative, float64: sums over 24 samples in another order
CLIPPED = 1e-12  # relative and absolute, float64: a norm over shards, summed in another order, has gone into a clip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("parallel")
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", W.__file__, folder],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def result(results: list[dict[str, Any]], rank: int, name: str) -> Any:
    found = results[rank][name]
    assert not isinstance(found, str), f"rank {rank}, {name}: {found}"
    return found


def equal(a: Any, b: Any, where: str = "") -> None:
    """Both are the same, to the last bit."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            equal(a[key], b[key], f"{where} {key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for k, (one, two) in enumerate(zip(a, b, strict=True)):
            equal(one, two, f"{where} {k}")
    elif isinstance(a, Tensor):
        assert isinstance(b, Tensor), where
        assert torch.equal(a, b), f"{where}: {a} and {b}"
    else:
        assert (a, b) == (None, None), f"{where}: {a} and {b}"


@pytest.mark.parametrize("way", W.WAYS[1:])
@pytest.mark.parametrize("name", W.REPLICATED)
def test_a_sweep_inside_ddp_gives_what_ddp_gives(results: list[dict[str, Any]], name: str, way: str) -> None:
    for rank in (0, 1):
        equal(result(results, rank, f"{name} / {way}"), result(results, rank, f"{name} / plain"), name)


@pytest.mark.parametrize("way", W.WAYS[1:])
@pytest.mark.parametrize("name", W.SHARDED)
def test_a_sweep_over_sharded_blocks_gives_what_fsdp_gives(results: list[dict[str, Any]], name: str, way: str) -> None:
    for rank in (0, 1):
        equal(result(results, rank, f"{name} / {way}"), result(results, rank, f"{name} / plain"), name)


def alone(make: Any, micro: int, dtype: torch.dtype, *, broadcast: bool = True) -> list[list[dict[str, Any]]]:
    """One process that trains both replicas with plain backwards, and averages their gradients."""
    torch.manual_seed(3)
    nets = [make()]
    nets.append(copy.deepcopy(nets[0]))
    data = [W.batches(rank, W.STEPS, micro, dtype) for rank in (0, 1)]
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9) for n in nets]
    out: list[list[dict[str, Any]]] = [[], []]
    for step in range(W.STEPS):
        if broadcast:
            for mine, other in zip(nets[0].buffers(), nets[1].buffers(), strict=True):
                other.copy_(mine)
        losses: list[list[Tensor]] = [[], []]
        for rank, net in enumerate(nets):
            for x, y in data[rank][step]:
                loss = nn.functional.mse_loss(net(x), y)
                loss.backward()
                losses[rank].append(loss.detach())
        for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            parts = [t.grad / 2 for t in (p, q) if t.grad is not None]
            if parts:
                p.grad = sum(parts[1:], parts[0])
                q.grad = p.grad.clone()
        for rank, net in enumerate(nets):
            grads = {n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()}
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizers[rank].step()
            out[rank].append(
                {
                    "losses": losses[rank],
                    "grads": grads,
                    "norm": norm,
                    "parameters": {n: p.detach().clone() for n, p in net.named_parameters()},
                    "buffers": {n: b.clone() for n, b in net.named_buffers()},
                }
            )
            optimizers[rank].zero_grad()
    return out


@pytest.mark.parametrize("name", W.REPLICATED)
def test_two_processes_give_what_one_gives_that_does_the_work_of_both(results: list[dict[str, Any]], name: str) -> None:
    make, _, micro, _ = W.REPLICATED[name]
    wanted = alone(make, micro, torch.float64 if name == "float64" else torch.float32)
    for rank in (0, 1):
        equal(result(results, rank, f"{name} / sweep recomputing"), wanted[rank], name)


def test_both_batches_as_one_give_the_same_up_to_rounding(results: list[dict[str, Any]]) -> None:
    torch.manual_seed(3)
    net = W.REPLICATED["float64"][0]()
    data = [W.batches(rank, 1, 1, torch.float64)[0][0] for rank in (0, 1)]
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    nn.functional.mse_loss(net(x), y).backward()
    got = result(results, 0, "float64 / sweep")[0]["grads"]
    for name, p in net.named_parameters():
        assert torch.allclose(got[name], p.grad, rtol=ROUNDING, atol=0), name


@pytest.mark.parametrize("name", ["blocks", "no_sync container"])
def test_sharded_gradients_are_those_of_one_process(results: list[dict[str, Any]], name: str) -> None:
    """The first step to the bit; after it the clip has used a norm that was summed shard by shard."""
    wanted = alone(W.pairs, W.MICRO if "no_sync" in name else 1, torch.float64, broadcast=False)
    for rank in (0, 1):
        got = result(results, rank, f"{name} / sweep recomputing")
        equal(got[0]["grads"], wanted[rank][0]["grads"])
        equal(got[0]["buffers"], wanted[rank][0]["buffers"])
        for step in range(W.STEPS):
            for key in ("grads", "parameters", "buffers"):
                for n, value in wanted[rank][step][key].items():
                    assert torch.allclose(got[step][key][n], value, rtol=CLIPPED, atol=CLIPPED), (step, key, n)


def test_a_module_that_stands_twice_is_two_blocks() -> None:
    from gradledger import sweep

    assert [b.name for b in sweep.blocks(W.tied())] == ["0", "1", "2", "3", "4", "5"]


REFUSED = {
    "step": ("step with DistributedDataParallel", "use backward, clip_grad_norm_ and optimizer.step"),
    "inputs": ("inputs= with DistributedDataParallel", "requires_grad_(False)"),
    "inside": ("DistributedDataParallel inside block 0", "DistributedDataParallel(nn.Sequential(...))"),
    "own forward": ("DistributedDataParallel around Sometimes", "sweep.wrap(model, layers=[...])"),
    "hooked": ("DistributedDataParallel with forward hooks", "move the hooks to the first or last block"),
    "missing": ("no gradient for 0.asked.weight, 0.asked.bias, 0.never.weight and more", "find_unused_parameters=True"),
    "container's own": ("block 0, whose parameters the sharded container manages", "call fully_shard(model[0]) too"),
    "sharded budget": ("budget='min'", "plan=str(plan.plan)"),
    "sharded recompute_all": ("plan='recompute_all'", "plan=str(plan.plan)"),
    "sharded reverse": ("reverse with fully_shard", "watch_cotangents=True"),
    "sharded step": ("step with fully_shard", "use backward"),
    "sharded verify": ("verify with fully_shard", "before its blocks are sharded"),
    "sharded twice": ("blocks 0 and 2, which share a parameter", "engine='autograd'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused_with_what_to_do_instead(results: list[dict[str, Any]], name: str) -> None:
    for rank in (0, 1):
        said = result(results, rank, "other")[name]
        assert said is not None
        assert said.startswith("SweepError"), said
        for part in REFUSED[name]:
            assert part in said, said


def test_a_failed_loss_leaves_the_next_step_as_ever(results: list[dict[str, Any]]) -> None:
    for rank in (0, 1):
        found = result(results, rank, "other")
        assert found["fails"] == "ValueError: no"
        equal(found["after failure"], found["never failed"])


@pytest.mark.parametrize("way", ["by hand", "own loss", "budget grads", "wrapped", "sent by a hook"])
def test_every_way_to_walk_is_reduced(results: list[dict[str, Any]], way: str) -> None:
    for rank in (0, 1):
        found = result(results, rank, "other")
        equal(found[way], found["never failed"])
    equal(result(results, 0, "other")[way], result(results, 1, "other")[way])


def test_buckets_are_sent_while_the_walk_goes_on(results: list[dict[str, Any]]) -> None:
    for rank in (0, 1):
        order = result(results, rank, "other")["order"]
        assert [name for name in order if name != "sent"] == ["loss", "4", "3", "2", "1", "0"]
        assert order.count("sent") > 1
        assert order.index("sent") < order.index("0"), order


def test_a_sharded_module_that_stands_twice_goes_under_one_backward(results: list[dict[str, Any]]) -> None:
    for rank in (0, 1):
        found = result(results, rank, "other")
        equal(found["twice"], found["twice plainly"])


def test_verify_and_cotangents_work_beyond_one_process(results: list[dict[str, Any]]) -> None:
    found = result(results, 0, "other")
    assert found["verified"].startswith("equal bit for bit"), found["verified"]
    assert found["watched"] == ["loss", "3", "2", "1", "0"]
