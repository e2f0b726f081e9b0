"""Slices of numpy arrays that torch changes in place, told from copies of rows at the same address."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from harness import watching
from torch import nn

from gradledger.core.events import StoredDataChanged

Take = Callable[[np.ndarray, int], torch.Tensor]


def changes(take: Take, change: Callable[[torch.Tensor], torch.Tensor], passes: int = 3) -> list[StoredDataChanged]:
    """A network is trained on four slices of an array, pass after pass."""
    torch.manual_seed(0)
    stored = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    with watching() as watch:
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(passes):
            for i in range(4):
                loss = net(change(take(stored, i))).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return watch.all(StoredDataChanged)


def view(stored: np.ndarray, i: int) -> torch.Tensor:
    return torch.from_numpy(stored[10 * i : 10 * i + 10])


def shared(stored: np.ndarray, i: int) -> torch.Tensor:
    return torch.as_tensor(stored[10 * i : 10 * i + 10])


def copied(stored: np.ndarray, i: int) -> torch.Tensor:
    return torch.from_numpy(stored[np.arange(10 * i, 10 * i + 10)])


def in_place(x: torch.Tensor) -> torch.Tensor:
    x += 0.1
    return x.mul_(1.1)


@pytest.mark.parametrize("take", [view, shared])
def test_slices_that_drift(take: Take) -> None:
    (event,) = changes(take, in_place)
    assert (event.dataset, event.site.function) == ("tensor", "in_place")
    assert event.items >= 2


@pytest.mark.parametrize(
    ("take", "change"),
    [(copied, in_place), (view, lambda x: x * 1.1), (view, lambda x: in_place(x.clone()))],
    ids=["copies of rows", "not in place", "copied before"],
)
def test_what_leaves_the_array_alone(take: Take, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert changes(take, change) == []


def test_an_array_that_is_filled_anew_for_each_pass() -> None:
    def fresh(stored: np.ndarray, i: int) -> torch.Tensor:
        part = stored[10 * i : 10 * i + 10]
        part[:] = np.random.default_rng(i).standard_normal(part.shape)
        return torch.from_numpy(part)

    assert changes(fresh, in_place) == []


def test_one_pass_says_nothing() -> None:
    assert changes(view, in_place, passes=1) == []


def test_from_numpy_is_put_back() -> None:
    before = torch.from_numpy
    with watching():
        pass
    assert torch.from_numpy is before
