"""The whole state of a training run, as one object that any loop can save and resume.

    state = RunState(model=model, optimizer=optimizer, scheduler=scheduler, ema=ema, order=sampler, noise=generator)
    if (folder / "LATEST").exists():
        state.load(folder)
    for batch in batches:
        ...
        state.counters["optimizer_step"] += 1
        if state.counters["optimizer_step"] % 1000 == 0:
            state.save(folder, state.counters["optimizer_step"])

What is kept: weights, buffers (also those that are not persistent), which parameters are frozen, which modules are in
eval mode, optimizers by parameter name, schedulers, scalers, shadow copies, the global random streams of python, numpy
and torch on every device, named generators, counters, and whatever has `state_dict` and `load_state_dict`. Loading
looks at everything first and changes nothing when something does not fit. Of several ranks, see `ranks=True`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from gradledger.core.checkpoints import candidates
from gradledger.core.errors import GradledgerError
from gradledger.train import _module_state, checkpoint, optimizer_state, seed
from gradledger.train import ranks as every_rank
from gradledger.train._tree import decode, encode
from gradledger.train.background import BackgroundSaves
from gradledger.train.shadow import Shadow

KIND = "gradledger-run/1"


class ResumeError(GradledgerError):
    """A checkpoint and the run that is to go on from it do not belong together."""

    slug = "resume"


@runtime_checkable
class Stateful(Protocol):
    """What tells its state as plain values and takes it back: schedulers, scalers, samplers, loaders, anything."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class RunState:
    """Everything that decides how a run goes on. See the module's text.

    Attributes:
        counters: whole numbers by name, saved and restored; begin at what was given, `optimizer_step` at 0.
        named: what was given, by name.
    """

    def __init__(
        self,
        *,
        counters: Mapping[str, int] | None = None,
        about: Mapping[str, str] | None = None,
        gradients: bool = False,
        ranks: bool = False,
        wait_s: float = 600.0,
        **named: Any,
    ) -> None:
        """Register what the run consists of.

        Args:
            counters: their first values.
            about: hashes or texts that must be equal when the run goes on ({"config": ..., "split": ..., "code": ...}).
            gradients: keep `.grad` too, for a save in the middle of an accumulation. Otherwise save between steps.
            ranks: one checkpoint of all ranks of `torch.distributed`: each makes a RunState of the same things, and
                each calls `save` and `load`, with one folder that all see. What is equal on all is written once, by
                rank 0; random streams, positions of samplers and whatever else differs come back on their own rank.
            wait_s: how long a rank waits there for the others, s.
            named: modules, optimizers, `Shadow`s, numpy and torch generators, and `Stateful`s. The names are those of
                the files and of the error texts.

        Raises:
            ResumeError: something has no state, an optimizer trains a parameter that no registered module holds, or
                nothing was given. RanksError: ranks without a process group, or parameters in pieces over the ranks.
        """
        self.counters: dict[str, int] = {"optimizer_step": 0, **(counters or {})}
        self.named = dict(named)
        self._about = dict(about or {})
        self._gradients = gradients
        self._background = BackgroundSaves()
        self._models: dict[str, nn.Module] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._numpy: dict[str, np.random.Generator] = {}
        self._torch: dict[str, torch.Generator] = {}
        self._others: dict[str, Stateful] = {}
        for name, one in named.items():
            self._register(name, one)
        if not named:
            raise _error("nothing", "at least a model", "pass model=..., optimizer=...", "RunState")
        for name, module in self._models.items():
            every_rank.refuse_sharded(name, module)
        for optimizer in self._optimizers.values():
            optimizer_state.check_names(optimizer, self._parameters())
        self._ranks = every_rank.Ranks(wait_s) if ranks else None

    def _register(self, name: str, one: Any) -> None:
        if isinstance(one, Shadow):
            self._models[name] = one.model
        elif isinstance(one, nn.Module):
            self._models[name] = _module_state.bare(one)
        elif isinstance(one, torch.optim.Optimizer):
            self._optimizers[name] = one
        elif isinstance(one, np.random.Generator):
            self._numpy[name] = one
        elif isinstance(one, torch.Generator):
            self._torch[name] = one
        elif isinstance(one, Stateful):
            self._others[name] = one
        else:
            raise _error(
                f"{name}={type(one).__name__}, which has no state",
                "a module, an optimizer, a Shadow, a generator, or an object with state_dict and load_state_dict",
                "leave it out, or give it these two methods",
                "RunState",
            )

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Every parameter with a name: that of its module first where there are several modules."""
        return [
            (f"{model}.{name}", parameter)
            for model, module in self._models.items()
            for name, parameter in module.named_parameters()
        ]

    # ----------------------------------------------------------------------------------------------------------- save

    def save(
        self,
        folder: Path | str,
        step: int,
        *,
        facts: Mapping[str, Any] | None = None,
        keep: int = 2,
        wait: bool = True,
    ) -> Path:
        """Write a checkpoint under `folder`, see `train.checkpoint.save`.

        Args:
            folder: of the run. step: by which the newest is found.
            facts: anything JSON holds, returned by `load`. keep: checkpoints to leave.
            wait: until it is on the disk. Otherwise the run goes on as soon as everything is copied, and a thread
                writes, see `train.background`; `wait()` waits for it, and so do the next `save`, `load` and
                `load_weights`.

        Returns:
            Its folder; without `wait`, where it is going to be.

        Raises:
            CheckpointError: it, or the one before that was not waited for, could not be written; the last good one is
                untouched.
            TreeError: a state holds what cannot be saved without pickle.
            RanksError: with `ranks=True`, a rank did not come.
        """
        own = {"kind": KIND, "facts": dict(facts or {})}
        if self._ranks is None:
            self.wait()
            parts, told = self._capture()
            how = checkpoint.save if wait else self._background.save
            return how(Path(folder), step, parts, {**own, "state": told}, keep=keep, about=self._about)
        if not wait:
            raise _error(
                "wait=False with ranks=True",
                "a save that every rank waits for: they compare what each of them wrote before it counts",
                "leave wait=False out",
                f"RunState.save to {folder}",
            )
        captured: Any
        try:
            captured = self._capture()
        except GradledgerError as error:
            captured = error
        return every_rank.save(self._ranks, Path(folder), step, captured, own, keep=keep, about=self._about)

    def wait(self) -> Path | None:
        """Until the save that was not waited for is on the disk; nothing where there is none.

        Returns:
            Its folder.

        Raises:
            CheckpointError: it could not be written; the one before is untouched. It is raised once.
        """
        return self._background.wait()

    def _capture(self) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
        parts: dict[str, dict[str, torch.Tensor]] = {}
        told: dict[str, Any] = {"counters": dict(self.counters), "models": {}, "optimizers": {}, "others": {}}
        for name, module in self._models.items():
            parts[name], told["models"][name] = _module_state.capture(module, gradients=self._gradients)
        for name, optimizer in self._optimizers.items():
            parts[name], told["optimizers"][name] = optimizer_state.capture(optimizer, self._parameters())
        others: dict[str, torch.Tensor] = {}
        for name, one in self._others.items():
            text, tensors = encode(one.state_dict(), name)
            told["others"][name] = {"type": type(one).__name__, "state": text}
            others |= tensors
        if others:
            parts["others"] = others
        parts["random"], told["random"] = seed.capture(self._numpy, self._torch)
        told["process"] = every_rank.here()
        return parts, told

    # ----------------------------------------------------------------------------------------------------------- load

    def load(self, folder: Path | str) -> checkpoint.Checkpoint:
        """Go on from the newest whole checkpoint under `folder`.

        Returns:
            The checkpoint: its `facts` are those given to `save`, its `rejected` are newer ones that were damaged,
            which a RuntimeWarning tells too.

        Raises:
            CheckpointError: none is whole. ResumeError: it is of another run (names, shapes, dtypes, ties, classes,
            groups, `about`), or a file of weights alone. Nothing is changed then.
        """
        self.wait()
        folder = Path(folder)
        if folder.is_file() or _holds_only_weights(folder):
            raise _error(
                f"weights alone ({folder})",
                "a checkpoint of a run",
                "load_weights() takes them, for a new run that starts from these weights; lost are then: "
                + self._lost(),
                f"RunState.load from {folder}",
            )
        saved = checkpoint.load(folder) if self._ranks is None else every_rank.load(self._ranks, folder)
        where = f"RunState.load from {saved.path}"
        if saved.facts.get("kind") != KIND:
            raise _error("a checkpoint that no RunState wrote", KIND, "load it with the program that wrote it", where)
        wrong = every_rank.misfits(saved.facts["state"], together=self._ranks is not None)
        told: dict[str, Any] = {}
        if not wrong:
            parts, told = every_rank.of_rank(saved, self._ranks.rank if self._ranks is not None else 0)
            saved = replace(saved, parts=parts, facts=saved.facts["facts"])
            wrong = self._misfits(saved, told)
        wrong = every_rank.agreed(self._ranks, wrong)
        if wrong:
            raise _error(
                "; ".join(wrong),
                "the checkpoint of a run built like this one",
                "build model, optimizer and data as the saved run did; load_weights() takes the weights alone",
                where,
            )
        self._apply(saved.parts, told, where)
        for one in saved.rejected:
            text = f"{one.path} was passed over: {one.reason}; the run goes on from {saved.path.name}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return saved

    def _misfits(self, saved: checkpoint.Checkpoint, told: Mapping[str, Any]) -> list[str]:
        """Everything that does not fit, at once."""
        wrong = [
            f"{key} is {self._about.get(key, 'not given')} here and {saved.about.get(key, 'not given')} there"
            for key in sorted(self._about.keys() | saved.about.keys())
            if self._about.get(key) != saved.about.get(key)
        ]
        kinds = (
            ("models", self._models),
            ("optimizers", self._optimizers),
            ("others", self._others),
        )
        for kind, mine in kinds:
            theirs = told[kind]
            wrong += [f"{name} is not in the checkpoint" for name in mine.keys() - theirs.keys()]
            wrong += [f"{name} of the checkpoint is not in this run" for name in theirs.keys() - mine.keys()]
        for name, module in self._models.items():
            if name in told["models"]:
                wrong += [
                    f"{name}: {text}" for text in _module_state.misfits(module, saved.parts[name], told["models"][name])
                ]
        for name, optimizer in self._optimizers.items():
            if name in told["optimizers"]:
                text = optimizer_state.misfit(
                    optimizer, self._parameters(), saved.parts[name], told["optimizers"][name]
                )
                wrong += [f"{name}: {text}"] if text else []
        for name, one in self._others.items():
            theirs = told["others"].get(name, {}).get("type", type(one).__name__)
            if theirs != type(one).__name__:
                wrong.append(f"{name} is a {type(one).__name__} here and was a {theirs}")
        text = seed.misfit(saved.parts["random"], told["random"], self._numpy, self._torch)
        return wrong + ([f"random states: {text}"] if text else [])

    def _apply(self, parts: Mapping[str, Mapping[str, torch.Tensor]], told: Mapping[str, Any], where: str) -> None:
        # Foreign code first: if it refuses, only itself and those before it are to be put back.
        before: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {}
        refused: Exception | None = None
        name = ""
        try:
            for name, one in self._others.items():
                text, tensors = encode(one.state_dict(), name)
                before[name] = text, {key: tensor.clone() for key, tensor in tensors.items()}
                one.load_state_dict(_owned(decode(told["others"][name]["state"], parts.get("others", {}))))
        except Exception as cause:
            refused = cause
        by = name
        wrong = every_rank.agreed(self._ranks, [] if refused is None else [f"{type(refused).__name__}: {refused}"])
        if wrong:
            for name, (text, tensors) in before.items():
                # What refused a state may refuse its own as well; the others are still to be put back.
                with contextlib.suppress(Exception):
                    self._others[name].load_state_dict(decode(text, tensors))
            raise _error(
                "; ".join(wrong), f"a state that {by} takes", "build it as the saved run did", where
            ) from refused
        for name, module in self._models.items():
            _module_state.restore(module, parts[name], told["models"][name])
        for name, optimizer in self._optimizers.items():
            optimizer_state.restore(optimizer, self._parameters(), parts[name], told["optimizers"][name])
        self.counters.clear()
        self.counters.update(told["counters"])
        seed.restore(parts["random"], told["random"], self._numpy, self._torch)

    def load_weights(self, path: Path | str) -> str:
        """Take only the weights and buffers, for a new run that starts from them.

        Args:
            path: a `.safetensors` file, or a folder of checkpoints of which the newest whole one is taken.

        Returns:
            What was not taken, in words: a run does not go on from here, it starts.

        Raises:
            ResumeError: names, shapes or dtypes differ, or the file is of another kind. Nothing is changed then.
            CheckpointError: a save that was not waited for could not be written.
        """
        self.wait()
        path = Path(path)
        where = f"RunState.load_weights from {path}"
        if path.is_dir():
            saved = checkpoint.load(path)
            parts = {name: _module_state.weights(saved.parts[name]) for name in self._models if name in saved.parts}
        elif len(self._models) == 1:
            parts = dict.fromkeys(self._models, _module_state.read_weights(path, where))
        else:
            raise _error(
                f"one file for {', '.join(self._models)}",
                "one file for one model",
                "load each into its module with safetensors.torch.load_model",
                where,
            )
        wrong = [f"{name} is not there" for name in self._models.keys() - parts.keys()]
        for name, tensors in parts.items():
            wrong += [f"{name}: {text}" for text in _module_state.weight_misfits(self._models[name], tensors)]
        if wrong:
            raise _error("; ".join(wrong), "the weights of these modules", "build the modules as they were", where)
        for name, tensors in parts.items():
            _module_state.copy_weights(self._models[name], tensors)
        return self._lost()

    def _lost(self) -> str:
        parts = [f"the state of {name}" for name in (*self._optimizers, *self._others)]
        parts += [f"the generator {name}" for name in (*self._numpy, *self._torch)]
        return ", ".join([*parts, "the global random states", "the counters " + ", ".join(self.counters)])


def _holds_only_weights(folder: Path) -> bool:
    return folder.is_dir() and not candidates(folder) and any(folder.glob("*.safetensors"))


def _owned(value: Any) -> Any:
    """Tensors of a decoded state, cloned: the receiver may keep and change them."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _owned(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_owned(one) for one in value)
    return value


def _error(got: str, wanted: str, next_step: str, where: str) -> ResumeError:
    return ResumeError(got=got, wanted=wanted, where=where, next_step=next_step)
