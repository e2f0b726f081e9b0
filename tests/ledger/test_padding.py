"""Where sequences are padded, read from values; and what becomes of it in a loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from harness import here, watching
from torch.nn import functional as F

from gradledger.core.events import PaddingAveraged, PaddingCounted
from gradledger.ledger._padding import constant_beyond, lengths_of, lengths_of_mask
from gradledger.ledger.probes import backward, calls, padding

LENGTHS = (5, 2, 7, 3, 6, 4)


def padded(fill: float = 0.0, features: int = 3) -> np.ndarray:
    draw = np.random.default_rng(0)
    values = np.full((len(LENGTHS), 7, features), fill)
    for row, length in enumerate(LENGTHS):
        values[row, :length] = draw.normal(size=(length, features))
    return values


@pytest.mark.parametrize("fill", [0.0, -100.0])
def test_lengths_are_those_that_the_rows_were_filled_to(fill: float) -> None:
    found = lengths_of(padded(fill))
    assert found is not None
    assert (found.rows, found.steps, found.left, found.value) == (LENGTHS, 7, False, fill)
    assert found.share == pytest.approx(1 - sum(LENGTHS) / 42)
    assert found.mask().sum() == 42 - sum(LENGTHS)


def test_padding_on_the_left() -> None:
    found = lengths_of(padded()[:, ::-1])
    assert found is not None
    assert (found.rows, found.left) == (LENGTHS, True)
    assert found.mask()[1].tolist() == [True] * 5 + [False] * 2


def test_zeros_that_stand_among_the_content_are_no_padding() -> None:
    values = padded()
    values[0, 1] = 0.0
    assert lengths_of(values) is None
    assert lengths_of(np.random.default_rng(0).normal(size=(6, 7, 3))) is None
    assert lengths_of(np.zeros((6, 7, 3))) is None


def test_masks_of_both_kinds_and_triangles() -> None:
    kept = np.arange(7)[None] < np.asarray(LENGTHS)[:, None]
    found = lengths_of_mask(kept)
    assert found is not None
    assert found.rows == LENGTHS
    assert lengths_of_mask(~kept, kept=False) == found
    assert lengths_of_mask(kept[:, :, None].astype(float)) == found
    assert lengths_of_mask(np.tril(np.ones((7, 7)))) is None, "a causal mask"
    assert lengths_of_mask(np.random.default_rng(0).random((6, 7)) < 0.5) is None, "drawn at random"
    assert lengths_of_mask(kept * 0.5) is None, "weights"


def test_what_is_constant_beyond_the_lengths() -> None:
    lengths = lengths_of(padded())
    assert lengths is not None
    repeated = padded()
    for row, length in enumerate(LENGTHS):
        repeated[row, length:] = repeated[row, length - 1]
    assert constant_beyond(padded(), lengths)
    assert constant_beyond(repeated, lengths)
    assert not constant_beyond(np.random.default_rng(1).normal(size=(6, 7, 3)), lengths)


def trained(masked: bool) -> tuple[list[PaddingCounted], list[PaddingAveraged], int]:
    net = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = torch.tensor(padded(), dtype=torch.float32)
    mask = (seen != 0).any(-1, keepdim=True)
    with watching(calls, backward, padding) as watch:
        for share in (1, 2, 3):
            wanted = torch.where(mask, seen.flip(-1), torch.zeros(()))
            each = F.mse_loss(net(seen), wanted * share, reduction="none")
            line = here() - 1
            loss = (each * mask).mean() if masked else each.mean()
            optimizer.zero_grad()
            loss.backward()
        return watch.all(PaddingCounted), watch.all(PaddingAveraged), line


def test_the_gradient_says_whether_padding_counts() -> None:
    counted, averaged, line = trained(masked=False)
    assert averaged == []
    assert {e.site.line for e in counted} == {line}
    event = counted[0]
    assert (event.op, event.rows, event.steps, event.value) == ("mse_loss", 6, 7, 0.0)
    assert event.padded == pytest.approx(1 - sum(LENGTHS) / 42, abs=1e-4)
    assert event.pulled is not None
    assert 0 < event.pulled < 1


def test_a_masked_loss_that_is_averaged_over_everything() -> None:
    counted, averaged, line = trained(masked=True)
    assert counted == []
    assert [(e.op, e.site.line, e.mask_site.line) for e in averaged] == [("mean", line + 2, line + 2)] * 3
    assert averaged[0].kept == pytest.approx(sum(LENGTHS) / 42, abs=1e-4)
