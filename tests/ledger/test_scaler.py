"""GradScaler: its calls, withheld steps, and gradients that are still scaled."""

from __future__ import annotations

import pytest
import torch
from harness import Watched, watching
from torch import nn

from gradledger.core.events import Clip, ScalerCalled, Step
from gradledger.ledger.probes import clip, optimizers, scaler
from gradledger.ledger.probes.scaler import scaled_unfinished


def parts() -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    net = nn.Linear(2, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)


def methods(watch: Watched) -> list[tuple[str, bool]]:
    return [(e.method, e.skipped) for e in watch.all(ScalerCalled)]


def test_the_programs_calls_and_not_those_inside() -> None:
    with watching(optimizers, scaler) as watch:
        net, opt, scale = parts()
        loss = net(torch.ones(1, 2)).sum()
        scaled = scale.scale(loss)
        assert watch.session.is_scaled(scaled)
        assert not watch.session.is_scaled(loss)
        scaled.backward()
        scale.step(opt)  # unscales inside
        scale.update()
        assert methods(watch) == [("scale", False), ("step", False), ("update", False)]
        first, step, _ = watch.all(ScalerCalled)
        assert first.scale == 8.0
        assert step.optimizer == watch.session.recorder.optimizers.find(opt)
        assert len(watch.all(Step)) == 1


def test_a_withheld_step() -> None:
    with watching(optimizers, scaler) as watch:
        net, opt, scale = parts()
        scale.scale(net(torch.full((1, 2), float("inf"))).sum()).backward()
        scale.step(opt)
        scale.update()
        assert methods(watch)[1] == ("step", True)
        assert watch.all(ScalerCalled)[-1].scale == 4.0


def test_whose_gradients_are_still_scaled() -> None:
    with watching(optimizers, scaler) as watch:
        session = watch.session
        net, opt, scale = parts()
        other = nn.Linear(2, 1)
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        assert scaled_unfinished(session, net.parameters()) is None
        scale.scale(net(torch.ones(1, 2)).sum() + other(torch.ones(1, 2)).sum()).backward()
        assert scaled_unfinished(session, net.parameters()) == 8.0
        scale.unscale_(opt)
        assert scaled_unfinished(session, net.parameters()) is None
        assert scaled_unfinished(session, other.parameters()) == 8.0
        scale.step(opt)
        scale.step(second)
        assert scaled_unfinished(session, other.parameters()) is None
        scale.update()
        assert scaled_unfinished(session, net.parameters()) is None


@pytest.mark.parametrize("unscale", [True, False])
def test_a_clip_says_whether_it_saw_scaled_gradients(unscale: bool) -> None:
    with watching(optimizers, scaler, clip) as watch:
        net, opt, scale = parts()
        scale.scale(net(torch.ones(1, 2)).sum()).backward()
        if unscale:
            scale.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        event = watch.one(Clip)
        assert (event.scaled, event.scale) == ((False, None) if unscale else (True, 8.0))


def test_a_disabled_scaler_is_no_scaler() -> None:
    with watching(optimizers, scaler) as watch:
        net, opt, _ = parts()
        off = torch.amp.GradScaler("cpu", enabled=False)
        off.scale(net(torch.ones(1, 2)).sum()).backward()
        off.unscale_(opt)
        off.step(opt)
        off.update()
        assert watch.all(ScalerCalled) == []
        assert scaled_unfinished(watch.session, net.parameters()) is None


def test_the_older_names_are_seen_too() -> None:
    with watching(optimizers, scaler) as watch:
        with pytest.warns(FutureWarning):
            scale = torch.cpu.amp.GradScaler()
        scale.scale(torch.ones((), requires_grad=True) * 2)
        assert methods(watch) == [("scale", False)]


def test_the_same_weights_as_without_us() -> None:
    def train() -> torch.Tensor:
        torch.manual_seed(0)
        net, opt, scale = parts()
        for i in range(5):
            x = torch.randn(4, 2) if i != 2 else torch.full((4, 2), float("nan"))
            opt.zero_grad()
            scale.scale(net(x).pow(2).mean()).backward()
            scale.unscale_(opt)
            scale.step(opt)
            scale.update()
        return net.weight.detach().clone()  # type: ignore[union-attr,operator]

    plain = train()
    with watching():
        assert torch.equal(train(), plain)
