"""Iterators over parameters that are used up, found in the variables of running user functions.

Nothing is consumed and no variable is touched: iterators are looked through by what they refer to.  That an iterator is
used up is no fault by itself; two things are, and both are read off the byte code of the function that is running: it
came in as an argument and nothing has used it since the function was entered, or it was built before a loop each pass
of which uses it again.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import sys
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from types import CodeType, FrameType, GeneratorType
from typing import Any

from gradledger.core.site import NOWHERE, Site

_DEEP = 5  # iterators inside iterators are looked into this far
_ITERATORS = frozenset({"generator", "filter", "map", "zip", "enumerate", "chain", "islice"})
_INSIDE = _ITERATORS | {"tuple_iterator", "list_iterator", "tuple", "list"}
# A function that asks for its own variables as a dict shares that dict with everybody who looks: we do not.
_REFLECTIVE = frozenset({"locals", "vars", "eval", "exec", "_getframe", "currentframe", "dir"})


@dataclass(frozen=True, slots=True)
class State:
    """An iterator over parameters: is it `used` up, and where was it made (when known)."""

    used: bool
    made: Site


class Iterators:
    """Generators over parameters that were met, and where they were made."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()  # of `Module.parameters` and its like
        self.made: weakref.WeakKeyDictionary[GeneratorType[Any, Any, Any], Site] = weakref.WeakKeyDictionary()

    def look(self, value: Any, depth: int = 0) -> State | None:
        """The state of an iterator over parameters; None when it is not one, as far as can be told."""
        if isinstance(value, GeneratorType):
            return self._generator(value, depth)
        kind = type(value)
        if kind.__name__ not in _INSIDE or kind.__module__ not in ("builtins", "itertools") or depth > _DEEP:
            return None
        if kind in (tuple, list) and (depth == 0 or len(value) > 16):
            return None
        inside = [s for inner in gc.get_referents(value) if (s := self.look(inner, depth + 1)) is not None]
        if not inside:
            return None
        # zip and map end with the first of theirs that ends: one that is used up is enough
        return State(any(s.used for s in inside), next((s.made for s in inside if s.made is not NOWHERE), NOWHERE))

    def _generator(self, generator: GeneratorType[Any, Any, Any], depth: int) -> State | None:
        known = self.made.get(generator)
        frame = generator.gi_frame
        used = frame is None
        if generator.gi_code in self.codes or (used and known is not None):
            return State(used, known or NOWHERE)
        if frame is None or depth > _DEEP or generator.gi_code.co_name != "<genexpr>":
            return None  # a user's own generator is known only when it was met alive
        inner = self.look(variables(frame, [".0"]).get(".0"), depth + 1)
        if inner is None:
            return None
        self.made[generator] = inner.made
        return State(False, inner.made)


# ------------------------------------------------------------------------------------------------ byte code


@dataclass(slots=True)
class _Uses:
    """Where a function's code reads and writes its variables, and its loops, as byte offsets."""

    loads: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    stores: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    loops: list[tuple[int, int]] = field(default_factory=list)
    skips: list[tuple[int, int]] = field(default_factory=list)  # forward jumps: from, to


@functools.lru_cache(maxsize=1024)
def _uses(code: CodeType) -> _Uses:
    uses = _Uses()
    for step in dis.get_instructions(code):
        name = step.opname
        if name.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE", "STORE_FAST_LOAD")):
            for variable in step.argval if isinstance(step.argval, tuple) else (step.argval,):
                uses.loads[variable].append(step.offset)
        elif name.startswith(("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")):
            for variable in step.argval if isinstance(step.argval, tuple) else (step.argval,):
                uses.stores[variable].append(step.offset)
        elif step.opcode in _JUMPS and isinstance(step.argval, int):
            if step.argval <= step.offset:
                uses.loops.append((step.argval, step.offset))
            elif name != "FOR_ITER":
                uses.skips.append((step.offset, step.argval))
    return uses


_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


def untouched(code: CodeType, now: int, name: str) -> bool:
    """Whether code that runs at offset `now` cannot have read the variable yet: no read above, and no loop around."""
    uses = _uses(code)
    return not any(a <= now <= b for a, b in uses.loops) and not any(at <= now for at in uses.loads[name])


def read_each_pass(code: CodeType, now: int) -> list[str]:
    """Variables set before the loop that is running at offset `now`, and read later in every pass of it."""
    uses = _uses(code)
    found = []
    for start, end in uses.loops:
        if not start <= now <= end:
            continue
        for name, loads in uses.loads.items():
            if any(start <= at <= end for at in uses.stores[name]):
                continue
            for at in loads:
                if now < at <= end and not any(start <= a < at < to for a, to in uses.skips):
                    found.append(name)
                    break
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------------------------ frames


def variables(frame: FrameType, names: list[str]) -> dict[str, Any]:
    """Values of some variables of a running frame, without a trace left in it; empty when that is not possible."""
    code = frame.f_code
    if not names:
        return {}
    found = {name: frame.f_globals[name] for name in names if name in frame.f_globals}
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module has no other variables
        return found
    if sys.gettrace() is not None or _REFLECTIVE.intersection(code.co_names):
        return {}
    snapshot = frame.f_locals
    found |= {name: snapshot[name] for name in names if name in snapshot}
    if sys.version_info < (3, 13):
        snapshot.clear()  # the frame would keep these values alive as long as it runs
    return found


def arguments(code: CodeType) -> list[str]:
    """Names of a function's arguments."""
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def is_iterator(value: Any) -> bool:
    """Whether a value is of a kind that is worth a look."""
    return type(value).__name__ in _ITERATORS


__all__ = ["Iterators", "State", "arguments", "is_iterator", "read_each_pass", "untouched", "variables"]
