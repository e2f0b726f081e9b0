"""Train and eval mode, and layers whose running statistics move."""

from __future__ import annotations

import pytest
import torch
from harness import Watched, here, watching
from torch import nn

from gradledger.core.events import ModeSet, StatisticsMoved
from gradledger.core.site import NOWHERE
from gradledger.ledger.probes import calls, modes, modules


def backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())


def test_only_the_programs_own_call_counts() -> None:
    with watching(modes) as watch:
        net = nn.Sequential(backbone(), nn.Linear(3, 1))
        net.eval()
        line = here() - 1
        event = watch.one(ModeSet)
        assert (event.module, event.training, event.changed) == (watch.module(net), False, 6)
        assert (event.site.line, event.site.file) == (line, __file__)
        net.train()
        net[0].eval()
        assert [(e.training, e.changed) for e in watch.all(ModeSet)] == [(False, 6), (True, 6), (False, 4)]
        assert not any(m.training for m in net[0].modules())
        assert net.training


def test_what_train_returns_and_raises_is_unchanged() -> None:
    with watching(modes):
        net = nn.Linear(1, 1)
        assert net.train() is net
        assert net.eval() is net
        assert net.train(mode=False) is net
        with pytest.raises(ValueError, match="training mode is expected to be boolean"):
            net.train("yes")  # type: ignore[arg-type]
        assert net.eval() is net  # the nest was left again


def test_an_override_that_keeps_a_part_in_eval_mode() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = backbone()

        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self.body.eval()
            return self

    with watching(modes) as watch:
        net = Frozen()
        net.train()
        assert [(e.module, e.training) for e in watch.all(ModeSet)] == [
            (watch.module(net), True),
            (watch.module(net.body), False),
        ]
        assert watch.all(ModeSet)[0].site.callers[0].line == here() - 5


def test_calls_that_change_nothing_are_told_a_few_times() -> None:
    with watching(modes) as watch:
        net = backbone().eval()
        for _ in range(200):
            net.eval()
        assert 3 <= len(watch.all(ModeSet)) <= 12


def test_a_switch_is_a_new_phase_once_training_has_begun() -> None:
    with watching(modes) as watch:
        recorder = watch.session.recorder
        net = backbone()
        net.eval()
        assert recorder.attention.calls_left == 0
        recorder.backwards = 1
        net.eval()
        assert recorder.attention.calls_left == 0
        net.train()
        assert recorder.attention.calls_left > 0


def moved(watch: Watched) -> list[tuple[int, bool]]:
    return [(e.mode_site.line, e.frozen) for e in watch.all(StatisticsMoved)]


def test_statistics_of_a_frozen_part_move_after_train() -> None:
    with watching(modules, modes, calls) as watch:
        body, head = backbone(), nn.Linear(3, 1)
        net = nn.Sequential(body, head)
        body.requires_grad_(False)
        for _ in range(3):
            net.train()
            train_line = here() - 1
            for _ in range(4):
                net(torch.randn(4, 3))
            net.eval()
            net(torch.randn(4, 3))
        assert set(moved(watch)) == {(train_line, True)}
        event = watch.all(StatisticsMoved)[0]
        assert (event.module, event.root) == (watch.module(body[1]), watch.module(net))
        assert len(moved(watch)) <= 2


def test_the_last_train_call_that_reaches_the_layer() -> None:
    with watching(modules, modes, calls) as watch:
        body, other = backbone(), backbone()
        net = nn.Sequential(body)
        net(torch.randn(4, 3))
        net.train()
        first = here() - 1
        other.train()
        net(torch.randn(4, 3))
        body.train()
        second = here() - 1
        net(torch.randn(4, 3))
        assert watch.session.recorder.part(modes.Modes).mode_site(body[1]).line == second
        assert moved(watch)[0] == (NOWHERE.line, False)
        # nothing changed by these two calls, so the layer is not looked at again
        assert first != second


def test_a_layer_without_parameters_is_as_frozen_as_its_parent() -> None:
    with watching(modules, modes, calls) as watch:
        body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False)).requires_grad_(False)
        net = nn.Sequential(body, nn.Linear(3, 1))
        net(torch.randn(4, 3))
        assert watch.one(StatisticsMoved).frozen


def test_no_statistics_no_event() -> None:
    with watching(modules, modes, calls) as watch:
        net = nn.Sequential(nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False))
        net(torch.randn(4, 3))
        assert watch.all(StatisticsMoved) == []


def test_dead_roots_are_forgotten() -> None:
    state = modes.Modes()
    for _ in range(1000):
        state.trained(nn.ReLU(), NOWHERE)
    assert len(state._trained) <= modes.KEPT
