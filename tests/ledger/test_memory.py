"""Nothing that is kept grows with the iterations of a steady run."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from gradledger.audit import world
from gradledger.ledger import _attention, _steady, _thin
from gradledger.ledger._identity import WeakTable
from gradledger.watch import watch

WARM, MORE = 300, 600  # iterations before, and between, the two counts


def _blocks() -> int:
    """Small objects that are alive; tables of what lives are brought to that first."""
    gc.collect()
    for table in [o for o in gc.get_objects() if issubclass(type(o), WeakTable)]:
        table.prune()
    return sys.getallocatedblocks()


def test_a_steady_run_keeps_no_more_after_many_iterations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a target network, a table of rows, and samples watched in full, as a long run has them."""
    for module, name, value in (
        (_thin, "KEEP", 20), (_steady, "KEEP", 20), (world, "BACKWARDS_KEPT", 40), (world, "CALLS_AGE", 40),
        (_attention, "SAMPLE_LESS_AFTER", 0), (_attention, "SAMPLE_EVERY", 10),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)  # the stages of a run of 100,000 iterations, sooner
    blocks: list[int] = []
    with watch(store=tmp_path / "ledger"):
        net = nn.Linear(4, 2)
        target = copy.deepcopy(net).requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
        rows = torch.randn(256, 4)
        for i in range(WARM + MORE + 1):
            if i in (WARM, WARM + MORE):
                blocks.append(_blocks())
            x = rows[torch.randint(256, (8,))]
            with torch.no_grad():
                y = target(x)
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            if i % 20 == 0:
                target.load_state_dict(net.state_dict())
    kept = (blocks[1] - blocks[0]) / MORE
    assert kept < 5, f"{kept:.1f} small objects of each iteration are still there"


def test_a_module_whose_class_was_made_for_it_alone_is_let_go() -> None:
    """torch makes a class for each parametrized layer, and the class holds the layer."""
    with watch():
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
        parametrizations.weight_norm(net[0])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            loss = net(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        alive = weakref.ref(net[0])
        del net, optimizer, loss
    gc.collect()
    assert alive() is None
