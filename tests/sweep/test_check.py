"""Finite differences against gradients: right ones pass, planted faults are named, corners are told apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradledger.core.errors import SweepError
from gradledger.sweep._block import blocks as read
from gradledger.sweep._check import check_gradients
from gradledger.sweep._copy import copy_blocks
from problems import BY_ID, PROBLEMS, Chain, Problem, named_buffers, named_leaves

TOLERANCE = 1e-6  # relative; the same for every row

# The gradient that torch gives is, by design, no derivative of the loss in these rows.
BY_DESIGN = {
    "stop-gradient": "cut",  # `detach` hides the first block
    "spectral-norm": "wrong",  # the power iteration moves with the weight, and is kept out of the graph
}
CHECKED = [p for p in PROBLEMS if p.id not in BY_DESIGN and p.id != "python-counter"]


def check(chain: Chain, **options: Any) -> Any:
    return check_gradients(chain.blocks, chain.x, chain.y, chain.loss_fn, tolerance=TOLERANCE, **options)


class Scaled(torch.autograd.Function):
    """x² with a backward that is wrong by a factor in the entries from `start` on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, start: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor, ctx.start = factor, start
        return x * x

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        d_in = 2 * x * d_out
        d_in.view(-1)[ctx.start :] *= ctx.factor
        return d_in, None, None


class Weight(nn.Module):
    """``f(weight)`` whatever the data."""

    def __init__(self, values: Any, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.as_tensor(values, dtype=torch.float64)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.weight) * x


def total(state: Tensor, y: Any) -> Tensor:
    return state.sum()


def of(values: Any, function: Callable[[Tensor], Tensor], **options: Any) -> Any:
    return check_gradients(Weight(values, function), torch.ones(()), None, total, **options)


# ---------------------------------------------------------------------------------------------------- right gradients
@pytest.mark.parametrize("problem", CHECKED, ids=[p.id for p in CHECKED])
def test_autograd_passes_on_every_row(problem: Problem) -> None:
    with problem.context():
        result = check(problem.make(), entries=4)
    assert result.passed, str(result)
    assert not result.kinks, str(result)
    assert result.worst.error < TOLERANCE
    if problem.compiled is None and problem.id not in ("lstm", "functions"):  # parameters in closures have no own name
        names = {name for name, leaf in named_leaves(problem.make()) if leaf.requires_grad}
        assert {p.name for p in result.probes} == names


@pytest.mark.parametrize("id", BY_DESIGN)
def test_gradients_that_are_no_derivatives_by_design_are_found(id: str) -> None:
    result = check(BY_ID[id].make(), entries=4)
    assert not result
    assert {p.verdict for p in result.failed} == {BY_DESIGN[id]}
    assert {p.name.partition(".")[0] for p in result.failed} <= {"0", "2"}


def test_names_are_those_of_the_model_and_small_parameters_are_checked_whole() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    result = check_gradients(model, torch.ones(4, 2), torch.zeros(4, 1), nn.functional.mse_loss, entries=6)
    assert [p.name for p in result.probes] == [n for n, p in model.named_parameters() for _ in range(p.numel())]
    assert all(p.index is not None for p in result.probes)


def test_large_parameters_are_sampled_with_the_largest_entry_and_a_direction() -> None:
    model = nn.Linear(40, 5)
    x = torch.randn(3, 40)
    result = check_gradients(model, x, None, lambda s, y: s.square().sum(), entries=4, names=["weight"])
    indices = [p.index for p in result.probes]
    assert len(indices) in (4, 5)
    assert indices[-1] is None
    model(x).square().sum().backward()
    assert model.weight.grad is not None
    largest = divmod(int(model.weight.grad.abs().argmax()), 40)
    assert largest in indices
    other = check_gradients(model, x, None, lambda s, y: s.sum(), entries=4, names=["weight"], rng_seed=1)
    assert [p.index for p in other.probes] != indices


def test_a_module_with_a_forward_of_its_own() -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(self.a(x)) * self.b(x)

    result = check_gradients(Forked(), torch.randn(2, 3), None, total)
    assert result.passed
    assert [*dict.fromkeys(p.name for p in result.probes)] == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_parameters_of_the_loss_are_checked_too() -> None:
    temperature = nn.Parameter(torch.tensor(0.7))
    model = nn.Linear(3, 4)
    result = check_gradients([model], torch.randn(5, 3), None, lambda s, y: (s / temperature).logsumexp(-1).mean())
    assert any(p.name.startswith("loss.") for p in result.probes)
    assert result.passed


def test_a_weight_shared_by_blocks_is_one_parameter() -> None:
    result = check(BY_ID["tied-embeddings"].make(), entries=4)
    assert [*dict.fromkeys(p.name for p in result.probes)] == [
        "0.table.weight",
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
    ]
    assert result.passed


# ---------------------------------------------------------------------------------------------------- wrong gradients
@pytest.mark.parametrize("factor", [2.0, -1.0, 0.0, 1.001, 1 + 1e-5])
def test_a_wrong_factor_in_a_backward_is_caught(factor: float) -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    chain = [nn.Linear(3, 5), lambda h: Scaled.apply(h, factor, 0), nn.Linear(5, 2)]
    result = check_gradients(chain, x, y, nn.functional.mse_loss)
    assert not result
    assert {p.name for p in result.failed} == {"0.weight", "0.bias"}
    assert result.worst.verdict == "wrong"
    text = str(result)
    assert "FAILED" in text
    assert f"worst: {result.worst.name} [" in text


def test_the_right_factor_passes() -> None:
    chain = [nn.Linear(3, 5), lambda h: Scaled.apply(h, 1.0, 0), nn.Linear(5, 2)]
    assert check_gradients(chain, torch.randn(4, 3), torch.randn(4, 2), nn.functional.mse_loss)


def test_worst_entry_is_named_with_its_index_and_both_values() -> None:
    result = of([1.0, 2.0, 3.0, 4.0], lambda w: Scaled.apply(w, 1.5, 3))
    assert [p.index for p in result.failed] == [(3,)]
    worst = result.worst
    assert (worst.name, worst.index) == ("weight", (3,))
    assert worst.analytic == pytest.approx(12.0)
    assert worst.numeric == pytest.approx(8.0, rel=1e-8)
    assert worst.error == pytest.approx(4 / 12, rel=1e-6)


def test_one_wrong_entry_that_is_not_drawn_is_seen_along_the_direction() -> None:
    values = torch.cat([torch.full((400,), 1e-3), torch.ones(1)])  # the last gradient is scaled down below the others
    result = of(values, lambda w: Scaled.apply(w, 0.0, 400), entries=3)
    entries = [p for p in result.probes if p.index is not None]
    assert (400,) not in [p.index for p in entries]
    assert all(p.verdict == "equal" for p in entries)
    assert [p.index for p in result.failed] == [None]
    assert "along a direction" in str(result)


def test_another_reverse_pass_is_checked_against_the_same_differences() -> None:
    """The listing that assigns instead of accumulating is wrong for shared weights: found, by the weight's name."""

    def listing(calls: Sequence[Any], x: Any, y: Any, loss_fn: Any, *, accumulate: bool) -> None:
        tape, state = [], x
        for call in calls:
            leaf = state.detach().requires_grad_()
            tape.append((call, leaf, call(leaf)))
            state = tape[-1][2]
        last = state.detach().requires_grad_()
        (d_out,) = torch.autograd.grad(loss_fn(last, y), last)
        for call, leaf, out in reversed(tape):
            parameters = list(call.parameters())
            d_in, *grads = torch.autograd.grad(out, [leaf, *parameters], d_out)
            for p, g in zip(parameters, grads, strict=True):
                p.grad = g if p.grad is None or not accumulate else p.grad + g
            d_out = d_in

    chain = BY_ID["same-block-thrice"].make()
    right = check(chain, backward=lambda *a: listing(*a, accumulate=True))
    assert right.passed, str(right)
    wrong = check(chain, backward=lambda *a: listing(*a, accumulate=False))
    assert {p.name for p in wrong.failed} == {"1.0.weight", "1.0.bias"}


def test_a_graph_cut_by_rounding_is_told_as_cut() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.a.detach() * x + self.b * x

    result = check_gradients(Cut(), torch.ones(2), None, total)
    assert {(p.name, p.verdict) for p in result.failed} == {("a", "cut")}
    assert "no gradient arrived, yet the loss moves" in str(result)
    assert check_gradients(Cut(), torch.ones(2), None, total, names=["b"]).passed


# ---------------------------------------------------------------------------------------------------- corners
@pytest.mark.parametrize("function", [torch.relu, torch.abs, lambda w: w.clamp(0, 1), lambda w: torch.max(w, 3 * w)])
def test_a_kink_at_the_point_is_told_not_failed(function: Callable[[Tensor], Tensor]) -> None:
    result = of([0.0, 0.5], function)
    assert result.passed
    assert [p.index for p in result.kinks] in ([(0,)], [])
    if not result.kinks:  # the subgradient happens to be the mean of the slopes
        assert result.probes[0].analytic == pytest.approx(result.probes[0].numeric)
    assert result.probes[1].verdict == "equal"


def test_the_slopes_at_a_relu_are_told() -> None:
    result = of([0.0], torch.relu)
    assert result.kinks[0].sides == pytest.approx((0.0, 1.0), abs=1e-7)
    assert "slopes" in str(result)
    assert "to the left" in str(result)


def test_a_kink_within_a_step_of_the_point() -> None:
    result = of([3e-7], torch.relu)
    assert result.passed
    assert len(result.kinks) == 1
    assert result.kinks[0].numeric == pytest.approx(1.0)


def test_a_wrong_gradient_at_a_kink_is_wrong() -> None:
    """Outside the slopes of both sides there is no excuse."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, w: Tensor) -> Tensor:
            return w.relu()

        @staticmethod
        def backward(ctx: Any, d_out: Tensor) -> Tensor:
            return d_out * 1.5

    assert [p.verdict for p in of([0.0], Wrong.apply).probes] == ["wrong"]


def test_a_jump_at_the_point_is_told() -> None:
    result = of([0.0], lambda w: w + (w > 0).double())
    assert [p.verdict for p in result.probes] == ["kink"]
    assert result.kinks[0].sides[1] > 1e6


def test_a_straight_through_gradient_is_wrong_off_the_jump() -> None:
    result = of([0.3], lambda w: w + (w.round() - w).detach())
    assert [p.verdict for p in result.probes] == ["wrong"]
    assert result.worst.numeric == 0.0


def test_a_sharp_curve_is_no_kink() -> None:
    """sin(5e4 w): the third derivative spoils the first step, a smaller one agrees."""
    result = of([0.2], lambda w: torch.sin(5e4 * w), epsilon=1e-6)
    assert [p.verdict for p in result.probes] == ["equal"]


# ---------------------------------------------------------------------------------------------------- left as it was
@pytest.mark.parametrize(
    "id", ["conv-batchnorm", "dropout", "numpy-noise", "python-draw", "own-generator", "functions"]
)
def test_model_data_and_random_streams_are_as_before(id: str) -> None:
    chain = BY_ID[id].make()
    leaves = {name: leaf.detach().clone() for name, leaf in named_leaves(chain)}
    buffers = {name: buffer.clone() for name, buffer in named_buffers(chain.blocks)}
    x = chain.x.clone()
    streams = (torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate())
    check(chain, entries=2)
    now = (torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate())
    assert torch.equal(streams[0], now[0])
    assert streams[1:] == now[1:]
    for name, leaf in named_leaves(chain):
        assert torch.equal(leaf, leaves[name])
        assert leaf.dtype == leaves[name].dtype
        assert leaf.grad is None
    for name, buffer in named_buffers(chain.blocks):
        assert torch.equal(buffer, buffers[name])
    assert torch.equal(chain.x, x)
    assert torch.get_default_dtype() == torch.float32


def test_the_same_seed_gives_the_same_check() -> None:
    chain = BY_ID["attention"].make()
    first, second = check(chain, entries=2), check(chain, entries=2)
    assert first == second
    assert check(chain, entries=2, rng_seed=1).loss != first.loss  # other dropout masks


# ---------------------------------------------------------------------------------------------------- copies
def test_copies_of_closures_share_nothing_with_the_original() -> None:
    chain = read(BY_ID["functions"].make().blocks)
    made = copy_blocks(chain)
    old = {id(p) for b in chain for p in b.parameters()}
    new = [p for b in made for p in b.parameters()]
    assert len(new) == len(old) == 7
    assert not old & {id(p) for p in new}
    x = torch.randn(2, 6)
    a = b = x
    for first, second in zip(chain, made, strict=True):
        a, b = first.call(a), second.call(b)
    assert torch.equal(a, b)
    with torch.no_grad():
        for p in new:
            p.zero_()
    assert all(bool(p.any()) for block in chain for p in block.parameters())


def test_copies_keep_what_is_shared_shared() -> None:
    shared = nn.Linear(3, 3)
    made = copy_blocks(read([shared, lambda h: shared(h), nn.Sequential(shared)]))
    assert len({id(p) for b in made for p in b.parameters()}) == 2
    assert made[0].call is not shared


def test_a_function_that_closes_over_itself_is_copied() -> None:
    layer = nn.Linear(2, 2)

    def twice(h: Tensor, left: int = 2) -> Tensor:
        return twice(layer(h), left - 1) if left else h

    (made,) = copy_blocks(read([twice]))
    with torch.no_grad():
        layer.weight.fill_(float("nan"))
    assert torch.isfinite(made.call(torch.ones(1, 2))).all()


GLOBAL_LAYER = nn.Linear(2, 2)


def uses_a_global(h: Tensor) -> Tensor:
    return GLOBAL_LAYER(h)


def test_a_module_that_is_a_global_is_copied_too() -> None:
    result = check_gradients([uses_a_global], torch.ones(1, 2), None, total)
    assert result.passed
    assert len(result.probes) == 6
    assert GLOBAL_LAYER.weight.dtype == torch.float32


# ---------------------------------------------------------------------------------------------------- refusals
class Odd(nn.Module):
    """A linear layer beside one parameter of another kind."""

    def __init__(self, odd: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.odd = nn.Parameter(odd, requires_grad=odd.is_complex())

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.view_as_real(self.odd).sum() if self.odd.is_complex() else self.linear(x)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * self.calls


def refused(model: Any, loss: Callable[[Any, Any], Any] = total, x: Any = None, **options: Any) -> str:
    with pytest.raises(SweepError) as caught:
        check_gradients(model, torch.ones(3, 2) if x is None else x, None, loss, **options)
    return str(caught.value)


def test_refuses_integer_complex_lazy_and_meta_parameters() -> None:
    text = refused(Odd(torch.ones(2, dtype=torch.int8)))
    assert "parameter odd: got a parameter of dtype torch.int8" in text
    assert "make it a buffer" in text
    assert "complex64" in refused(Odd(torch.ones(2, dtype=torch.complex64)))
    assert "lazy" in refused(nn.LazyLinear(2))
    assert "meta" in refused(nn.Linear(2, 2, device="meta"))
    odd = Odd(torch.ones(2, dtype=torch.int8))
    assert check_gradients(odd, torch.ones(3, 2), None, total, names=["linear.weight"]).passed


def test_refuses_a_loss_that_is_not_one_number() -> None:
    assert "shape (3, 2)" in refused(nn.Linear(2, 2), lambda s, y: s)
    assert "requires no gradient" in refused(nn.Linear(2, 2), lambda s, y: s.detach().sum())
    assert "got a float" in refused(nn.Linear(2, 2), lambda s, y: float(s.sum().detach()))
    assert "finite" in refused(nn.Linear(2, 2), lambda s, y: s.sum() / 0)


def test_refuses_a_model_that_is_not_replayable_and_names_the_block() -> None:
    text = refused([nn.Linear(2, 2), Counter(), nn.Linear(2, 2)])
    assert "block 1: got two results" in text
    assert "6 of 6 entries" in text
    assert "counter" in text


def test_refuses_what_nothing_can_be_learned_from() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert "requires no gradient" in refused(frozen)
    text = refused(frozen, lambda s, y: s.sum() * torch.ones((), requires_grad=True))
    assert "nothing requires a gradient" in text
    assert "wanted some of weight, bias" in refused(nn.Linear(2, 2), names=["wieght"])
    assert "epsilon=0" in refused(nn.Linear(2, 2), epsilon=0)
    assert "tolerance=-1" in refused(nn.Linear(2, 2), tolerance=-1)


def test_names_the_block_that_does_not_run() -> None:
    text = refused([nn.Linear(2, 2), nn.Linear(3, 2)])
    assert "block 1: got RuntimeError: mat1 and mat2 shapes cannot be multiplied" in text


def test_refuses_what_cannot_be_copied() -> None:
    layer = nn.Linear(2, 2)
    layer.cache = layer(torch.ones(1, 2))
    text = refused([nn.Linear(2, 2), layer])
    assert "block 1: got a block that cannot be copied" in text


# ---------------------------------------------------------------------------------------------------- the report
def test_the_report_fits_and_lists_every_parameter() -> None:
    result = check(BY_ID["u-net"].make(), entries=3)
    text = str(result)
    assert text.startswith("gradient check passed:")
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("worst"))
    for name in {p.name for p in result.probes}:
        assert name in text
    with pytest.raises(FrozenInstanceError):
        result.loss = 0.0


def test_many_failures_are_counted_not_printed() -> None:
    result = of(torch.rand(16) + 0.5, lambda w: Scaled.apply(w, 3.0, 0))
    assert len(result.failed) == 16
    assert "… and 8 more" in str(result)
