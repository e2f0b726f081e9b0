"""Averages of parameters in plain tensors: which weights, whose memory, and whether the result went anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Watched, watching
from torch import nn

from gradledger.core.events import ShadowAveraged

KEEP = 0.75
Update = Callable[[list[torch.Tensor], list[nn.Parameter]], None]


def run(watch: Watched, update: Update, alias: bool = False) -> list[ShadowAveraged]:
    """Four steps of training, an update of the average after each: the last one is told at the end of the watch."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    shadow = [p.detach() if alias else p.detach().clone() for p in parameters]
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()
        with torch.no_grad():
            update(shadow, parameters)
    return watch.all(ShadowAveraged)


def lerp(shadow: list[torch.Tensor], parameters: list[nn.Parameter]) -> None:
    for s, p in zip(shadow, parameters, strict=True):
        s.lerp_(p, 1 - KEEP)


def multiply_and_add(shadow: list[torch.Tensor], parameters: list[nn.Parameter]) -> None:
    for s, p in zip(shadow, parameters, strict=True):
        s.mul_(KEEP).add_(p.data, alpha=1 - KEEP)


def stored(shadow: list[torch.Tensor], parameters: list[nn.Parameter]) -> None:
    shadow[:] = [KEEP * s + (1 - KEEP) * p for s, p in zip(shadow, parameters, strict=True)]


def by_difference(shadow: list[torch.Tensor], parameters: list[nn.Parameter]) -> None:
    for s, p in zip(shadow, parameters, strict=True):
        s.copy_(s - (1 - KEEP) * (s - p))


def dropped(shadow: list[torch.Tensor], parameters: list[nn.Parameter]) -> None:
    for s, p in zip(shadow, parameters, strict=True):
        s = KEEP * s + (1 - KEEP) * p


@pytest.mark.parametrize("update", [lerp, multiply_and_add, stored, by_difference], ids=lambda u: u.__name__)
def test_spellings_of_an_average(update: Update) -> None:
    with watching() as watch:
        events = run(watch, update)
    assert len(events) == 3
    assert {(len(e.tensors), e.tau, e.lost, e.shared) for e in events} == {(2, 0.25, 0, 0)}


def test_a_result_that_goes_nowhere() -> None:
    with watching() as watch:
        events = run(watch, dropped)
    assert [(e.tau, e.lost) for e in events] == [(0.25, 0), (0.25, 2), (0.25, 2)]


@pytest.mark.parametrize("update", [lerp, multiply_and_add], ids=lambda u: u.__name__)
def test_an_average_in_the_memory_of_the_parameters(update: Update) -> None:
    with watching() as watch:
        events = run(watch, update, alias=True)
    assert {(len(e.tensors), e.lost, e.shared) for e in events} == {(2, 0, 2)}
    begun = events[0].made_site
    assert "detach() if alias" in Path(begun.file).read_text(encoding="utf-8").splitlines()[begun.line - 1]


def decayed(shadow: list[torch.Tensor], parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.add_(p, alpha=-0.1)


def drawn(shadow: list[torch.Tensor], parameters: list[nn.Parameter]) -> None:
    for s, p in zip(shadow, parameters, strict=True):
        p.lerp_(s, 0.1)


def momentum(shadow: list[torch.Tensor], parameters: list[nn.Parameter]) -> None:
    for s, p in zip(shadow, parameters, strict=True):
        assert p.grad is not None
        s.mul_(0.9).add_(p.grad, alpha=0.1)


def changed(shadow: list[torch.Tensor], parameters: list[nn.Parameter]) -> None:
    for s, p in zip(shadow, parameters, strict=True):
        s.copy_(p - s)


@pytest.mark.parametrize("update", [decayed, drawn, momentum, changed], ids=lambda u: u.__name__)
def test_what_is_no_average_of_parameters(update: Update) -> None:
    with watching() as watch:
        assert run(watch, update) == []
