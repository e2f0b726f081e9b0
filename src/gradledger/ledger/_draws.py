"""Which random numbers a worker process of a loader draws: the states of its generators around its first fetch.

A worker asks a queue for indices: once before its first fetch, when it is seeded and its init function has run, and
once after it.  `Asked` is that queue, and looks at those two moments.  It only reads, writes one small file, and leaves
no frame in a traceback, since no code of the program runs inside it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import random
import sys
from pathlib import Path
from types import GeneratorType
from typing import Any

DEPTH = 3
PARTS = 32
FILE = "worker-*.json"


class Asked:
    """The queue of indices of one worker.  `where`: (folder, loader, pass) of what it leaves behind."""

    def __init__(self, queue: Any, where: tuple[str, int, int]) -> None:
        self._queue, self._where = queue, where
        self._before: dict[str, str] | None = None
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_queue"], name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The next indices; at the first call and after the first answer the generators are looked at."""
        if self._told:
            return self._queue.get(*args, **kwargs)
        now = _safe_states()
        if self._before is not None:
            self._told = True
            _leave(self._where, self._before, now)
            return self._queue.get(*args, **kwargs)
        found = self._queue.get(*args, **kwargs)
        self._before = now
        return found


def _safe_states() -> dict[str, str]:
    try:
        return states()
    except Exception:
        return {}


def states() -> dict[str, str]:
    """Digest of the state of each generator that items may be made with, by its name."""
    import torch
    from torch.utils.data import get_worker_info

    found = {
        "random": _digest(random.getstate()),
        "torch": _digest(torch.get_rng_state().numpy().tobytes()),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy.random"] = _digest(_plain(numpy.random.get_state()))
    info = get_worker_info()
    if info is not None:
        _inside(info.dataset, "self", found, 0)
    return found


def _inside(thing: Any, name: str, found: dict[str, str], depth: int) -> None:
    """Generators that a data set (and what it wraps) holds as attributes."""
    for key, value in list(getattr(thing, "__dict__", {}).items())[:PARTS]:
        state = _state(value)
        if state is not None:
            found[f"{name}.{key}"] = state
        elif depth < DEPTH and hasattr(value, "__getitem__") and hasattr(value, "__dict__"):
            _inside(value, f"{name}.{key}", found, depth + 1)


def _state(value: Any) -> str | None:
    import torch

    if isinstance(value, torch.Generator):
        return _digest(value.get_state().numpy().tobytes())
    if isinstance(value, random.Random):
        return _digest(value.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return _digest(_plain(value.bit_generator.state))
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return _digest(_plain(value.get_state()))
    return _state_in(value) if isinstance(value, GeneratorType) else None


def _state_in(stream: GeneratorType[Any, Any, Any]) -> str | None:
    """Of a function that yields: the states of the generators among its variables."""
    frame = stream.gi_frame
    if frame is None or inspect.getgeneratorstate(stream) == inspect.GEN_RUNNING:
        return None
    if inspect.getgeneratorstate(stream) == inspect.GEN_CREATED:
        return "not begun"
    values = [value for _, value in sorted(frame.f_locals.items()) if not isinstance(value, GeneratorType)]
    found = [state for value in values if (state := _state(value)) is not None]
    return _digest(found) if found else None


def _plain(value: Any) -> Any:
    """Arrays as bytes, so that all of their elements count."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value.tobytes() if hasattr(value, "tobytes") else value


def _digest(value: Any) -> str:
    raw = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


def _leave(where: tuple[str, int, int], before: dict[str, str], after: dict[str, str]) -> None:
    """Write what was seen, whole or not at all."""
    try:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        folder, loader, number = where
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        draws = []
        for name, state in before.items():
            later = after.get(name, state)
            # a generator of the data set's own may be seeded anew for each item: then it ends in another state
            draws.append([name, state + later if name.startswith("self") else state, later != state])
        text = json.dumps({"loader": loader, "pass": number, "worker": worker, "workers": workers, "draws": draws})
        path = Path(folder) / f"worker-{loader}-{number}-{worker}-{os.getpid()}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except Exception:
        pass  # then nothing is known of this worker
