"""A sweep leaves what a plain backward leaves, to the bit: every problem, every kind of plan, both engines."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import problems as P
from gradledger import sweep

PROBLEMS = [p for p in P.PROBLEMS if p.compiled != "inductor"]
FEW = [
    p
    for p in P.PROBLEMS
    if p.id in ("q-network", "conv-batchnorm", "thrice-shared", "u-net", "dropout", "autocast-tied", "inplace-conv")
]


@functools.cache
def _free(problem: P.Problem) -> list[bool]:
    """Which blocks may be recomputed, as the profile finds."""
    chain = problem.make()
    with problem.context():
        costs = sweep.plan(chain.blocks, example=(chain.x, chain.y), loss=chain.loss_fn, repeats=1).costs
    return [i not in costs.forced for i in range(len(chain.blocks))]


wanted = functools.cache(P.plain)  # the oracle, walked once a problem


def _each_alone(free: list[bool]) -> str:
    return " ".join(f"({i})" if may else str(i) for i, may in enumerate(free))


def _halves(blocks: list[int]) -> str:
    """Segments within segments: the deepest a plan can go."""
    if len(blocks) == 1:
        return str(blocks[0])
    half = len(blocks) // 2
    return f"({_halves(blocks[:half])}) {_halves(blocks[half:])}"


def _nested(free: list[bool]) -> str:
    out: list[str] = []
    run: list[int] = []
    for i, may in enumerate([*free, False]):
        if may:
            run.append(i)
            continue
        if run:
            out.append(f"({_halves(run)})")
            run = []
        if i < len(free):
            out.append(str(i))
    return " ".join(out)


def _middle(free: list[bool]) -> str:
    """Only the blocks in the middle are recomputed, in one segment."""
    first, last = 1, len(free) - 1
    inside = [i for i in range(first, last) if free[i]]
    if not inside or inside != list(range(inside[0], inside[-1] + 1)):
        return _each_alone(free)
    words = [str(i) for i in range(inside[0])]
    words.append("(" + " ".join(map(str, inside)) + ")")
    words += [str(i) for i in range(inside[-1] + 1, len(free))]
    return " ".join(words)


SHAPES: dict[str, Callable[[list[bool]], str]] = {"alone": _each_alone, "nested": _nested, "middle": _middle}


def _with_plan(problem: P.Problem, shape: str, engine: Any) -> Callable[[P.Chain], Any]:
    free = _free(problem)

    def backward(chain: P.Chain) -> Any:
        plan = SHAPES[shape](free) + f" {len(chain.blocks)}"
        return sweep.Sweep(chain.blocks, chain.loss_fn, plan=plan, engine=engine).backward(chain.x, chain.y)

    return backward


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
@pytest.mark.parametrize("engine", ["sweep", "autograd"])
def test_keeping_everything(problem: P.Problem, engine: Any) -> None:
    def twice(chain: P.Chain) -> Any:
        """The second step takes what the first has learnt, and adds to its gradients."""
        one = sweep.Sweep(chain.blocks, chain.loss_fn, engine=engine)
        one.backward(chain.x, chain.y)
        return one.backward(chain.x, chain.y)

    def plain_twice(chain: P.Chain) -> Any:
        P._plain_backward(chain)
        return P._plain_backward(chain)

    assert P.differences(P.outcome(problem, twice), P.outcome(problem, plain_twice)) == []


# The deepest shape shows what the others do; they are there for the engine that walks a plan itself.
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
@pytest.mark.parametrize(("shape", "engine"), [*((shape, "sweep") for shape in SHAPES), ("nested", "autograd")])
def test_recomputing(problem: P.Problem, shape: str, engine: Any) -> None:
    assert P.differences(P.outcome(problem, _with_plan(problem, shape, engine)), wanted(problem)) == []


@pytest.mark.parametrize("problem", FEW, ids=lambda p: p.id)
@pytest.mark.parametrize("engine", ["sweep", "autograd"])
def test_with_two_threads(problem: P.Problem, engine: Any) -> None:
    """Everything else here runs with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert P.differences(P.outcome(problem, _with_plan(problem, "nested", engine)), P.plain(problem)) == []
    finally:
        torch.set_num_threads(before)


PLANNERS = ("keep_all", "recompute_all", "every_k", "revolve", "optimal")


@pytest.mark.parametrize(("planner", "engine"), [*((name, "sweep") for name in PLANNERS), ("optimal", "autograd")])
@pytest.mark.parametrize("problem", FEW, ids=lambda p: p.id)
def test_every_planner(problem: P.Problem, planner: str, engine: Any) -> None:
    def backward(chain: P.Chain) -> Any:
        plan = sweep.plan(
            chain.blocks,
            example=(chain.x, chain.y),
            loss=chain.loss_fn,
            planner=planner,
            repeats=1,
            budget="min" if planner == "optimal" else "keep",
        )
        return sweep.Sweep(chain.blocks, chain.loss_fn, plan=plan, engine=engine).backward(chain.x, chain.y)

    assert P.differences(P.outcome(problem, backward), wanted(problem)) == []


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
def test_walked_by_hand(problem: P.Problem) -> None:
    def by_hand(chain: P.Chain) -> Any:
        walk = sweep.Sweep(chain.blocks, chain.loss_fn).reverse(chain.x, chain.y)
        seen = [event.block for event in walk if event.grads is not None]
        assert len(seen) == len(chain.blocks) + 1
        return walk.loss

    assert P.differences(P.outcome(problem, by_hand), wanted(problem)) == []


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if not p.shared], ids=lambda p: p.id)
def test_input_half_first_and_weights_later(problem: P.Problem) -> None:
    def split(chain: P.Chain) -> Any:
        walk = sweep.Sweep(chain.blocks, chain.loss_fn).reverse(chain.x, chain.y)
        deferred = [event.defer_weights() for event in walk]
        assert all(one.done for one in deferred)
        return walk.loss

    assert P.differences(P.outcome(problem, split), wanted(problem)) == []


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
def test_the_loss_computed_by_the_caller(problem: P.Problem) -> None:
    def mine(chain: P.Chain) -> Any:
        step = sweep.Sweep(chain.blocks, chain.loss_fn).forward(chain.x)
        loss = chain.loss_fn(step.output, chain.y)
        step.backward(loss)
        return loss

    assert P.differences(P.outcome(problem, mine), wanted(problem)) == []


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
@pytest.mark.parametrize("engine", ["sweep", "autograd"])
def test_verify_agrees(problem: P.Problem, engine: Any) -> None:
    chain = problem.make()
    with problem.context():
        found = sweep.Sweep(chain.blocks, chain.loss_fn, engine=engine).verify(chain.x, chain.y, steps=3)
    assert found, str(found)
    assert found.steps == 3
    assert found.losses >= 3
