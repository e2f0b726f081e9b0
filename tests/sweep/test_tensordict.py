"""Losses as a TensorDict: the same bits as `TensorDict.backward`, and the package stays optional."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, tensorclass
from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep._seed import roots_and_seeds
from gradledger.sweep._tensordict import is_tensordict, leaves
from problems import BY_ID, differences, outcome, plain, run


def leaf_tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(4, 3, generator=generator).requires_grad_() for _ in range(2)]


def nested(a: Tensor, b: Tensor) -> TensorDict:
    h = torch.tanh(a @ b.T)
    return TensorDict(
        {
            "actor": h.mean(),
            "critic": {"value": (h - 1).square().sum(), "deep": {"penalty": a.norm().reshape(1)}},
            "seen": h.detach().max(),
            "count": torch.tensor(3),
            "text": NonTensorData("ignored"),
        }
    )


def wide(a: Tensor, b: Tensor) -> TensorDict:
    """Leaves of several shapes and dtypes."""
    return TensorDict({"a": a * b, "n": {"b": (a.double() @ b.double().T).exp(), "c": b[0].bfloat16()}})


def lazy(a: Tensor, b: Tensor) -> Any:
    return LazyStackedTensorDict(TensorDict({"x": (a * b).sum()}), TensorDict({"x": (a - b).square().sum()}))


@tensorclass
class Losses:
    actor: Tensor
    critic: Tensor


def as_class(a: Tensor, b: Tensor) -> Any:
    return Losses(actor=(a * b).sum(), critic=(a - b).square().mean(), batch_size=[])


def weights_for(loss: Any) -> Any:
    generator = torch.Generator().manual_seed(9)
    return loss.apply(lambda t: torch.randn(t.shape, generator=generator).to(t.dtype))


def ours(loss: Any, gradient: Any) -> None:
    torch.autograd.backward(*roots_and_seeds(loss, gradient))


def theirs(loss: Any, gradient: Any) -> None:
    loss.backward(gradient)


@pytest.mark.parametrize(
    ("make", "weighted"),
    [(nested, False), (nested, True), (wide, True), (lazy, True), (as_class, False)],
    ids=["nested", "nested-weighted", "wide-weighted", "lazy-weighted", "tensorclass"],
)
def test_the_same_bits_as_the_real_one(make: Callable[..., Any], weighted: bool) -> None:
    grads = []
    for backward in (ours, theirs):
        a, b = leaf_tensors()
        loss = make(a, b)
        backward(loss, weights_for(loss) if weighted else None)
        assert a.grad is not None
        assert b.grad is not None
        grads.append((a.grad, b.grad))
    assert torch.equal(grads[0][0], grads[1][0])
    assert torch.equal(grads[0][1], grads[1][1])


def test_a_weight_of_another_size_is_seen() -> None:
    """The comparison can fail: doubled weights give other gradients."""
    grads = []
    for factor in (1.0, 2.0):
        a, b = leaf_tensors()
        loss = wide(a, b)
        ours(loss, weights_for(loss) * factor)
        grads.append(a.grad)
    assert not torch.equal(grads[0], grads[1])  # type: ignore[arg-type]


def test_implicit_gradients_equal_the_sum_of_the_leaves() -> None:
    """The promise of the contract: for single-element leaves, the backward of their sum."""
    a, b = leaf_tensors()
    ours(nested(a, b), None)
    c, d = leaf_tensors()
    loss = nested(c, d)
    (loss["actor"] + loss["critic", "value"] + loss["critic", "deep", "penalty"].squeeze()).backward()
    assert torch.equal(a.grad, c.grad)  # type: ignore[arg-type]
    assert torch.equal(b.grad, d.grad)  # type: ignore[arg-type]


def test_dict_and_tensordict_may_be_mixed() -> None:
    a, b = leaf_tensors()
    loss = {"td": TensorDict({"x": (a * b).sum()}), "plain": {"y": a.sum()}}
    gradient = {"td": {"x": torch.tensor(2.0)}, "plain": TensorDict({"y": torch.tensor(3.0)})}
    ours(loss, gradient)
    want = 2.0 * b.detach() + 3.0
    assert torch.allclose(a.grad, want, rtol=0, atol=1e-6)  # type: ignore[arg-type]
    c, d = leaf_tensors()
    ours(TensorDict({"td": {"x": (c * d).sum()}, "plain": {"y": c.sum()}}), gradient)
    assert torch.equal(c.grad, a.grad)  # type: ignore[arg-type]


def test_the_roots_are_those_that_the_real_one_differentiates() -> None:
    a, b = leaf_tensors()
    roots, seeds = roots_and_seeds(nested(a, b))
    assert [r.shape for r in roots] == [(), (), (1,)]
    assert all(torch.equal(s, torch.ones_like(r)) for r, s in zip(roots, seeds, strict=True))
    assert [key for key, _ in leaves(nested(a, b))] == [
        "actor",
        ("critic", "value"),
        ("critic", "deep", "penalty"),
        "seen",
        "count",
    ]


def faults(a: Tensor, b: Tensor) -> dict[str, tuple[Any, Any, str]]:
    """What both refuse: the loss, the gradient, and what our text says."""
    loss = TensorDict({"actor": a.sum(), "critic": {"value": a * b}})
    good = TensorDict({"actor": torch.ones(()), "critic": {"value": torch.ones(4, 3)}})
    missing = TensorDict({"actor": torch.ones(()), "critic": {"valeu": torch.ones(4, 3)}})
    shape = TensorDict({"actor": torch.ones(()), "critic": {"value": torch.ones(3, 4)}})
    return {
        "no seed": (loss, None, "key ('critic', 'value'): got a leaf with several elements, shape (4, 3)"),
        "missing": (loss, missing, "got a gradient with 'actor', ('critic', 'valeu')"),
        "shape": (loss, shape, "got a gradient of shape (3, 4) (float32 on cpu), wanted shape (4, 3) (float32 on cpu)"),
        "nothing": (good, None, "losses 'actor', ('critic', 'value'), none of which requires a gradient"),
        "type": (loss, torch.ones(()), "gradient of type Tensor"),
    }


@pytest.mark.parametrize("name", ["no seed", "missing", "shape", "nothing", "type"])
def test_faults_are_refused_by_both_and_ours_names_the_key(name: str) -> None:
    loss, gradient, said = faults(*leaf_tensors())[name]
    with pytest.raises((RuntimeError, KeyError, TypeError)):
        loss.backward(gradient)
    with pytest.raises(SweepError) as caught:
        roots_and_seeds(loss, gradient)
    assert said in str(caught.value)


def test_another_dtype_is_refused_where_the_real_one_casts() -> None:
    """A seed in bf16 or float64 for a float32 leaf would be rounded in silence."""
    a, _ = leaf_tensors()
    loss = TensorDict({"actor": {"loss": a.sum()}})
    with pytest.raises(SweepError, match=r"\('actor', 'loss'\).*float64 on cpu.*float32 on cpu"):
        roots_and_seeds(loss, TensorDict({"actor": {"loss": torch.ones((), dtype=torch.float64)}}))


def test_create_graph_is_refused() -> None:
    a, b = leaf_tensors()
    with pytest.raises(SweepError, match="gradient penalty"):
        roots_and_seeds(nested(a, b), create_graph=True)


def test_the_row_with_tensordict_state_meets_the_oracle() -> None:
    problem = BY_ID["tensordict-state"]

    def backward(chain: Any) -> Any:
        loss = chain.loss_fn(run(chain), chain.y)
        assert is_tensordict(loss)
        torch.autograd.backward(*roots_and_seeds(loss))
        return loss

    assert differences(outcome(problem, backward), plain(problem)) == []


@pytest.mark.parametrize(
    "before", ["", "sys.modules['tensordict'] = None", "sys.modules['tensordict'] = type(sys)('x')"]
)
def test_the_package_is_not_imported_and_may_be_absent(before: str) -> None:
    code = f"""
import sys
{before}
import torch
from gradledger.sweep._seed import roots_and_seeds
from gradledger.sweep._tensordict import is_tensordict
w = torch.ones(3, requires_grad=True)
roots, seeds = roots_and_seeds({{"a": w.sum(), "b": {{"c": w.prod()}}}})
assert len(roots) == 2 and not is_tensordict(w)
assert not hasattr(sys.modules.get("tensordict"), "TensorDict")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_is_a_tensordict() -> None:
    assert is_tensordict(TensorDict({}))
    assert is_tensordict(Losses(actor=torch.ones(()), critic=torch.ones(()), batch_size=[]))
    for value in ({}, torch.ones(()), None, [TensorDict({})]):
        assert not is_tensordict(value)
