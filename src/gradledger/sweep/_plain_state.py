"""What modules carry besides tensors that torch knows: counters, lists, numpy arrays, random generators.

A plan is made by running blocks, and that must leave no trace; and a block that changes such a thing at every run must
not be run once more than a plain step runs it.
"""

from __future__ import annotations

import collections
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradledger.sweep._state import equal_bits

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CODE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_TORCH = frozenset(vars(nn.Module()))
_KNOWN = (Tensor, torch.Generator, torch.Size)
_DEEPEST = 5
_MOST = 10_000


class PlainState:
    """The attributes of some modules as they stand, and whatever these hold: lists, dicts, arrays, generators, objects.

    Tensors with a history, parameters and modules are none of it; neither is what only a closure holds.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._parts: list[tuple[str, Any, Any]] = []
        self._seen: set[int] = set()
        for number, module in enumerate(modules):
            names = [name for name in vars(module) if name not in _TORCH]
            values = {name: vars(module)[name] for name in names}
            self._parts.append((f"of {type(module).__name__} ({number})", module, values))
            for name, value in values.items():
                self._take(f"{name!r} of {type(module).__name__} ({number})", value, 0)

    def _take(self, name: str, value: Any, depth: int) -> None:
        if depth > _DEEPEST or isinstance(value, (*_PLAIN, *_CODE, nn.Module)) or id(value) in self._seen:
            return
        if len(self._seen) > _MOST or (type(value).__module__.startswith("torch") and not isinstance(value, _KNOWN)):
            return  # a data set; what torch keeps for itself (a compiler's guards)
        self._seen.add(id(value))
        content = _content(value)
        if content is not _NOTHING:
            self._parts.append((name, value, content))
        for part in _inner(value):
            self._take(name, part, depth + 1)

    def moved(self) -> str | None:
        """The name of something that is not as it was; None if all is."""
        for name, value, content in self._parts:
            if isinstance(value, nn.Module):
                present = {k: v for k, v in vars(value).items() if k not in _TORCH}
                different = _different(content, present)
                if different is not None:
                    return f"attribute {different!r} {name}"
            elif not _same(content, _content(value)):
                return f"attribute {name}"
        return None

    def put_back(self) -> None:
        """Everything as it was, in the objects that were there."""
        for _, value, content in self._parts:
            if isinstance(value, nn.Module):
                _restore_attributes(value, content)
            elif not _same(content, _content(value)):
                _restore(value, content)


_NOTHING: Any = object()


def _different(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    for name in (*before, *(n for n in now if n not in before)):
        if name not in before or name not in now or not _same(before[name], now[name]):
            return name
    return None


def _restore_attributes(module: nn.Module, before: dict[str, Any]) -> None:
    present = vars(module)
    for name in [name for name in present if name not in _TORCH and name not in before]:
        del present[name]
    for name, value in before.items():
        if present.get(name, _NOTHING) is not value:
            present[name] = value


def _inner(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        yield from value
    elif hasattr(value, "__dict__") and not isinstance(value, Tensor):
        yield from vars(value).values()


def _content(value: Any) -> Any:
    """What can be noted of a value and put back into it; `_NOTHING` where there is nothing of the kind."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, Tensor):
        return _NOTHING if value.requires_grad else value.detach().clone()
    if isinstance(value, list | collections.deque):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, set):
        return set(value)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if numpy is not None:
        if isinstance(value, numpy.ndarray):
            return value.copy()
        if isinstance(value, numpy.random.Generator):
            return _numpy_state(value.bit_generator.state)
        if isinstance(value, numpy.random.RandomState):
            kind, keys, *rest = value.get_state()
            return (kind, keys.copy(), *rest)
    if isinstance(value, tuple | frozenset) or not hasattr(value, "__dict__"):
        return _NOTHING
    return dict(vars(value))


def _numpy_state(state: Any) -> Any:
    """Of a bit generator, its arrays copied."""
    if isinstance(state, dict):
        return {key: _numpy_state(part) for key, part in state.items()}
    return state.copy() if hasattr(state, "copy") else state


def _restore(value: Any, content: Any) -> None:
    numpy = sys.modules.get("numpy")
    if isinstance(value, Tensor):
        with torch.no_grad():
            value.copy_(content) if value.shape == content.shape else value.set_(content)
    elif isinstance(value, list):
        value[:] = content
    elif isinstance(value, collections.deque | set | dict):
        value.clear()
        add: Callable[[Any], Any] = value.extend if isinstance(value, collections.deque) else value.update
        add(content)
    elif isinstance(value, random.Random):
        value.setstate(content)
    elif isinstance(value, torch.Generator):
        value.set_state(content)
    elif numpy is not None and isinstance(value, numpy.ndarray):
        value[...] = content
    elif numpy is not None and isinstance(value, numpy.random.Generator):
        value.bit_generator.state = content
    elif numpy is not None and isinstance(value, numpy.random.RandomState):
        value.set_state(content)
    else:
        vars(value).clear()
        vars(value).update(content)


def _same(a: Any, b: Any, depth: int = 0) -> bool:
    """Equal as noted: numbers and texts by value, arrays by bits, containers and objects by what they hold."""
    same = functools.partial(_same, depth=depth + 1)
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and equal_bits(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set):
        return bool(a == b)
    if hasattr(a, "tobytes") and hasattr(a, "dtype"):
        return bool(a.dtype == b.dtype and a.shape == b.shape and (a.dtype.hasobject or a.tobytes() == b.tobytes()))
    if isinstance(a, _PLAIN):
        return bool(a == b or a != a)
    return depth < _DEEPEST and not isinstance(a, nn.Module) and hasattr(a, "__dict__") and same(vars(a), vars(b))


def hidden_tensor(state: Any) -> str | None:
    """The type of an object within a flattened state that holds tensors with a gradient, which nobody can cut there."""
    for leaf in state:
        if not isinstance(leaf, (*_PLAIN, *_CODE, nn.Module, Tensor)) and _holds_gradient(leaf, 0):
            return type(leaf).__name__
    return None


def _holds_gradient(value: Any, depth: int) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    if depth > _DEEPEST or isinstance(value, (*_PLAIN, *_CODE, nn.Module)):
        return False
    slots = [getattr(value, name, None) for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return any(_holds_gradient(part, depth + 1) for part in (*_inner(value), *slots))
