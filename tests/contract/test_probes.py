"""What every probe owes: `install(session) -> undo`, and torch is afterwards exactly what it was before."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from typing import Any

import pytest
import torch
import torch.utils.data

from gradledger.ledger import _session, probes
from gradledger.ledger._session import Session
from gradledger.ledger._sink import MemorySink

NAMES = _session.probe_names()
each_probe = pytest.mark.parametrize("name", NAMES)
WATCHED: list[Any] = [
    torch,
    torch.Tensor,
    torch.autograd,
    torch.autograd.graph,
    torch.amp,
    torch.nn,
    torch.nn.functional,
    torch.nn.Module,
    torch.nn.Parameter,
    torch.nn.utils,
    torch.nn.utils.clip_grad,
    torch.nn.modules.module,
    torch.optim.Optimizer,
    sys.modules["torch.optim.optimizer"],
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.lr_scheduler,
    torch.optim.lr_scheduler.LRScheduler,
    torch.optim.lr_scheduler.StepLR,
    torch.utils.data.DataLoader,
    torch.serialization,
    torch.no_grad,
    torch.inference_mode,
    copy,
]


def snapshot() -> dict[str, int]:
    """Identity of everything that a patch could replace, and sizes of the registries of global hooks."""
    found = {
        f"{owner.__name__}.{key}": id(value)
        for owner in WATCHED
        for key, value in vars(owner).items()
        if key != "__doc__"
    }
    for key, value in vars(torch.nn.modules.module).items():
        if key.startswith("_global") and hasattr(value, "__len__"):
            found[f"hooks {key}"] = len(value)
    for key in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        found[f"hooks {key}"] = len(getattr(sys.modules["torch.optim.optimizer"], key))
    found["modes"] = torch._C._len_torch_function_stack()
    return found


@each_probe
def test_contract(name: str) -> None:
    module = importlib.import_module(f"{probes.__name__}.{name}")
    assert (module.__doc__ or "").strip()
    assert list(inspect.signature(module.install).parameters) == ["session"]


@each_probe
def test_undo_leaves_torch_as_it_was(name: str) -> None:
    module = importlib.import_module(f"{probes.__name__}.{name}")
    before = snapshot()
    session = Session.open(MemorySink())
    undo = module.install(session)
    undo()
    after = snapshot()
    assert {k for k in before | after if before.get(k) != after.get(k)} == set()
    assert session.recorder.failures == {}


def train() -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()


def test_all_together_leave_torch_as_it_was_after_a_training() -> None:
    train()  # the first optimizer of a process makes torch import and wrap things of its own
    before = snapshot()
    session = Session.open(MemorySink())
    session.install()
    assert snapshot() != before
    train()
    session.uninstall()
    after = snapshot()
    assert {k for k in before | after if before.get(k) != after.get(k)} == set()
    assert session.recorder.failures == {}
    assert session.recorder.steps == 3


def test_the_snapshot_can_see_a_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot()
    monkeypatch.setattr(torch.nn.functional, "mse_loss", lambda *a: None)
    assert snapshot() != before
