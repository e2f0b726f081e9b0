"""The ledger of cotangents: numbers against float64, births where they were planted, nothing read on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradledger.core.errors import SweepError
from gradledger.sweep._cotangents import ROWS, SMALL, WIDTH, CotangentLedger, Cotangents
from problems import BY_ID

# relative: a sum of up to a million squares in the tensor's own precision
PRECISION = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 2.0**-8}


def relu_noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(*shape, generator=generator).relu().to(dtype)


def sweep(
    blocks: list[Any],
    x: Tensor,
    ledger: CotangentLedger,
    *,
    forward: bool = False,
    gradients: bool = False,
    seed: Any = 1.0,
) -> Cotangents:
    """A reverse pass by hand, from the sum of the last output."""
    if forward:
        ledger.data(x)
    tape, state = [], x
    for k, block in enumerate(blocks):
        leaf = state.detach().requires_grad_()
        state = block(leaf)
        tape.append((str(k), block, leaf, state))
        if forward:
            ledger.forward(str(k), state)
    d_out = torch.full_like(state, seed)
    ledger.loss(state.sum(), [torch.as_tensor(seed)])
    for name, block, leaf, out in reversed(tape):
        parameters = list(block.parameters()) if gradients and isinstance(block, nn.Module) else []
        d_out, *grads = torch.autograd.grad(out, [leaf, *parameters], d_out)
        ledger.update(name, d_out, grads)
    return ledger.finish()


# ---------------------------------------------------------------------------------------------------- numbers
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "channels-last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(0, 3),
    "sliced": lambda t: t[:, ::2, 1:],
    "expanded": lambda t: t[:1].expand(5, -1, -1, -1),
}


@pytest.mark.parametrize("zeros", ["sampled", "exact"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", PRECISION, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("side", [4, 32], ids=["small", "large"])
def test_numbers_against_numpy_in_float64(side: int, dtype: torch.dtype, layout: str, zeros: Any) -> None:
    tensor = LAYOUTS[layout](relu_noise(4, 12, side, side, dtype=dtype))
    assert (tensor.numel() > SMALL) == (side == 32)
    ledger = CotangentLedger(zeros=zeros)
    ledger.update("block", tensor)
    (record,) = ledger.finish().reverse
    values = tensor.double().numpy()
    assert record.elements == values.size
    assert record.norm == pytest.approx(np.sqrt(np.sum(values**2)), rel=PRECISION[dtype])
    assert record.largest == np.abs(values).max()
    assert record.finite
    share = np.mean(values == 0)
    if zeros == "exact" or tensor.numel() <= ROWS * WIDTH:
        assert record.zeros == pytest.approx(share, abs=1e-12)
    else:
        assert record.zeros == pytest.approx(share, abs=0.02)  # seven standard errors of 32,768 draws


def test_dead_channels_are_seen_by_the_sample() -> None:
    """Whole planes of zeros, the way a dead ReLU leaves them: the rows are spread over all of them."""
    tensor = torch.ones(8, 32, 64, 64)
    tensor[:, ::4] = 0
    ledger = CotangentLedger()
    ledger.update("block", tensor)
    assert ledger.finish()["block"].zeros == pytest.approx(0.25, abs=0.01)


def test_negative_numbers_have_magnitudes() -> None:
    ledger = CotangentLedger()
    ledger.update("a", torch.tensor([-7.0, 2.0]))
    ledger.update("b", -relu_noise(100, 100) - 3)
    seen = ledger.finish()
    assert seen["a"].largest == 7.0
    assert seen["b"].largest == pytest.approx(float(relu_noise(100, 100).max()) + 3)


def test_several_tensors_of_one_boundary_are_one_record() -> None:
    a, b = torch.tensor([3.0, 0.0]), relu_noise(100, 100)
    ledger = CotangentLedger(zeros="exact")
    ledger.update("tuple", (a, None, b))
    ledger.update("dict", {"b": b, "deep": {"a": a}})
    ledger.update("none", (None, None))
    ledger.update("empty", ())
    ledger.update("nothing", None)
    ledger.update("no-elements", torch.zeros(0, 3))
    seen = ledger.finish()
    assert seen["tuple"].norm == pytest.approx(math.hypot(3.0, float(b.double().norm())), rel=1e-5)
    assert seen["tuple"].absent == 1
    assert seen["dict"].norm == seen["tuple"].norm
    assert seen["tuple"].zeros == pytest.approx((1 + int((b == 0).sum())) / 10002)
    assert (seen["none"].absent, seen["none"].elements, seen["none"].finite) == (2, 0, True)
    assert seen["nothing"].absent == 1
    assert seen["empty"].absent == 0
    assert math.isnan(seen["no-elements"].zeros)
    assert seen.born is None


def test_complex_and_sparse_cotangents() -> None:
    ledger = CotangentLedger(zeros="exact")
    ledger.update("complex", torch.tensor([3 + 4j, 0j]))
    ledger.update("conj", torch.tensor([3 + 4j, 0j]).conj())
    ledger.update("sparse", torch.eye(3).to_sparse())
    seen = ledger.finish()
    assert (seen["complex"].norm, seen["complex"].largest, seen["complex"].elements) == (5.0, 4.0, 4)
    assert seen["conj"].norm == 5.0
    assert seen["sparse"].norm == pytest.approx(math.sqrt(3))
    assert seen["sparse"].zeros == pytest.approx(6 / 9)


def test_half_precision_norm_does_not_overflow() -> None:
    ledger = CotangentLedger()
    ledger.update("block", torch.full((100, 100), 1000.0, dtype=torch.float16))
    record = ledger.finish()["block"]
    assert record.norm == pytest.approx(1e5, rel=PRECISION[torch.float32])
    assert record.finite


def test_without_zeros() -> None:
    ledger = CotangentLedger(zeros="no")
    ledger.update("block", torch.zeros(3))
    assert math.isnan(ledger.finish()["block"].zeros)
    with pytest.raises(SweepError, match="zeros='all'"):
        CotangentLedger(zeros="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("id", ["mlp", "conv-batchnorm", "channels-last", "weight-norm"])
def test_a_sweep_meets_the_boundary_gradients_of_autograd(id: str) -> None:
    chain = BY_ID[id].make()
    boundaries, state = [], chain.x.requires_grad_()
    for block in chain.blocks:
        state.retain_grad()
        boundaries.append(state)
        state = block(state)
    state.sum().backward()
    other = BY_ID[id].make()
    seen = sweep(other.blocks, other.x, CotangentLedger(zeros="exact"))
    assert [record.block for record in seen.reverse] == [str(k) for k in reversed(range(len(chain.blocks)))]
    for k, boundary in enumerate(boundaries):
        grad = boundary.grad
        assert grad is not None
        record = seen[str(k)]
        assert record.norm == pytest.approx(float(grad.double().norm()), rel=1e-5, abs=1e-12)
        assert record.largest == float(grad.abs().max())
        assert record.zeros == pytest.approx(float((grad == 0).double().mean()), abs=1e-12)


# ---------------------------------------------------------------------------------------------------- births
class Plant(torch.autograd.Function):
    """The identity whose cotangent gets one planted value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float, at: int) -> Tensor:
        ctx.value, ctx.at = value, at
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None]:
        d_in = d_out.clone()
        d_in.view(-1)[ctx.at] = ctx.value
        return d_in, None, None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("batch", [2, 600], ids=["small", "large"])
@pytest.mark.parametrize("place", range(5))
def test_a_planted_value_is_found_where_it_was_born(place: int, batch: int, value: float) -> None:
    torch.manual_seed(0)
    blocks: list[Any] = [nn.Linear(16, 16) for _ in range(5)]
    at = batch * 8 + 3  # in the middle
    blocks[place] = lambda h: Plant.apply(h, value, at)
    seen = sweep(blocks, torch.randn(batch, 16), CotangentLedger())
    assert seen.born is not None
    assert (seen.born.block, seen.born.phase) == (str(place), "reverse")
    assert "a finite cotangent came in" in str(seen.born)
    assert [r.finite for r in reversed(seen.reverse)] == [False] * (place + 1) + [True] * (4 - place)


@pytest.mark.parametrize("at", [0, 1, 1023, 4999, 9998, 9999])
def test_one_nan_anywhere_in_a_large_cotangent(at: int) -> None:
    tensor = relu_noise(100, 100)
    tensor.view(-1)[at] = math.nan
    ledger = CotangentLedger()
    ledger.update("block", tensor)
    record = ledger.finish()["block"]
    assert not record.finite
    assert math.isnan(record.largest)
    assert math.isnan(record.norm)


def test_the_square_root_at_zero() -> None:
    """The classic: a norm of a zero vector is finite, its derivative is not."""
    blocks = [nn.Linear(4, 4, bias=False), torch.relu, lambda h: (h * h).sum(-1).sqrt(), lambda h: h * 2]
    seen = sweep(blocks, torch.zeros(3, 4), CotangentLedger(), forward=True)
    assert seen.born is not None
    assert (seen.born.block, seen.born.phase) == ("2", "reverse")
    assert all(record.finite for record in seen.forward)


def test_a_loss_that_is_not_finite_is_traced_forward() -> None:
    blocks = [nn.Identity(), lambda h: h - 3.0, torch.log, lambda h: h * 2]
    seen = sweep(blocks, torch.ones(3, 4), CotangentLedger(), forward=True)
    assert seen.born is not None
    assert (seen.born.block, seen.born.phase) == ("2", "forward")
    assert "the first that is not finite" in str(seen.born)
    without = sweep(blocks, torch.ones(3, 4), CotangentLedger())
    assert without.born is not None
    assert (without.born.block, without.born.phase) == (None, "forward")
    assert "record the forward half" in str(without.born)


def test_data_loss_and_seed() -> None:
    x = torch.ones(3, 4)
    x[1, 2] = math.nan
    born = sweep([nn.Linear(4, 4)], x, CotangentLedger(), forward=True).born
    assert born is not None
    assert born.phase == "data"
    ledger = CotangentLedger()
    ledger.data(torch.ones(3))
    ledger.forward("0", torch.ones(3))
    ledger.loss(torch.tensor(math.inf))
    born = ledger.finish().born
    assert born is not None
    assert (born.block, born.phase) == ("loss", "loss")
    born = sweep([nn.Linear(4, 4)], torch.ones(3, 4), CotangentLedger(), seed=math.nan).born
    assert born is not None
    assert born.phase == "seed"


def test_a_nan_in_the_parameter_gradients_alone() -> None:
    """0 · inf: the data are infinite where the weight is 0 by construction; the cotangent of the input is finite."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(()))

        def forward(self, h: Tensor) -> Tensor:
            return torch.where(h > 1e30, torch.zeros_like(h), h) + (h * 1e30 * self.scale).nan_to_num(0.0)

    big = torch.tensor([[1.0, 2e20]])
    seen = sweep([nn.Identity(), Masked(), nn.Identity()], big, CotangentLedger(), gradients=True)
    assert seen.born is not None
    assert (seen.born.block, seen.born.phase) == ("1", "parameters")
    assert "parameter gradients" in str(seen.born)
    assert all(record.finite for record in seen.reverse)
    assert sweep([nn.Identity(), Masked(), nn.Identity()], big, CotangentLedger()).born is None


def test_a_finite_pass_has_no_birth() -> None:
    chain = BY_ID["conv-batchnorm"].make()
    assert sweep(chain.blocks, chain.x, CotangentLedger(), forward=True, gradients=True).born is None


# ---------------------------------------------------------------------------------------------------- cost, safety
class Watch(TorchDispatchMode):
    """Names of the operations that were run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_before_finish() -> None:
    large, small = relu_noise(200, 300), relu_noise(8, 8)
    ledger = CotangentLedger()
    with Watch() as watch:
        ledger.update("large", large)
        ledger.update("small", small)
        ledger.update("both", (small, large))
        ledger.forward("f", small)
        ledger.loss(torch.ones(()), [torch.ones(())])
    assert "_local_scalar_dense" not in watch.seen  # what .item(), float() and bool() come to
    with Watch() as reading:
        ledger.finish()
    assert reading.seen.count("stack") <= 2


def test_a_small_cotangent_costs_no_operation_and_a_large_one_four() -> None:
    large, small = relu_noise(200, 300), relu_noise(8, 8)
    ledger = CotangentLedger()
    with Watch() as watch:
        ledger.update("small", small)
    assert set(watch.seen) <= {"detach"}
    ledger.update("large", large)  # makes the buffer
    with Watch() as watch:
        ledger.update("large", large)
    passes = [name for name in watch.seen if name not in ("detach", "view", "as_strided", "slice", "split")]
    assert passes == ["aminmax", "linalg_vector_norm", "ne", "sum"]


def test_large_cotangents_are_not_kept_alive() -> None:
    import weakref

    tensor = relu_noise(200, 300)
    narrow = relu_noise(200, 300)[:2, :2]  # small, but it holds a large memory
    gone = weakref.ref(tensor), weakref.ref(narrow)
    ledger = CotangentLedger()
    ledger.update("large", tensor)
    ledger.update("narrow", narrow)
    del tensor, narrow
    assert gone[0]() is None
    assert gone[1]() is None
    assert ledger.finish()["narrow"].elements == 4


def test_the_cotangents_are_left_as_they_are() -> None:
    for tensor in (relu_noise(8, 8), relu_noise(200, 300), relu_noise(200, 300).t()):
        before, version, stride = tensor.clone(), tensor._version, tensor.stride()
        ledger = CotangentLedger()
        ledger.update("block", tensor)
        ledger.forward("block", tensor)
        ledger.finish()
        assert torch.equal(tensor, before)
        assert (tensor._version, tensor.stride(), tensor.grad_fn) == (version, stride, None)


def test_a_small_cotangent_that_was_overwritten_says_so() -> None:
    tensor = torch.ones(4)
    ledger = CotangentLedger()
    ledger.update("early", tensor)
    tensor.mul_(2)
    ledger.update("late", tensor)
    seen = ledger.finish()
    assert seen["early"].overwritten
    assert not seen["late"].overwritten
    assert "overwritten" in str(seen)


def test_forward_outputs_are_copied_before_they_are_overwritten() -> None:
    h = torch.full((4,), -1.0)
    ledger = CotangentLedger()
    ledger.forward("before", h)
    h.relu_()
    ledger.forward("after", (h, torch.arange(3), "text"))
    before, after = ledger.finish().forward
    assert (before.norm, after.norm) == (2.0, 0.0)
    assert not before.overwritten
    assert after.elements == 4  # integers and strings are no part of it


# ---------------------------------------------------------------------------------------------------- text
def test_the_table_fits_and_marks_the_birth() -> None:
    blocks: list[Any] = [nn.Linear(16, 16), lambda h: Plant.apply(h, math.nan, 0), nn.Linear(16, 16)]
    seen = sweep(blocks, torch.randn(4, 16), CotangentLedger(), forward=True)
    text = str(seen)
    assert all(len(line) <= 80 for line in text.splitlines()[1:])
    marked = [line for line in text.splitlines() if line.endswith(" born")]
    assert [line.split()[0] for line in marked] == ["1"]
    assert text.startswith("born: block 1: ")
    assert "cotangents, in the order of the reverse walk" in text
    assert "outputs, in the order of the forward pass" in text


def test_gain_and_zeros_in_the_table() -> None:
    ledger = CotangentLedger()
    ledger.update("head", torch.tensor([3.0, 4.0]))
    ledger.update("a.block.with.a.very.long.name.that.is.cut", torch.tensor([0.0, 10.0]))
    ledger.update("lost", (None,))
    text = str(ledger.finish())
    rows = [line.split() for line in text.splitlines()[2:]]
    assert rows[0] == ["head", "5", "-", "4", "0%", "2"]
    assert rows[1][1:] == ["10", "2", "10", "50%", "2"]
    assert rows[1][0].startswith("…")
    assert rows[2] == ["lost", "none"]
    assert str(CotangentLedger().finish()) == "no cotangents were recorded"


def test_an_unknown_block_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="stem"):
        CotangentLedger().finish()["stem"]
