"""The table itself: fresh chains, an oracle that repeats to the bit, and flags that tell the truth."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from problems import (
    BY_ID,
    PROBLEMS,
    Problem,
    block_parameters,
    differences,
    differentiable,
    modules_of,
    named_buffers,
    named_leaves,
    outcome,
    plain,
    run,
)

QUICK = [p for p in PROBLEMS if p.compiled != "inductor"]
EAGER = [p for p in PROBLEMS if p.compiled is None]


def rows(problems: list[Problem]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("problem", problems, ids=[p.id for p in problems])


def tensors_of(state: Any) -> list[Tensor]:
    """The tensors of a state, whatever holds them."""
    if hasattr(state, "batch_size"):
        return list(state.values(True, True))
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]


def watched_run(problem: Problem, seen: Callable[[int, list[Tensor]], None]) -> None:
    """Run the blocks and show each input boundary before and (as -1 - i) after its block ran."""
    chain = problem.make()
    with problem.context():
        state = chain.x
        for i, block in enumerate(chain.blocks):
            boundary = tensors_of(state)
            seen(i, boundary)
            state = block(state)
            seen(-1 - i, boundary)
        chain.loss_fn(state, chain.y)


def test_ids_are_unique_and_there_are_enough_rows() -> None:
    assert len({p.id for p in PROBLEMS}) == len(PROBLEMS) >= 35
    assert len(BY_ID) == len(PROBLEMS)


@rows(QUICK)
def test_the_oracle_repeats_to_the_bit(problem: Problem) -> None:
    assert differences(plain(problem), plain(problem)) == []


@rows(EAGER)
def test_another_seed_is_another_chain(problem: Problem) -> None:
    found = differences(plain(problem, 1), plain(problem, 0))
    assert any(line.startswith("loss") for line in found)
    assert any(line.startswith("grads") for line in found)


@rows(QUICK)
def test_every_row_gives_finite_gradients(problem: Problem) -> None:
    result = plain(problem)
    grads = [g for g in result.grads.values() if g is not None]
    assert grads
    assert all(bool(torch.isfinite(g).all()) for g in grads)
    assert any(bool(g.count_nonzero()) for g in grads)
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(result.loss))


@rows(EAGER)
def test_make_is_fresh_and_leaves_the_random_streams_alone(problem: Problem) -> None:
    before = (torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate())
    a, b = problem.make(), problem.make()
    after = (torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    names, others = dict(named_leaves(a)), dict(named_leaves(b))
    assert list(names) == list(others)
    assert names
    for name, leaf in names.items():
        assert leaf is not others[name]
        assert leaf.untyped_storage().data_ptr() != others[name].untyped_storage().data_ptr()
        assert torch.equal(leaf, others[name]), name
    stores = [{t.untyped_storage().data_ptr() for t in tensors_of((c.x, c.y))} for c in (a, b)]
    assert not stores[0] & stores[1]


@rows(QUICK)
def test_flag_random(problem: Problem) -> None:
    untouched = outcome(problem, lambda chain: torch.zeros(())).random_state["torch"]
    moved = not torch.equal(plain(problem).random_state["torch"], untouched)
    assert moved == problem.random


@rows(QUICK)
def test_flag_buffers(problem: Problem) -> None:
    chain = problem.make()
    before = {name: buffer.clone() for name, buffer in named_buffers(chain.blocks)}
    after = plain(problem).buffers
    assert list(before) == list(after)
    assert any(not torch.equal(before[name], after[name]) for name in before) == problem.buffers


@rows(QUICK)
def test_flag_shared(problem: Problem) -> None:
    owners: dict[int, set[int]] = {}
    for i, block in enumerate(problem.make().blocks):
        for _, parameter in block_parameters(block):
            owners.setdefault(id(parameter), set()).add(i)
    assert any(len(blocks) > 1 for blocks in owners.values()) == problem.shared


@rows(EAGER)
def test_flag_inplace(problem: Problem) -> None:
    """A tensor of the input boundary has another version after the block ran."""
    versions: dict[int, list[int]] = {}
    watched_run(problem, lambda i, boundary: versions.__setitem__(i, [t._version for t in boundary]))
    moved = [i for i in versions if i >= 0 and versions[i] != versions[-1 - i]]
    assert bool(moved) == problem.inplace, moved


@rows(EAGER)
def test_flag_replayable(problem: Problem) -> None:
    """Run twice with torch's random state and the buffers put back: equal bits, or the flag says no."""
    results = []
    chain = problem.make()
    kept = {name: buffer.clone() for name, buffer in named_buffers(chain.blocks)}
    for _ in range(2):
        # a container that a block writes its outputs into would carry over: hand in a copy
        fresh = chain._replace(x=problem.make().x)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), problem.context():
            torch.manual_seed(3)
            for name, buffer in named_buffers(chain.blocks):
                buffer.copy_(kept[name])
            results.append([t.clone() for t in tensors_of(run(fresh))])
    same = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert same == problem.replayable


@rows([p for p in PROBLEMS if p.compiled])
def test_flag_compiled(problem: Problem) -> None:
    """Blocks are compiled by the named backend (found on the wrapper that `torch.compile` makes)."""
    for block in problem.make().blocks:
        assert isinstance(block, torch._dynamo.eval_frame.OptimizedModule)


@rows([p for p in EAGER if not p.train and "dropout" not in p.id])
def test_eval_rows_are_in_eval(problem: Problem) -> None:
    assert not any(module.training for module in modules_of(problem.make().blocks))


def test_the_modules_of_functions_are_found() -> None:
    names = [name for name, _ in named_leaves(BY_ID["functions"].make())]
    assert {name.partition(".")[0] for name in names} == {"0", "3", "4"}
    assert any("closure" in name for name in names)


def test_fused_eval_path_gives_other_bits_without_gradients() -> None:
    """Why the transformer layer in eval is a row of its own: a forward under no_grad is not the recorded one."""
    chain = BY_ID["transformer-layer-eval"].make()
    with_gradients = run(chain).detach()
    with torch.no_grad():
        without = run(chain)
    assert torch.allclose(with_gradients, without, atol=1e-5)
    assert not torch.equal(with_gradients, without)


def test_autocast_rows_run_in_bf16() -> None:
    for problem in (p for p in PROBLEMS if p.autocast is not None):
        dtypes: set[torch.dtype] = set()
        watched_run(problem, lambda i, boundary, dtypes=dtypes: dtypes.update(t.dtype for t in boundary))  # type: ignore[misc]
        assert torch.bfloat16 in dtypes, problem.id


def test_the_seven_readers_are_seen_in_the_order_of_sums() -> None:
    """The row can fail: summing the seven cotangents of the skip in another order gives other bits."""
    chain = BY_ID["dense-skips"].make()
    state = chain.blocks[0](chain.x)
    skip = state[1].detach().requires_grad_()
    parts = []
    h = state[0]
    for block in chain.blocks[1:-1]:
        own = skip.detach().requires_grad_()
        h, _ = block((h, own))
        parts.append(own)
    chain.loss_fn(chain.blocks[-1]((h, skip)), chain.y).backward()
    grads = [part.grad for part in parts if part.grad is not None]
    assert len(grads) == 7
    assert not torch.equal(sum(grads[1:], grads[0]), sum(reversed(grads[:-1]), grads[-1]))


def test_difference_is_told_by_name() -> None:
    """The comparison itself can fail: one bit, a None, a missing buffer, a moved random state."""
    wanted = plain(BY_ID["dropout"])
    name = next(iter(wanted.grads))
    nudged = wanted.grads[name].clone()  # type: ignore[union-attr]
    nudged.view(-1)[0] = torch.nextafter(nudged.view(-1)[0], torch.tensor(1e9))
    assert differences(replace(wanted, grads={**wanted.grads, name: nudged}), wanted)[0].startswith(f"grads.{name}")
    assert differences(replace(wanted, grads={**wanted.grads, name: None}), wanted)
    assert differences(replace(wanted, loss=wanted.loss + 1), wanted)[0].startswith("loss")
    assert differences(replace(wanted, random_state={**wanted.random_state, "python": 0}), wanted)
    norm = plain(BY_ID["conv-batchnorm"])
    assert differences(replace(norm, buffers={}), norm)[0].startswith("buffers")


def test_a_sweep_by_hand_meets_the_oracle() -> None:
    """The listing that the sweep starts from, on the plain row: detach, run, walk the pairs backwards."""

    def sweep(chain: Any) -> Tensor:
        tape, state = [], chain.x
        for block in chain.blocks:
            state = state.detach().requires_grad_(bool(tape))
            out = block(state)
            tape.append((state, out))
            state = out
        last = state.detach().requires_grad_()
        loss: Tensor = chain.loss_fn(last, chain.y)
        loss.backward()
        d_out = last.grad
        for state, out in reversed(tape):
            torch.autograd.backward(out, d_out)
            d_out = state.grad
        return loss

    problem = BY_ID["mlp"]
    assert differences(outcome(problem, sweep), plain(problem)) == []
    wrong = outcome(problem, lambda chain: 2.0 * sweep(chain))
    assert differences(wrong, plain(problem))[0].startswith("loss")


def test_named_losses_are_all_differentiated() -> None:
    chain = BY_ID["named-losses"].make()
    loss = chain.loss_fn(run(chain), chain.y)
    assert len(differentiable(loss)) == 3
    assert isinstance(chain.blocks[0], nn.Linear)
