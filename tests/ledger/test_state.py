"""State taken and loaded: where it came from, what it leaves behind, and when a load is a copy."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Watched, here, watching
from torch import nn

from gradledger.core.events import (
    Copied,
    FileTouched,
    OptimizerMade,
    StateLoaded,
    StateTaken,
    StorageShared,
    TensorRegistered,
)
from gradledger.ledger._states import contents, print_of_state


class Scaled(nn.Module):
    """Keeps its input statistics as plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(2)
        self.fitted: torch.Tensor | None = None
        self.fc = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(x - self.mean)
        return out


def net(norm: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), *([nn.BatchNorm1d(3)] if norm else []), nn.Linear(3, 1))


def through_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def train(model: nn.Module, steps: int = 2) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 2)).pow(2).mean().backward()
        optimizer.step()
    return optimizer


# ------------------------------------------------------------------------------------------------ loads as copies


@pytest.mark.parametrize("detail", [True, False])
@pytest.mark.parametrize("how", ["state_dict", "named_parameters", "renamed", "cloned", "deepcopy", "cpu"])
def test_a_load_from_a_live_network_is_a_copy(how: str, detail: bool) -> None:
    with watching() as watch:
        if not detail:
            watch.session.recorder.forbid_detail("all", "not wanted here")
        online, target = net(), net()
        state = {
            "state_dict": lambda: online.state_dict(),
            "named_parameters": lambda: dict(online.named_parameters()),
            "renamed": lambda: {k.removeprefix("x."): v for k, v in nn.ModuleDict({"x": online}).state_dict().items()},
            "cloned": lambda: OrderedDict((k, v.clone()) for k, v in online.state_dict().items()),
            "deepcopy": lambda: copy.deepcopy(online.state_dict()),
            "cpu": lambda: {k: v.cpu() for k, v in online.state_dict().items()},
        }[how]()
        target.load_state_dict(state)
        line = here() - 1
        loaded, copied = watch.one(StateLoaded), watch.one(Copied)
        assert (loaded.owner, loaded.ident, loaded.origin) == ("module", watch.module(target), "live")
        assert (loaded.matched, loaded.missing, loaded.unexpected, loaded.strict) == (4, (), (), True)
        assert (copied.how, copied.target, copied.site.line) == ("load_state_dict", watch.module(target), line)
        assert (loaded.origin_ident, copied.source) == (watch.module(online), watch.module(online))
        assert copied.changed is True
        assert not copied.same
        assert copied.tau == 1.0
        expected = {
            (watch.tensor(p), watch.tensor(t)) for p, t in zip(online.parameters(), target.parameters(), strict=True)
        }
        assert set(copied.pairs) == expected


def test_a_network_loaded_with_its_own_state() -> None:
    with watching() as watch:
        target = net()
        target.load_state_dict(target.state_dict())
        event = watch.one(Copied)
        assert (event.same, event.changed) == (True, False)


def test_loading_again_changes_nothing() -> None:
    with watching() as watch:
        online, target = net(), net()
        for _ in range(2):
            target.load_state_dict(online.state_dict())
        assert [e.changed for e in watch.all(Copied)] == [True, False]


def test_going_back_to_an_earlier_state_is_no_copy() -> None:
    with watching() as watch:
        model = net()
        best = copy.deepcopy(model.state_dict())
        train(model)
        model.load_state_dict(best)
        loaded = watch.one(StateLoaded)
        assert (loaded.origin, loaded.origin_ident) == ("live", watch.module(model))
        assert watch.all(Copied) == []


@pytest.mark.parametrize("detail", [True, False])
def test_a_soft_update_by_way_of_state_dicts(detail: bool) -> None:
    with watching() as watch:
        if not detail:
            watch.session.recorder.forbid_detail("all", "not wanted here")
        online, target = net(), net()
        own, other = target.state_dict(), online.state_dict()
        for key in other:
            own[key] = other[key] * 0.05 + own[key] * 0.95
        target.load_state_dict(own)
        event = watch.one(Copied)
        assert (event.source, event.target) == (watch.module(online), watch.module(target))
        assert event.tau == pytest.approx(0.05, abs=1e-4)
        assert event.changed


def test_values_from_nowhere() -> None:
    with watching() as watch:
        model = net()
        model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
        assert watch.one(StateLoaded).origin == "unknown"
        assert watch.all(Copied) == []


def test_buffers_follow_a_state_and_not_named_parameters() -> None:
    with watching() as watch:
        online, target = net(norm=True), net(norm=True)
        online(torch.randn(8, 2))
        target.load_state_dict(dict(online.named_parameters()), strict=False)
        target.load_state_dict(online.state_dict())
        first, second = watch.all(Copied)
        assert (first.buffers, first.buffers_followed) == (2, 0)
        assert set(first.buffers_differ) == {"1.running_mean", "1.running_var"}
        assert (second.buffers, second.buffers_followed, second.buffers_differ) == (2, 2, ())


def test_assign_binds_the_memory() -> None:
    with watching() as watch:
        online, target = net(), net()
        target.load_state_dict(online.state_dict(), assign=True)
        pairs = {(e.target, e.source, e.how) for e in watch.all(StorageShared)}
        assert pairs == {
            (watch.tensor(t), watch.tensor(p), "load_state_dict")
            for t, p in zip(target.parameters(), online.parameters(), strict=True)
        }
        assert sum(e.replaced is not None for e in watch.all(TensorRegistered)) == 4


def test_missing_and_unexpected_keys() -> None:
    with watching() as watch:
        source, target = net(), net()
        state = {"module." + k: v for k, v in source.state_dict().items()}
        target.load_state_dict(state, strict=False)
        event = watch.one(StateLoaded)
        assert (event.strict, event.matched, len(event.missing), len(event.unexpected)) == (False, 0, 4, 4)
        with pytest.raises(RuntimeError, match="Missing key"):
            target.load_state_dict(state)
        assert len(watch.all(StateLoaded)) == 1


@pytest.mark.parametrize("mixed", [False, True], ids=["non-strict", "mixed into its own state"])
def test_what_a_filter_drops_is_told_by_the_state_that_was_read(mixed: bool) -> None:
    with watching() as watch:
        model = nn.Sequential(OrderedDict(body=nn.Linear(4, 4), head=nn.Linear(4, 2)))
        state = through_file({k.replace("body", "trunk"): v + 1 for k, v in model.state_dict().items()})
        fits = {k: v for k, v in state.items() if k in model.state_dict()}
        model.load_state_dict({**model.state_dict(), **fits} if mixed else fits, strict=mixed)
        event = watch.one(StateLoaded)
        stays = ("body.weight", "body.bias")
        assert (event.kept, event.missing) == ((stays, ()) if mixed else ((), stays))
        assert event.renamed == (("body.weight", "trunk.weight"), ("body.bias", "trunk.bias"))
        assert (event.unexpected, event.early) == ((), 2)
        assert event.left_site.function == "through_file"


def test_what_goes_to_another_name_was_not_dropped() -> None:
    with watching() as watch:
        pair = nn.ModuleDict({"first": net(), "second": net()})
        state = through_file({k: torch.randn_like(v) for k, v in net().state_dict().items()})
        pair.load_state_dict({f"second.{k}": v.clone() for k, v in state.items()}, strict=False)
        event = watch.one(StateLoaded)
        assert (event.renamed, len(event.missing)) == ((), 4)


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_round_trip_through_a_file(place: str, tmp_path: Path) -> None:
    with watching() as watch:
        model, served = Scaled(), Scaled()
        model.mean = torch.ones(2)
        model.fitted = torch.ones(3)
        if place == "memory":
            state = through_file(model.state_dict())
        else:
            torch.save({"model": model.state_dict(), "step": 3}, tmp_path / "x.pt")
            train(model)
            state = torch.load(tmp_path / "x.pt")["model"]
        served.load_state_dict(state)
        loaded = watch.one(StateLoaded)
        assert (loaded.origin, loaded.origin_ident) == ("file", watch.module(model))
        assert set(loaded.plain_differ) == {"mean", "fitted"}
        assert watch.all(Copied) == []
        taken = watch.one(StateTaken)
        assert taken.missing == ("mean", "fitted")
        assert [e.method for e in watch.all(FileTouched)] == ["save", "load"]


def test_plain_attributes_that_agree_are_not_told() -> None:
    with watching() as watch:
        model, served = Scaled(), Scaled()
        served.load_state_dict(through_file(model.state_dict()))
        assert watch.one(StateLoaded).plain_differ == ()


def test_plain_attributes_between_live_networks() -> None:
    with watching() as watch:
        model, served = Scaled(), Scaled()
        model.mean = torch.ones(2)
        served.load_state_dict(model.state_dict())
        assert watch.one(StateLoaded).plain_differ == ("mean",)


def test_a_file_from_elsewhere(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "pretrained.pt")
    with watching() as watch:
        model = net()
        model.load_state_dict(torch.load(tmp_path / "pretrained.pt"))
        loaded = watch.one(StateLoaded)
        assert (loaded.origin, loaded.origin_ident) == ("file", None)


def test_optimizer_and_scheduler() -> None:
    with watching() as watch:
        model = net()
        optimizer = train(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        optimizer.step()
        scheduler.step()
        state = through_file({"opt": optimizer.state_dict(), "sched": scheduler.state_dict()})
        other = torch.optim.Adam(model.parameters(), lr=0.1)
        other.load_state_dict(state["opt"])
        again = torch.optim.lr_scheduler.StepLR(other, 5)
        again.load_state_dict(state["sched"])
        numbers = watch.session.recorder.optimizers, watch.session.recorder.objects
        assert [(e.owner, e.ident) for e in watch.all(StateTaken)] == [
            ("optimizer", numbers[0].find(optimizer)),
            ("scheduler", numbers[1].find(scheduler)),
        ]
        assert [(e.owner, e.ident, e.origin, e.origin_ident) for e in watch.all(StateLoaded)] == [
            ("optimizer", numbers[0].find(other), "file", numbers[0].find(optimizer)),
            ("scheduler", numbers[1].find(again), "file", numbers[1].find(scheduler)),
        ]
        assert watch.all(FileTouched)[0].what == ("optimizer", "scheduler")


def test_a_sequence_of_schedulers_is_one_state() -> None:
    with watching() as watch:
        optimizer = train(net())
        parts = [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.StepLR(optimizer, 3)]
        whole = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])
        whole.load_state_dict(whole.state_dict())
        assert len(watch.all(StateTaken)) == len(watch.all(StateLoaded)) == 1


def test_an_optimizer_from_before_the_watch_is_still_told() -> None:
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    with watching() as watch:
        optimizer.state_dict()
        assert watch.one(OptimizerMade).optimizer == watch.one(StateTaken).ident


def test_what_a_file_holds() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    whole = {
        "model": model.state_dict(),
        "opts": [optimizer.state_dict()],
        "sched": scheduler.state_dict(),
        "step": 3,
        "rng": torch.get_rng_state(),
        "notes": "x",
    }
    assert contents(whole) == ("module", "optimizer", "scheduler", "number", "rng", "other")
    assert contents(model.state_dict()) == contents(model) == ("module",)
    assert contents(optimizer.state_dict()) == ("optimizer",)
    assert contents(torch.get_rng_state()) == ("rng",)
    assert contents([1, 2]) == ("other",)
    # two states and one tensor beside them are no state of a module with two entries too many
    assert contents({k: whole[k] for k in ("model", "opts", "rng")}) == ("module", "optimizer", "rng")
    assert contents({"model": model.state_dict(), "rng": torch.get_rng_state()}) == ("module", "rng")
    assert contents({**model.state_dict(), "_extra_state": {"seen": torch.ones(1)}}) == ("module",)


def test_prints_tell_states_apart() -> None:
    one, two = net(), net()
    assert print_of_state(one.state_dict()) == print_of_state(copy.deepcopy(one.state_dict()))
    assert print_of_state(one.state_dict()) != print_of_state(two.state_dict())
    assert print_of_state({}) is None
    assert print_of_state("text") is None
    assert print_of_state({"a": 1}) is None


# ------------------------------------------------------------------------------------------------ transparency


def test_the_same_objects_and_random_state_as_without_us() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = net(norm=True)
        train(model)
        state = model.state_dict()
        assert list(state) == list(OrderedDict(state))
        assert state._metadata  # type: ignore[attr-defined]
        other = net(norm=True)
        result = other.load_state_dict(through_file(state))
        assert str(result) == "<All keys matched successfully>"
        return [*other.state_dict().values(), torch.get_rng_state()]

    plain = run()
    with watching():
        assert all(torch.equal(a, b) for a, b in zip(plain, run(), strict=True))


def test_a_module_with_its_own_state_dict(tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner.state_dict(*args, **kwargs)

        def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
            return self.inner.load_state_dict(state_dict, strict, assign)

    def owner(watch: Watched) -> int:
        return watch.one(StateTaken).ident

    with watching() as watch:
        one, two = Wrapped(), Wrapped()
        two.load_state_dict(one.state_dict())
        assert owner(watch) == watch.module(one.inner)
        assert watch.one(Copied).source == watch.module(one.inner)
