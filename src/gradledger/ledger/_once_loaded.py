"""Modules of others, noticed when the program has loaded them: the watching itself loads none of them.

Python finds modules in folders by one function, `PathFinder.find_spec`.  It is replaced while somebody waits, so that
`sys.meta_path` stays the program's; of the module's loader one method is replaced, for the moment of the loading.  A
program may ask where a module lies without loading it (`importlib.util.find_spec`), may fail to load it and try again,
and may load it again: each loading is noticed, and only those.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

Undo = Callable[[], None]
Then = Callable[[ModuleType], None]

# What probes wait for.  The loading of these is noticed from the program's first line on: `safetensors.torch` imports
# torch before it has defined anything, and so is half loaded when the probes are installed.
AWAITED = ("safetensors", "safetensors.torch", "safetensors.numpy")

_waiting: dict[str, list[Then]] = {}
_listening: list[object] = []
_FINDER: Any = importlib.machinery.PathFinder


def when(name: str, then: Then) -> Undo:
    """Call `then(module)` each time the module `name` has been loaded, and at once if it is loaded already.

    `then` must not raise.  Returns what ends the waiting.
    """
    _waiting.setdefault(name, []).append(then)
    deaf = listen()
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        then(module)

    def undo() -> None:
        if then in _waiting.get(name, ()):
            _waiting[name].remove(then)
            deaf()

    return undo


def listen() -> Undo:
    """Notice from now on what is loaded, also for those who begin to wait in the midst of a loading.  May be nested."""
    token = object()
    if not _listening:
        _FINDER.find_spec = classmethod(_find_spec)
    _listening.append(token)

    def undo() -> None:
        if token in _listening:
            _listening.remove(token)
            if not _listening and vars(_FINDER)["find_spec"].__func__ is _find_spec:  # else somebody patched over us
                _FINDER.find_spec = _ORIGINAL

    return undo


_ORIGINAL = vars(_FINDER)["find_spec"]


def _find_spec(kind: Any, name: str, path: Any = None, target: Any = None) -> Any:
    """Stands for `PathFinder.find_spec`."""
    spec = _ORIGINAL.__func__(kind, name, path, target)
    loader: Any = None if spec is None or (name not in _waiting and name not in AWAITED) else spec.loader
    if loader is None:
        return spec
    load = loader.exec_module

    def exec_module(module: ModuleType) -> Any:
        if module.__spec__ is not spec:  # one loader may serve a whole archive
            return load(module)
        vars(loader).pop("exec_module", None)  # no trace of us while the module's own code runs
        load(module)
        for then in list(_waiting.get(name, ())):
            then(module)
        return None

    loader.exec_module = exec_module
    return spec
