"""Hooks on modules read the gradients of a reverse pass: told for the program's own, and only for those."""

from __future__ import annotations

import pytest
import torch
from harness import Watched, watching
from torch import nn

from gradledger.core.events import Backward, GradientsRead
from gradledger.ledger.probes import hooks


def reads(w: Watched) -> set[int]:
    return {e.backward for e in w.all(GradientsRead) if e.backward is not None}


def test_hooked_modules_and_parts_of_them_read() -> None:
    with watching() as w:
        net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 1)))
        net(torch.ones(2, 3)).sum().backward()
        net[1][0].register_full_backward_hook(lambda *_: None)  # type: ignore[index]
        net(torch.ones(2, 3)).sum().backward()
        first, second = (e.backward for e in w.all(Backward))
    assert reads(w) == {second}
    assert first != second


def test_hooks_on_tensors_and_on_modules_that_were_not_called_do_not_count() -> None:
    with watching() as w:
        net, other = nn.Linear(3, 1), nn.Linear(3, 1)
        other.register_full_backward_pre_hook(lambda *_: None)
        net.weight.register_hook(lambda g: g)
        net.register_forward_hook(lambda *_: None)
        net(torch.ones(2, 3)).sum().backward()
        assert w.all(Backward)
    assert not reads(w)


def test_passes_of_one_line_are_looked_at_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "MAX_PASSES", 3)
    with watching() as w:
        net = nn.Linear(3, 1)
        net.register_full_backward_hook(lambda *_: None)
        for _ in range(9):
            net(torch.ones(2, 3)).sum().backward()
    assert len(reads(w)) == 3
