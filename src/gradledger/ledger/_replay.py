"""Runs a piece of the oracle's tape again, on its copies, and takes gradients there.

The program's graph, tensors, hooks and generators are not involved: functions are called on fresh copies, below every
mode, with the recorder off, and the engine walks the graph of these copies only.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from gradledger.ledger._recorder import Recorder, unseen
from gradledger.ledger._tape import Entry, Leaf, Made

# The engine itself: `torch.autograd.grad` is watched, by us and perhaps by the program.
_run: Any = torch.autograd.Variable._execution_engine.run_backward
# Not in torch's type annotations.
_hooks_allowed: Any = vars(torch._C._autograd)["_saved_tensors_hooks_is_enabled"]
_cuda_is_up: Any = torch.cuda.is_initialized


class Undisturbed:
    """While inside, nothing of what we run reaches the program: no fact, no warning, no hook on saved tensors, and a
    generator that was moved nevertheless (`moved`) is put back exactly."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.moved = False

    def __enter__(self) -> Undisturbed:
        with contextlib.ExitStack() as stack:  # what was entered is left again should the rest fail
            stack.enter_context(unseen())
            stack.enter_context(torch._C.DisableTorchFunction())
            stack.enter_context(torch.enable_grad())
            if _hooks_allowed():  # else there are none, and none may be made
                stack.enter_context(saved_tensors_hooks(_same, _same))
            self._home, self._show = threading.get_ident(), warnings.showwarning
            warnings.showwarning = self._silent
            stack.callback(self._speak)
            self._recorder.enabled = False
            stack.callback(setattr, self._recorder, "enabled", True)
            self._cuda = torch.cuda.get_rng_state() if _cuda_is_up() else None
            self._cpu = torch.get_rng_state()
            stack.callback(self._put_back)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def _put_back(self) -> None:
        if not torch.equal(self._cpu, torch.get_rng_state()):
            self.moved = True
            torch.set_rng_state(self._cpu)
        if self._cuda is not None and not torch.equal(self._cuda, torch.cuda.get_rng_state()):
            self.moved = True
            torch.cuda.set_rng_state(self._cuda)

    def _speak(self) -> None:
        if warnings.showwarning == self._silent:
            warnings.showwarning = self._show

    def _silent(self, *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() != self._home:  # another thread of the program warns meanwhile
            self._show(*args, **kwargs)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class Replay:
    """The values of a piece of tape, made again.  Call inside `Undisturbed`.

    `values`: by token; `leaves`: the copies that stand for each followed leaf (several when it was changed between two
    uses).
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.values: dict[int, torch.Tensor] = {}
        self.leaves: dict[int, list[torch.Tensor]] = {}
        self._copies: dict[int, torch.Tensor] = {}
        for entry in entries:
            named = {name: self._given(a) for name, a in entry.kwargs.items()}
            out = entry.func(*[self._given(a) for a in entry.args], **named)
            for token, tensor in zip(entry.outs, _tensors(out), strict=True):
                self.values[token] = tensor

    def _given(self, value: Any) -> Any:
        if isinstance(value, Made):
            return self.values[value.token]
        if isinstance(value, Leaf):
            copy = self._copies.get(id(value))
            if copy is None:
                copy = self._copies[id(value)] = value.copy.detach().requires_grad_()
                self.leaves.setdefault(value.number, []).append(copy)
            return copy
        if type(value) in (list, tuple):
            return type(value)(self._given(v) for v in value)
        return value

    def gradients(self, token: int) -> dict[int, torch.Tensor]:
        """The gradient of one scalar value with respect to every leaf that it reaches, by the leaf's number."""
        root = self.values[token]
        if not root.requires_grad:
            return {}
        copies = [(number, copy) for number, of in self.leaves.items() for copy in of]
        inputs = tuple(copy for _, copy in copies)
        ones = (torch.ones_like(root),)
        found = _run((root,), ones, True, False, inputs, allow_unreachable=True, accumulate_grad=False)
        summed: dict[int, torch.Tensor] = {}
        for (number, _), gradient in zip(copies, found, strict=True):
            if gradient is not None:
                before = summed.get(number)
                summed[number] = gradient if before is None else before + gradient
        return summed


def _tensors(out: Any) -> list[torch.Tensor]:
    return [out] if isinstance(out, torch.Tensor) else [t for t in out if isinstance(t, torch.Tensor)]


__all__ = ["Replay", "Undisturbed"]
