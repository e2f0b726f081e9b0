"""What one run of a program leaves, bit by bit: written by the process itself, with and without the audit alike.

`gradledger audit --selfcheck` copies this file into a folder of its own as ``sitecustomize.py`` and puts that folder
first on ``PYTHONPATH``, so that Python loads it before the program, however the program is started.  It uses nothing
but the standard library and hides its own traces: path and environment are put back before the program's first line.

Into the file that the environment names go lines of JSON: after optimizer steps (all of the first 20, then every
50th) digests of the parameters, their gradients, the optimizer's state and every random generator; at the end the
random generators and the modules that are still alive.  Memory is read where it lies, by no operation of torch, so that
nothing of this can be seen by what watches the program.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

VARIABLE = "GRADLEDGER_SELFCHECK"  # the file to write to
PATH_BEFORE = "GRADLEDGER_SELFCHECK_PYTHONPATH"  # PYTHONPATH as the user has it
EVERY = 50
FIRST = 20
_OPTIMIZERS = "torch.optim.optimizer"


class Bits:
    """Writes the lines.  `file`: where to."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.owner = os.getpid()
        self.steps = 0
        self.optimizers: dict[int, int] = {}  # id -> number, in the order of their first step

    def put(self, line: Mapping[str, Any]) -> None:
        """Append one line at once: a process that is killed leaves what it had done."""
        with open(self.file, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, sort_keys=True) + "\n")

    def after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """A post hook of every optimizer."""
        if os.getpid() != self.owner:
            return
        self.steps += 1
        if self.steps > FIRST and self.steps % EVERY:
            return
        number = self.optimizers.setdefault(id(optimizer), len(self.optimizers))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with _quiet():
            self.put(
                {
                    "step": self.steps,
                    "optimizer": number,
                    "parameters": digest(parameters),
                    "gradients": digest(p.grad for p in parameters),
                    "state": digest(optimizer.state.get(p) for p in parameters),
                    "random": generators(),
                }
            )

    def at_end(self) -> None:
        """An exit handler, the first registered and so the last called."""
        if os.getpid() != self.owner:
            return
        line: dict[str, Any] = {"end": True, "steps": self.steps, "random": generators()}
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "nn"):
            gc.collect()
            with _quiet():
                line["modules"] = sorted(
                    digest(sorted(vars(thing).get("_parameters", {}).items()) + _buffers(thing))
                    for thing in gc.get_objects()  # asked by their type: proxies may answer for another class, or warn
                    if issubclass(type(thing), torch.nn.Module)
                    and (vars(thing).get("_parameters") or _buffers(thing))
                )
        self.put(line)


def digest(thing: Any) -> str:
    """Of nested containers of tensors, numbers and text: every bit of each."""
    h = hashlib.blake2b(digest_size=12)
    _feed(h, thing)
    return h.hexdigest()


def generators() -> dict[str, str]:
    """Random generators in use -> digest of the state of each."""
    found = {}
    python, numpy, torch = (sys.modules.get(name) for name in ("random", "numpy.random", "torch"))
    if python is not None:
        found["python"] = digest(python.getstate())
    if numpy is not None:
        found["numpy"] = digest(repr(numpy.get_state(legacy=False)))
    if torch is not None and hasattr(torch, "default_generator"):
        with _quiet():
            found["torch"] = digest(torch.get_rng_state())
            if torch.cuda.is_initialized():
                found["cuda"] = digest(torch.cuda.get_rng_state_all())
    return found


def _buffers(module: Any) -> list[tuple[str, Any]]:
    return sorted(vars(module).get("_buffers", {}).items())


def _feed(h: Any, thing: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.Tensor):
        h.update(f"{thing.dtype}{tuple(thing.shape)}{thing.requires_grad}".encode())
        h.update(_memory(torch, thing))
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            h.update(str(key).encode())
            _feed(h, value)
    elif isinstance(thing, Iterable) and not isinstance(thing, str | bytes):
        h.update(b"[")
        for item in thing:
            _feed(h, item)
        h.update(b"]")
    else:
        h.update(repr(thing).encode())


def _memory(torch: Any, tensor: Any) -> bytes:
    """The bytes of a tensor's storage, or of a copy where it has none that the CPU can read."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or type(tensor).__name__ == "FakeTensor":
        if tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor":
            return b"no memory"
        with torch.no_grad():
            tensor = tensor.detach().to_dense().cpu().contiguous()
    storage = tensor.untyped_storage()
    where = f"{tensor.storage_offset()}{tuple(tensor.stride())}".encode()
    return where + (ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b"")


def _quiet() -> Any:
    """Modes of the program, or of what watches it, do not see what is read here."""
    torch: Any = sys.modules["torch"]
    return torch._C.DisableTorchFunction()


class _OnceLoaded:
    """Finds torch's optimizers as Python would, and registers the hook when they are loaded."""

    def __init__(self, bits: Bits) -> None:
        self.bits = bits

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Of the meta path."""
        if name != _OPTIMIZERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def then_hook(module: Any) -> None:  # not before: a program may ask where a module lies, and no more
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                module.register_optimizer_step_post_hook(self.bits.after_step)

            loader.exec_module = then_hook
        return spec


def begin() -> None:
    """Put path and environment back, watch for torch, and load the ``sitecustomize`` that stands behind this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    file, before = os.environ.pop(VARIABLE, ""), os.environ.pop(PATH_BEFORE, "")
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    os.environ.pop("PYTHONPATH", None)
    if before:
        os.environ["PYTHONPATH"] = before
    if file:
        bits = Bits(file)
        atexit.register(bits.at_end)
        finder: Any = _OnceLoaded(bits)
        sys.meta_path.insert(0, finder)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    begin()
