"""Padding: equal to taking the samples one by one, gradients included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gradledger.data.collate import Pad, masked_mean
from gradledger.data.errors import LoaderError


def test_the_three_kinds_of_samples() -> None:
    a, b = torch.ones(2, 3), torch.ones(4, 3)
    padded, mask = Pad()([a, b])
    assert padded.shape == (2, 4, 3)
    assert mask.tolist() == [[True, True, False, False], [True] * 4]
    x, y, label, mask = Pad(value=-1.0)([(a, a[:, 0], 7), (b, b[:, 0], 8)])
    assert (x.shape, y.shape, label.tolist()) == ((2, 4, 3), (2, 4), [7, 8])
    assert y[0].tolist() == [1, 1, -1, -1]
    batch = Pad(("x",), mask="real")([{"x": a.numpy(), "w": b}, {"x": b.numpy(), "w": b}])
    assert batch["w"].shape == (2, 4, 3)
    assert batch["real"].shape == (2, 4)


def test_a_batch_of_one_length_has_a_mask_too() -> None:
    batch = Pad()([{"x": torch.ones(3, 2)}, {"x": torch.ones(3, 2)}])
    assert batch["mask"].all()
    assert batch["mask"].shape == (2, 3)


def test_samples_stay_as_they_are() -> None:
    store = np.arange(12.0).reshape(6, 2)
    store.flags.writeable = False
    padded, _ = Pad()([store[:2], store[2:]])
    padded.fill_(9.0)
    assert store.tolist() == np.arange(12.0).reshape(6, 2).tolist()


def test_the_masked_mean_is_the_mean_over_real_entries() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(length, 3, dtype=torch.float64) for length in (1, 5, 2)]
    weight = torch.randn(3, dtype=torch.float64, requires_grad=True)
    expected = torch.cat([(part * weight).square() for part in parts]).mean()
    expected.backward()
    wanted, weight.grad = weight.grad, None
    padded, mask = Pad(value=1e3)(parts)
    got = masked_mean((padded * weight).square(), mask)
    got.backward()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(weight.grad, wanted)


def test_nan_under_the_mask_has_no_part() -> None:
    values = torch.tensor([[1.0, float("nan")], [3.0, 5.0]], requires_grad=True)
    mask = torch.tensor([[True, False], [True, True]])
    loss = masked_mean(values, mask)
    loss.backward()
    assert loss.item() == 3.0
    assert torch.equal(values.grad if values.grad is not None else values, torch.tensor([[1 / 3, 0.0], [1 / 3, 1 / 3]]))


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([], "no sample"),
        ([{"x": torch.ones(1)}, {"y": torch.ones(1)}], "different fields"),
        ([{"mask": torch.ones(1)}], "a field named 'mask'"),
        ([(1,), (1, 2)], "different lengths as tuples"),
        ([torch.ones(2, 3), torch.ones(1, 4)], r"only the first axis may vary"),
        ([torch.ones(2), torch.ones(1).long()], r"torch.int64 \[1\] in sample 1"),
        ([{"x": 1}, {"x": 2}], "no array to pad"),
    ],
)
def test_refusals(samples: list[Any], says: str) -> None:
    with pytest.raises(LoaderError, match=says):
        Pad()(samples)


def test_fields_that_do_not_go_together() -> None:
    samples = [{"x": torch.ones(2), "y": torch.ones(3)}, {"x": torch.ones(1), "y": torch.ones(1)}]
    with pytest.raises(LoaderError, match="one length a sample in every padded field"):
        Pad(("x", "y"))(samples)
    with pytest.raises(LoaderError, match=r"no arrays in \['z'\]"):
        Pad(("z",))(samples)
    with pytest.raises(LoaderError, match="False everywhere"):
        masked_mean(torch.ones(2, 2), torch.zeros(2, 2))
    with pytest.raises(LoaderError, match="equal leading axes"):
        masked_mean(torch.ones(2, 2), torch.zeros(2, 3))
