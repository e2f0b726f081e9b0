"""A run that stops and goes on: everything comes back to the bit, and what does not fit is refused whole."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gradledger.train import RunState, Shadow
from gradledger.train._module_state import WeightsError
from gradledger.train.checkpoint import CheckpointError
from gradledger.train.optimizer_state import OptimizerStateError
from gradledger.train.run_state import ResumeError


class Net(nn.Module):
    """Tied weights, a buffer that is not persistent, state of its own, dropout, normalisation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, 12, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.calls = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        if self.training:
            self.seen += 1
        return self.head(self.drop(self.norm(self.embed(tokens)))) + 0.01 * self.seen

    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": self.calls, "big": (1, float("inf"))}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state["big"] == (1, float("inf"))
        self.calls = state["calls"]


class Order:
    """A sampler of its own making."""

    def __init__(self) -> None:
        self.at = 0
        self.table = np.arange(5) ** 2

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "table": self.table, 7: {"pair": (1, None)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state[7] == {"pair": (1, None)}
        self.at, self.table = state["at"], state["table"]


class Program:
    """A training program with one of everything."""

    def __init__(self, rng_seed: int = 0) -> None:
        torch.manual_seed(rng_seed)
        random.seed(rng_seed)
        np.random.seed(rng_seed)
        self.net, self.critic = Net(), nn.Linear(12, 1)
        self.first = torch.optim.AdamW(self.net.parameters(), 1e-2)
        self.second = torch.optim.SGD(self.critic.parameters(), 0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(
            self.first,
            [
                torch.optim.lr_scheduler.LinearLR(self.first, 0.1, total_iters=4),
                torch.optim.lr_scheduler.CosineAnnealingLR(self.first, 20),
            ],
            milestones=[4],
        )
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.second, patience=1)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        self.ema = Shadow(self.net)
        self.order = Order()
        self.noise = np.random.Generator(np.random.Philox(rng_seed))
        self.choice = torch.Generator().manual_seed(rng_seed)
        self.state = RunState(
            net=self.net,
            critic=self.critic,
            first=self.first,
            second=self.second,
            scheduler=self.scheduler,
            plateau=self.plateau,
            scaler=self.scaler,
            ema=self.ema,
            order=self.order,
            noise=self.noise,
            choice=self.choice,
            counters={"epoch": 0},
            about={"config": "c1"},
        )

    def step(self) -> float:
        """Draws from every stream there is."""
        tokens = torch.randint(0, 12, (6,), generator=self.choice)
        target = torch.tensor(
            self.noise.normal(size=(6, 1)) + random.gauss(0, 1) + np.random.normal(), dtype=torch.float
        )
        self.first.zero_grad()
        self.second.zero_grad()
        loss = (self.critic(self.net(tokens)) - target).pow(2).mean() * (1 + self.order.at / 100)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.first)
        self.scaler.step(self.second)
        self.scaler.update()
        self.scheduler.step()
        self.plateau.step(float(loss.detach()))
        self.ema.blend(0.1)
        self.order.at += 1
        self.state.counters["optimizer_step"] += 1
        if self.state.counters["optimizer_step"] == 3:
            self.critic.bias.requires_grad_(False)
            self.net.norm.eval()
        return float(loss.detach())


def everything(program: Program) -> list[Tensor]:
    return [
        t
        for m in (program.net, program.critic, program.ema.model)
        for t in m.state_dict().values()
        if isinstance(t, Tensor)
    ]


def test_the_steps_after_a_resume_are_those_without(tmp_path: Path) -> None:
    one = Program()
    for _ in range(7):
        one.step()
    one.state.counters["epoch"] = 2
    one.state.save(tmp_path, 7, facts={"best": 0.5})
    wanted = [one.step() for _ in range(5)]
    two = Program(rng_seed=9)
    two.step()
    saved = two.state.load(tmp_path)
    assert (saved.step, saved.facts, saved.about) == (7, {"best": 0.5}, {"config": "c1"})
    assert two.state.counters == {"optimizer_step": 7, "epoch": 2}
    assert not two.critic.bias.requires_grad
    assert two.critic.weight.requires_grad
    assert not two.net.norm.training
    assert two.net.training
    assert (float(two.net.seen), two.net.calls) == (7.0, 7)
    assert [two.step() for _ in range(5)] == wanted
    assert all(torch.equal(a, b) for a, b in zip(everything(one), everything(two), strict=True))
    assert two.scheduler.get_last_lr() == one.scheduler.get_last_lr()
    assert two.plateau.state_dict() == one.plateau.state_dict()
    assert two.scaler.state_dict() == one.scaler.state_dict()
    assert two.net.head.weight is two.net.embed.weight


def test_a_resume_keeps_the_objects_that_others_hold(tmp_path: Path) -> None:
    program = Program()
    program.step()
    program.state.save(tmp_path, 1)
    held = [*program.net.parameters(), *program.net.buffers()]
    at = [tensor.data_ptr() for tensor in held]
    program.state.load(tmp_path)
    now = [*program.net.parameters(), *program.net.buffers()]
    assert all(a is b for a, b in zip(held, now, strict=True))
    assert [tensor.data_ptr() for tensor in now] == at


def test_no_pickle_and_tied_names_once(tmp_path: Path) -> None:
    program = Program()
    program.step()
    folder = program.state.save(tmp_path, 1)
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}
    weights = load_file(folder / "net.safetensors")
    assert "embed.weight" in weights
    assert "head.weight" not in weights
    assert "seen" in weights


def broken_state(change: Callable[[Program], None]) -> Callable[[], Program]:
    def make() -> Program:
        program = Program(rng_seed=3)
        change(program)
        return program

    return make


def _other_width(program: Program) -> None:
    program.net.norm = nn.BatchNorm1d(9)


def _untied(program: Program) -> None:
    program.net.head.weight = nn.Parameter(torch.zeros(12, 8))


def _other_class(program: Program) -> None:
    program.net.drop = nn.Identity()  # type: ignore[assignment]


MISFITS: dict[str, tuple[Callable[[Program], Any], str]] = {
    "another width": (_other_width, r"net: norm\.weight is \(9,\) here and was \(8,\)"),
    "no longer tied": (_untied, r"head\.weight was tied to embed\.weight and is not here"),
    "another class": (_other_class, "drop is a Identity and was a Dropout"),
    "another dtype": (lambda p: p.critic.double(), r"critic: weight is torch\.float64 here and was torch\.float32"),
    "one more layer": (lambda p: p.net.add_module("more", nn.Linear(1, 1)), r"more\.weight \(1, 1\) is missing"),
    "another config": (lambda p: p.state._about.update(config="c2"), "config is c2 here and c1 there"),
    "another optimizer": (
        lambda p: p.state._optimizers.update(second=torch.optim.Adam(p.critic.parameters())),
        "second: Adam here, and SGD saved",
    ),
    "fewer parameters": (
        lambda p: p.state._optimizers.update(second=torch.optim.SGD([p.critic.weight], 0.1)),
        r"second: group 0 lacks critic\.bias",
    ),
    "another scheduler": (
        lambda p: p.state._others.update(plateau=torch.optim.lr_scheduler.StepLR(p.second, 3)),
        "plateau is a StepLR here and was a ReduceLROnPlateau",
    ),
    "a part is gone": (lambda p: p.state._others.pop("order"), "order of the checkpoint is not in this run"),
    "a part is new": (lambda p: p.state._others.update(more=Order()), "more is not in the checkpoint"),
    "another generator": (
        lambda p: p.state._numpy.update(noise=np.random.default_rng(0)),
        "generator noise is a PCG64 here, and was a Philox",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_refused_and_nothing_moves(name: str, tmp_path: Path) -> None:
    change, message = MISFITS[name]
    one = Program()
    one.step()
    one.state.save(tmp_path, 1)
    two = Program(rng_seed=3)
    change(two)
    before, stream = [t.clone() for t in everything(two)], torch.get_rng_state()
    with pytest.raises(ResumeError, match=message):
        two.state.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(before, everything(two), strict=True))
    assert torch.equal(stream, torch.get_rng_state())
    assert two.state.counters == {"optimizer_step": 0, "epoch": 0}
    assert two.order.at == 0


def test_a_part_that_refuses_its_state_puts_all_back(tmp_path: Path) -> None:
    one = Program()
    one.step()
    one.state.save(tmp_path, 1)
    two = Program(rng_seed=3)

    class Refusing(Order):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise ValueError("not this one")

    Refusing.__name__ = "Order"
    before = str(two.scheduler.state_dict())
    weights = two.net.embed.weight.clone()
    two.state._others["order"] = Refusing()
    with pytest.raises(ResumeError, match="ValueError: not this one"):
        two.state.load(tmp_path)
    assert str(two.scheduler.state_dict()) == before
    assert torch.equal(two.net.embed.weight, weights)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    one = Program()
    one.state.save(tmp_path, 0)
    two = Program()
    _other_width(two)
    two.critic.double()
    with pytest.raises(ResumeError, match=r"norm\.weight.*critic: weight"):
        two.state.load(tmp_path)


def test_a_file_of_weights_is_no_resume_point_unless_asked(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state = RunState(model=model, optimizer=optimizer, rng=np.random.default_rng(0))
    other = nn.Linear(3, 2)
    save_file(other.state_dict(), tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(
            ResumeError,
            match=r"weights alone.*lost are then: the state of optimizer, the generator rng, the global random states, "
            r"the counters optimizer_step",
        ):
            state.load(path)
    lost = state.load_weights(tmp_path / "model.safetensors")
    assert "the state of optimizer" in lost
    assert torch.equal(model.weight, other.weight)
    save_file({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ResumeError, match=r"weight is \(2, 3\) here and was \(2, 4\)"):
        state.load_weights(tmp_path / "other.safetensors")
    torch.save(other.state_dict(), tmp_path / "model.pt")
    with pytest.raises(WeightsError, match=r"a pickle.*convert it once"):
        state.load_weights(tmp_path / "model.pt")


def test_the_weights_of_a_run_start_another(tmp_path: Path) -> None:
    one = Program()
    one.step()
    one.state.save(tmp_path, 1)
    two = Program(rng_seed=4)
    two.state.load_weights(tmp_path)
    assert torch.equal(two.net.embed.weight, one.net.embed.weight)
    assert two.state.counters["optimizer_step"] == 0


def test_gradients_in_flight_are_kept_when_asked(tmp_path: Path) -> None:
    def make() -> tuple[nn.Linear, RunState]:
        model = nn.Linear(2, 1)
        return model, RunState(model=model, gradients=True)

    model, state = make()
    model.weight.grad = torch.full((1, 2), 3.0)
    state.save(tmp_path, 0)
    other, fresh = make()
    other.bias.grad = torch.ones(1)
    fresh.load(tmp_path)
    assert torch.equal(other.weight.grad, torch.full((1, 2), 3.0))  # type: ignore[arg-type]
    assert other.bias.grad is None


def test_wrappers_do_not_change_names(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    RunState(model=torch.compile(model, backend="eager")).save(tmp_path, 0)
    other = nn.Linear(2, 1)
    RunState(model=other).load(tmp_path)
    assert torch.equal(model.weight, other.weight)


def test_what_has_no_state_is_refused() -> None:
    with pytest.raises(ResumeError, match="lr=float, which has no state"):
        RunState(model=nn.Linear(1, 1), lr=0.1)
    with pytest.raises(ResumeError, match="got nothing"):
        RunState()
    with pytest.raises(OptimizerStateError, match="an unnamed parameter"):
        RunState(model=nn.Linear(1, 1), optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1))


def corpus(folder: Path) -> list[str]:
    """Damages every file of the newest checkpoint, at a hundred places in all, and tells which."""
    rng = random.Random(0)
    files = sorted(path for path in folder.iterdir())
    return [f"{files[k % len(files)].name}@{rng.random()}" for k in range(100)]


def test_no_flipped_bit_in_any_file_is_ever_loaded(tmp_path: Path) -> None:
    program = Program()
    program.step()
    folder = program.state.save(tmp_path / "run", 1)
    for damage in corpus(folder):
        name, _, share = damage.partition("@")
        path = folder / name
        good = path.read_bytes()
        at, bit = int(float(share) * len(good)), 1 << (hash(damage) % 8)
        path.write_bytes(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
        with pytest.raises(
            CheckpointError, match=r"SHA-256 differs|manifest|unreadable|missing or not listed|bytes, not"
        ):
            program.state.load(tmp_path / "run")
        path.write_bytes(good)
    program.state.load(tmp_path / "run")


def test_a_damaged_newest_checkpoint_is_passed_over_aloud(tmp_path: Path) -> None:
    program = Program()
    program.state.save(tmp_path / "run", 1)
    program.step()
    newest = program.state.save(tmp_path / "run", 2)
    (newest / "net.safetensors").write_bytes((newest / "net.safetensors").read_bytes()[:-1] + b"!")
    with pytest.warns(RuntimeWarning, match=r"step-0*2 was passed over: net.safetensors .*goes on from step-0*1$"):
        saved = program.state.load(tmp_path / "run")
    assert [one.path.name for one in saved.rejected] == [newest.name]


def test_swapped_and_foreign_files_are_refused(tmp_path: Path) -> None:
    program = Program()
    program.step()
    folder = program.state.save(tmp_path / "run", 1)
    good = tmp_path / "good"
    shutil.copytree(folder, good)
    os.replace(folder / "net.safetensors", tmp_path / "x")
    os.replace(folder / "critic.safetensors", folder / "net.safetensors")
    os.replace(tmp_path / "x", folder / "critic.safetensors")
    with pytest.raises(CheckpointError, match=r"safetensors has \d+ bytes, not|SHA-256 differs"):
        program.state.load(tmp_path / "run")
    shutil.rmtree(folder)
    shutil.copytree(good, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["format"] = "another/3"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="not of format"):
        program.state.load(tmp_path / "run")
