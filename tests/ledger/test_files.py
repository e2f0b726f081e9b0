"""Networks filled from files that are not torch's own, and optimizers whose state was put there by hand."""

from __future__ import annotations

import _pickle
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from harness import here, watching
from torch import nn

from gradledger.core.events import FileTouched, StateLoaded
from gradledger.ledger._held import held


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 2)).pow(2).mean().backward()
    optimizer.step()


def by_load_file(state: dict[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    safetensors.torch.save_file(state, path)
    return safetensors.torch.load_file(path)


def by_safe_open(state: dict[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    safetensors.torch.save_file(state, path)
    with safetensors.safe_open(path, framework="pt") as file:
        assert isinstance(file, safetensors.safe_open)
        return {name: file.get_tensor(name) for name in state}


def by_numpy_file(state: dict[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    safetensors.numpy.save_file({name: t.numpy() for name, t in state.items()}, path)
    return {name: torch.from_numpy(a) for name, a in safetensors.numpy.load_file(path).items()}


def by_archive(state: dict[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    np.savez(path, **{name: t.numpy() for name, t in state.items()})
    arrays = np.load(f"{path}.npz")
    return {name: torch.tensor(arrays[name]) for name in arrays.files}


def by_arrays(state: dict[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    for name, tensor in state.items():
        np.save(path.with_name(f"{name}.npy"), tensor.numpy().astype(np.float64))
    return {name: torch.from_numpy(np.load(path.with_name(f"{name}.npy"))).float() for name in state}


def by_pickle(state: dict[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    path.write_bytes(pickle.dumps({name: t.numpy() for name, t in state.items()}))
    with path.open("rb") as file:
        return {name: torch.from_numpy(a.copy()) for name, a in pickle.load(file).items()}


WAYS = [by_load_file, by_safe_open, by_numpy_file, by_archive, by_arrays, by_pickle]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_state_out_of_any_file_is_known_as_such(way: Callable[..., Any], tmp_path: Path) -> None:
    with watching() as w:
        one, other = net(), net()
        state = way({name: t.detach().clone() for name, t in one.state_dict().items()}, tmp_path / "weights.x")
        other.load_state_dict(state)
    (load,) = w.all(StateLoaded)
    assert load.origin == "file"
    assert [event.method for event in w.all(FileTouched)][:1] == ["save"]


def test_a_copy_of_the_live_network_is_no_file_though_a_file_held_the_same_values(tmp_path: Path) -> None:
    with watching() as w:
        one, target = net(), net()
        one.load_state_dict(by_load_file(one.state_dict(), tmp_path / "weights.x"))
        target.load_state_dict({name: t.clone() for name, t in one.state_dict().items()})
    assert [load.origin for load in w.all(StateLoaded)] == ["file", "live"]


@pytest.mark.parametrize("way", [by_safe_open, by_archive], ids=lambda way: way.__name__)
def test_a_network_filled_by_hand_is_told_at_the_first_step(way: Callable[..., Any], tmp_path: Path) -> None:
    with watching() as w:
        one, other = net(), net()
        arrays = way({name: t.detach().clone() for name, t in one.state_dict().items()}, tmp_path / "weights.x")
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                parameter.copy_(arrays[name])
        optimizer = torch.optim.Adam(other.parameters(), lr=0.1)
        step(other, optimizer)
        step(other, optimizer)
        third = net()
        step(third, torch.optim.Adam(third.parameters(), lr=0.1))  # of no file
    (load,) = w.all(StateLoaded)
    assert (load.owner, load.origin, load.ident) == ("module", "file", w.module(other))


@pytest.mark.parametrize("put", [True, False])
def test_moments_put_there_by_hand_are_a_state_that_was_loaded(put: bool) -> None:
    model = net()
    with watching() as w:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        adagrad = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)  # makes its own
        if put:
            for p in model.parameters():
                optimizer.state[p] = {"step": torch.tensor(3.0), "exp_avg": p * 0, "exp_avg_sq": p * 0}
        step(model, optimizer)
        step(model, adagrad)
        step(model, optimizer)
    assert [(one.owner, one.origin) for one in w.all(StateLoaded)] == [("optimizer", "hand")] * put


def test_what_a_document_tells_of_a_run(tmp_path: Path) -> None:
    schedule = {"last_epoch": 4, "_step_count": 5, "_last_lr": [0.1]}
    with watching() as w:
        line = here() + 1
        json.loads(json.dumps({"counters": {"env_step": 4}}))
        json.loads('{"epochs": 4, "lr": 0.1, "total_steps": 9, "seed": 1}')  # how long, not how far
        json.loads(json.dumps({"scheduler": schedule}))
    touched = [event for event in w.all(FileTouched) if event.method == "load"]
    read = [({*event.what} - {"other"}, event.site.line) for event in touched]
    assert read == [({"number"}, line), ({"scheduler"}, line + 2)]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"0.weight": np.ones(2)}, {"module"}),
        ({"0.weight/exp_avg": np.ones(2), "0.weight/step": np.ones(1)}, {"optimizer", "number"}),
        ({"weights": {"w": np.ones(2)}, "global_step": 7}, {"module", "number"}),
        ({"data": [1, 2], "num_epochs": 7, "step_size": 2}, set()),
        (np.ones(3), set()),
    ],
)
def test_what_the_content_of_a_file_belongs_to(content: Any, what: set[str]) -> None:
    assert set(held(content)) - {"other"} == what


def test_every_reader_is_given_back() -> None:
    owners = (np, pickle, _pickle, json, safetensors, safetensors.torch, safetensors.numpy, np.lib.npyio.NpzFile)
    before = [dict(vars(owner)) for owner in owners]
    with watching():
        assert np.load is not before[0]["load"]
        assert safetensors.safe_open is not before[4]["safe_open"]
    assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.parametrize("function", ["pickle.loads", "pickle.dump", "json.loads", "np.load", "safetensors.torch.load"])
def test_a_reader_is_pickled_by_name_with_the_same_bits(function: str) -> None:
    """`__reduce__` may return `pickle.loads`."""
    bare = pickle.dumps(eval(function))
    with watching():
        assert pickle.dumps(eval(function)) == bare
        assert pickle.loads(bare) is eval(function)
