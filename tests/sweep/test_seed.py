"""From a loss to roots and seeds: what plain autograd would do, or an error that names the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep._seed import roots_and_seeds
from problems import BY_ID, differences, outcome, plain, run


def grads_of(make: Callable[[Tensor], Any], gradient: Any = None) -> Tensor:
    """The gradient at w = (1, 2, 3) by our roots and seeds."""
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    roots, seeds = roots_and_seeds(make(w), gradient)
    torch.autograd.backward(roots, seeds)
    assert w.grad is not None
    return w.grad


def text_of(loss: Any, gradient: Any = None, **options: Any) -> str:
    with pytest.raises(SweepError) as caught:
        roots_and_seeds(loss, gradient, **options)
    return str(caught.value)


@pytest.fixture
def w() -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_single_element_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    w = torch.ones(3, dtype=dtype, requires_grad=True)
    loss = w.sum().reshape(shape)
    roots, seeds = roots_and_seeds(loss)
    assert roots == (loss,)
    assert torch.equal(seeds[0], torch.ones_like(loss))
    assert seeds[0].dtype == dtype


def test_a_tensor_with_its_gradient() -> None:
    weights = torch.tensor([1.0, -2.0, 0.5])
    assert torch.equal(grads_of(lambda w: w * w, weights), 2 * torch.tensor([1.0, 2.0, 3.0]) * weights)


def test_named_losses_are_added_up() -> None:
    got = grads_of(lambda w: {"actor": w.sum(), "critic": {"value": (w * w).sum()}})
    assert torch.equal(got, torch.tensor([3.0, 5.0, 7.0]))


def test_named_seeds_are_matched_by_nested_key_not_by_order() -> None:
    gradient = {"critic": {"value": torch.tensor(10.0)}, "actor": torch.tensor(0.5), "elsewhere": torch.tensor(99.0)}
    got = grads_of(lambda w: {"actor": w.sum(), "critic": {"value": (w * w).sum()}}, gradient)
    assert torch.equal(got, 0.5 + 10.0 * torch.tensor([2.0, 4.0, 6.0]))


def test_keys_that_are_no_strings(w: Tensor) -> None:
    roots, _ = roots_and_seeds({0: w.sum(), 1: {2: w.prod()}})
    assert len(roots) == 2


def test_what_needs_no_gradient_is_ignored(w: Tensor) -> None:
    loss = {"a": w.sum(), "seen": torch.ones(5), "n": 3, "none": None, "text": "x", "deep": {"t": w.detach()}}
    roots, seeds = roots_and_seeds(loss)
    assert len(roots) == len(seeds) == 1
    assert roots[0] is loss["a"]


def test_a_loss_that_stands_under_two_names_counts_twice() -> None:
    def twice(w: Tensor) -> dict[str, Tensor]:
        total = w.sum()
        return {"a": total, "b": total}

    assert torch.equal(grads_of(twice), torch.full((3,), 2.0))


def test_a_seed_with_a_graph_is_cut(w: Tensor) -> None:
    seed = (2 * w.sum()).reshape(())
    _, seeds = roots_and_seeds(w.sum(), seed)
    assert not seeds[0].requires_grad
    assert torch.equal(seeds[0], seed.detach())


def test_the_row_with_named_losses_meets_the_oracle() -> None:
    problem = BY_ID["named-losses"]

    def backward(chain: Any) -> Any:
        loss = chain.loss_fn(run(chain), chain.y)
        torch.autograd.backward(*roots_and_seeds(loss))
        return loss

    assert differences(outcome(problem, backward), plain(problem)) == []


def test_create_graph_is_refused(w: Tensor) -> None:
    text = text_of(w.sum(), create_graph=True)
    assert "create_graph=True" in text
    assert "inside one block" in text
    assert "torch.autograd.grad" in text


def test_several_elements_without_a_seed(w: Tensor) -> None:
    assert "the loss: got a leaf with several elements, shape (3,) (float32 on cpu)" in text_of(w * 2)
    assert "key ('critic', 'value')" in text_of({"actor": w.sum(), "critic": {"value": w * 2}})


def test_complex_loss_without_a_seed() -> None:
    z = torch.ones((), dtype=torch.complex64, requires_grad=True)
    assert "complex" in text_of(z * 2)
    assert "complex" in text_of({"a": z * 2})


def test_nothing_to_differentiate(w: Tensor) -> None:
    assert "requires no gradient" in text_of(torch.ones(()))
    text = text_of({"a": w.sum().detach(), "b": {"c": torch.ones(())}})
    assert "'a', ('b', 'c')" in text
    assert "detach()" in text
    assert "without a single tensor" in text_of({})


def test_a_missing_seed_names_the_key_and_what_was_there(w: Tensor) -> None:
    text = text_of(
        {"actor": w.sum(), "critic": {"value": w.prod()}}, {"actor": torch.ones(()), "critc": torch.ones(())}
    )
    assert "key ('critic', 'value')" in text
    assert "'actor', 'critc'" in text


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (torch.ones(1), "shape (1,) (float32 on cpu)"),
        (torch.ones((), dtype=torch.float64), "shape () (float64 on cpu)"),
        (torch.ones((), device="meta"), "shape () (float32 on meta)"),
        (True, "a gradient of type bool"),
        ({"x": torch.ones(())}, "a gradient of type dict"),
    ],
)
def test_a_seed_that_does_not_fit(w: Tensor, seed: Any, said: str) -> None:
    text = text_of({"actor": {"loss": w.sum()}}, {"actor": {"loss": seed}})
    assert "key ('actor', 'loss')" in text
    assert said in text
    assert "wanted shape () (float32 on cpu)" in text
    assert said in text_of(w.sum(), seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_number_weighs_a_scalar_loss_in_its_own_dtype(dtype: torch.dtype) -> None:
    w = torch.ones(3, dtype=dtype, requires_grad=True)
    for seeds in (roots_and_seeds(w.sum(), 0.1)[1], roots_and_seeds({"a": w.sum()}, {"a": 0.1})[1]):
        assert torch.equal(seeds[0], torch.full((), 0.1, dtype=dtype))
    assert "a gradient of type float" in text_of({"a": w}, {"a": 0.5})


def test_containers_without_names(w: Tensor) -> None:
    assert "got a tuple" in text_of((w.sum(), w.prod()))
    assert "key 'a': got a list" in text_of({"a": [w.sum()]})
    assert "got a float" in text_of(0.5)
    assert "gradient of type Tensor" in text_of({"a": w.sum()}, torch.ones(()))
