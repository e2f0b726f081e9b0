"""What the program's own objects carry along beside the tensors of a state: numbers of a module, an optimizer's own
tensors, arrays of a helper, leaves that an optimizer trains and no module owns.  Prints of them are taken with a state,
and again after it was loaded into a new network.

An object is known again by its class and its place: below a module, or below what stands around the line that takes or
loads the state (`self.scale` of a trainer); an optimizer by its class and the shapes that it holds.  Nothing of the
program is kept alive.
"""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any

import numpy
import torch

from gradledger.core.site import NOWHERE, Site, is_installed
from gradledger.ledger import _site
from gradledger.ledger._recorder import Recorder
from gradledger.ledger._registry import Registry
from gradledger.ledger._values import elements, readable

Place = tuple[str, ...]
MAX_OBJECTS = 64
MAX_NAMES = 64  # of one object, and entries of one list
MAX_AROUND = 256  # names of one frame
MAX_DEPTH = 3
LOOKED = 8
MAX_HELD = 1000  # tensors of one optimizer
GENERATOR, FLAG = "generator", "flag"
NEARLY = 1e-5  # a value that went through a logarithm, or a file of text

_made_by: weakref.WeakKeyDictionary[type, Site] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class Carried:
    """One object of the program's: prints of what it holds."""

    of: weakref.ref[Any]
    cls: str
    owner: str  # "module" | "optimizer" | "object"
    values: dict[str, Hashable]
    site: Site  # a method of its class


Kind = tuple[str, tuple[tuple[int, ...], ...]]  # of an optimizer: its class, and the shapes that it holds


@dataclass(slots=True)
class Leaves:
    """What one optimizer trains and no module owns: prints by place in the optimizer, and the tensors' numbers."""

    optimizer: int
    values: dict[int, tuple[float, ...]]
    numbers: dict[int, int]


@dataclass(slots=True)
class Around:
    """The objects that stood around a state, by place, and the line; and leaves that no module owns, by optimizer."""

    site: Site = NOWHERE
    objects: dict[Place, Carried] = field(default_factory=dict)
    leaves: dict[Kind, Leaves] = field(default_factory=dict)


def around(module: torch.nn.Module) -> Around:
    """The module's own parts, and what stands around the line of the program that runs, from the inside out."""
    site, found = _site.here(2), Around()
    found.site = site
    seen: set[int] = set()
    _walk(module, ("",), found.objects, seen)
    frame = _site.user_frame(2)
    while frame is not None and len(found.objects) < MAX_OBJECTS:
        if _site.is_user_code(frame.f_code):
            for name, thing in _named(frame):
                _walk(thing, (type(thing).__qualname__, name), found.objects, seen)
        frame = frame.f_back
    return found


def _named(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Objects of the program's classes by name; a name counts only where one frame holds several of a class."""
    names = frame.f_locals
    if len(names) > MAX_AROUND:
        return
    own: dict[int, tuple[str, Any]] = {}
    for name, thing in list(names.items()):
        if not isinstance(thing, type) and place_of(type(thing)).file:
            own.setdefault(id(thing), (name, thing))
    kinds = [type(thing) for _, thing in own.values()]
    for name, thing in own.values():
        yield name if kinds.count(type(thing)) > 1 else "", thing


def place_of(cls: type) -> Site:
    """A method of a class of the program's, NOWHERE for any other class."""
    known = _made_by.get(cls)
    if known is None:
        codes = [f.__code__ for f in vars(cls).values() if isinstance(f, FunctionType)]
        own = [c for c in codes if _site.is_user_code(c) and not c.co_filename.startswith("<string")]
        own = [c for c in own if not is_installed(c.co_filename)]
        known = _made_by[cls] = (
            Site(own[0].co_filename, own[0].co_firstlineno, own[0].co_name, own[0].co_firstlineno) if own else NOWHERE
        )
    return known


def _walk(thing: Any, place: Place, found: dict[Place, Carried], seen: set[int], depth: int = 0) -> None:
    if id(thing) in seen or len(found) >= MAX_OBJECTS:
        return
    seen.add(id(thing))
    held = getattr(thing, "__dict__", None)
    if type(held) is not dict:
        return
    site = place_of(type(thing))
    if site.file:
        kind = "module" if isinstance(thing, torch.nn.Module) else "object"
        owner = "optimizer" if isinstance(thing, torch.optim.Optimizer) else kind
        values = _values(held, owner)
        if values and place not in found:
            try:
                found[place] = Carried(weakref.ref(thing), type(thing).__qualname__, owner, values, site)
            except TypeError:  # (a class with slots and no place for weak references)
                return
    inner = held.items()
    if isinstance(thing, torch.nn.Module):
        inner = {**held, **held.get("_modules", {})}.items()
    elif not site.file:
        return
    for name, part in list(inner)[: 2 * MAX_NAMES] if depth < MAX_DEPTH else ():
        if isinstance(part, torch.nn.Module) or place_of(type(part)).file:
            _walk(part, (*place, name), found, seen, depth + 1)


def _values(held: dict[str, Any], owner: str) -> dict[str, Hashable]:
    found: dict[str, Hashable] = {}
    for name, value in held.items():
        if name in ("training", "defaults", "state", "param_groups") or name.startswith("__"):
            continue
        seen = _print(value, owner)
        if seen is not None:
            found[name] = seen
        if len(found) >= MAX_NAMES:
            break
    return found


def _print(value: Any, owner: str) -> Hashable | None:
    """What equal values have in common; None for what is not followed.  A module's tensors are followed elsewhere."""
    if owner == "module" and type(value) is bool:
        return FLAG, value
    if owner == "module" and isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.numel() == 1:
        return (FLAG, bool(elements(value, 1)[0])) if readable(value) else None
    if type(value) in (int, float) or isinstance(value, (numpy.floating, numpy.integer)):
        return float(value)
    if isinstance(value, numpy.ndarray):
        if value.dtype.kind not in "fiu" or value.size == 0 or not value.flags.c_contiguous:
            return None
        flat = value.reshape(-1)
        return ("array", value.shape, *(float(v) for v in flat[:: max(1, value.size // LOOKED)][:LOOKED].tolist()))
    drawing = _of_generator(value)
    if drawing is not None or owner == "module":
        return drawing
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if type(value) in (list, tuple, dict) and 0 < len(value) <= MAX_NAMES:
        tensors = [_of_tensor(v) for v in (value.values() if isinstance(value, dict) else value)]
        return None if None in tensors else ("tensors", *tensors)
    return None


def _of_generator(value: Any) -> Hashable | None:
    """Where in its numbers a generator stands."""
    if isinstance(value, torch.Generator):
        return (GENERATOR, hash(value.get_state().numpy().tobytes())) if value.device.type == "cpu" else None
    if isinstance(value, numpy.random.Generator):
        return GENERATOR, hash(repr(value.bit_generator.state))
    if type(value) is random.Random:
        return GENERATOR, hash(value.getstate())
    return None


def draws(seen: Hashable) -> bool:
    """Whether a print is that of a generator."""
    return isinstance(seen, tuple) and seen[0] == GENERATOR


def _of_tensor(value: Any) -> Hashable | None:
    if not isinstance(value, torch.Tensor) or value.requires_grad or not readable(value):
        return None
    return ("tensor", tuple(value.shape), *elements(value, LOOKED))


@dataclass(slots=True)
class Lost:
    """A new object that has other values than the one which stood in its place when the state was taken."""

    new: weakref.ref[Any]
    carried: Carried
    saved: dict[str, Hashable]
    taken: Site

    def still(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Those names that have not been given a value since; those that have been given one which is not that of then;
        and flags that were off after the load and have been put on since, as they were then."""
        thing = self.new()
        now = _values(thing.__dict__, self.carried.owner) if thing is not None else {}
        same = tuple(n for n in self.saved if now.get(n) == self.carried.values[n])
        once = tuple(n for n, v in self.saved.items() if now.get(n) == v == (FLAG, True))
        return same, tuple(n for n, v in self.saved.items() if n in now and n not in same and now[n] != v), once


def lost(then: Around, now: Around) -> Iterator[Lost]:
    """Objects that were made anew since `then` and differ."""
    for place, mine in now.objects.items():
        before = then.objects.get(place)
        if before is None or before.cls != mine.cls or before.site != mine.site or before.of() is mine.of():
            continue
        saved = {n: before.values[n] for n, v in mine.values.items() if n in before.values and before.values[n] != v}
        if saved:
            yield Lost(mine.of, mine, saved, then.site)


def leaves_of(recorder: Recorder, after: int = 0) -> dict[Kind, Leaves]:
    """The leaves that live optimizers train and no module owns.  Optimizers that are alike are left out, since one
    could not be told from the other; `after`: and those up to this number."""
    owned, found = recorder.part(Registry).owners, dict[Kind, Leaves]()
    twice: set[Kind] = set()
    for optimizer, number in recorder.optimizers.live():
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if number <= after or len(held) > MAX_HELD:
            continue
        kind = type(optimizer).__name__, tuple(tuple(p.shape) for p in held)
        values, numbers = dict[int, tuple[float, ...]](), dict[int, int]()
        for place, tensor in enumerate(held):
            ident = recorder.tensors.find(tensor)
            if ident is not None and ident not in owned and tensor.is_leaf and readable(tensor):
                values[place], numbers[place] = elements(tensor, LOOKED), ident
        if values:
            if kind in found:
                twice.add(kind)
            found[kind] = Leaves(number, values, numbers)
    return {kind: leaves for kind, leaves in found.items() if kind not in twice}


def leaves_lost(then: Leaves, now: Leaves) -> tuple[int, ...]:
    """Numbers of the leaves in a new optimizer that do not have the values they had when the state was taken."""
    return tuple(
        now.numbers[place]
        for place, was in then.values.items()
        if place in now.values and not all(map(_equal, was, now.values[place]))
    )


def _equal(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=NEARLY, abs_tol=NEARLY)
