"""States that a network could have been filled from, and what of them a load left out.

`load_state_dict` tells the keys that it was not given and those that it does not know.  A program that filters a state
by the names of its network, or mixes it into the network's own state, hides both: what is dropped is told by the state
as it was read from a file, or as the other network has it.  Nothing of the program is kept alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._filed import key_of, of_names
from gradledger.ledger._identity import WeakTable
from gradledger.ledger._recorder import Recorder
from gradledger.ledger._registry import tree_tensors
from gradledger.ledger._states import is_module_state, parts
from gradledger.ledger._values import elements, readable, same_memory

MAX_SOURCES = 8  # states of files that are remembered
MAX_TAKERS = 16  # networks whose state was taken
MAX_LOOKED = 3  # of them, those that a load is compared with
MAX_KEYS = 2048
_Shape = tuple[int, ...]
_Own = Mapping[str, tuple[str, torch.Tensor]]  # path -> (role, tensor), see `tree_tensors`


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a load did not do.  `kept`: keys that were given the module's own values; `keys`: of the state that the
    values come from, those that the module has not and that were given under no other name; `renamed`: (key of the
    module, key of the state) that belong together; `early`: how many of them stand in the module before the last key
    that was loaded (all, when none was); `site`: where the state was read."""

    kept: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    early: int = 0
    site: Site = NOWHERE


@dataclass(slots=True)
class Source:
    """A state: `shapes` by name, names by `prints` of the values and (of a live one) by memory.  `used`: something of
    it has been loaded."""

    shapes: dict[str, _Shape]
    prints: dict[tuple[Any, ...], str]
    site: Site = NOWHERE
    iteration: int = -1
    tensors: dict[int, str] = field(default_factory=dict)
    memory: dict[int, str] = field(default_factory=dict)
    used: bool = False

    def says(self) -> set[str]:
        """Names of the tensors that can be known again by their values."""
        return set(self.prints.values())


def _source(state: Iterable[tuple[str, torch.Tensor]], site: Site, iteration: int) -> Source:
    made = Source({}, {}, site, iteration)
    for name, tensor in state:
        if is_lazy(tensor):
            continue
        made.shapes[name] = tuple(tensor.shape)
        key = key_of(tensor)
        if key is not None:
            made.prints[key] = name
        if readable(tensor):
            made.memory[tensor.data_ptr()] = name
    return made


class Offered:
    """States that were read from files, the newest last.  `takers`: modules whose state was taken, latest last: in
    which iteration; `walked`: modules of which the program itself listed names and parameters: in which, and where."""

    def __init__(self) -> None:
        self.takers: dict[int, int] = {}
        self.walked: dict[int, tuple[int, Site]] = {}
        self._sources: deque[Source] = deque(maxlen=MAX_SOURCES)
        self._tensors: WeakTable[torch.Tensor] = WeakTable()

    def listed(self, module: int, iteration: int, site: Site) -> None:
        """A module's parameters were listed by name: a state may be made of them."""
        self.walked.pop(module, None)
        self.walked[module] = (iteration, site)
        while len(self.walked) > MAX_TAKERS:
            del self.walked[next(iter(self.walked))]

    def read(self, content: Any, site: Site, iteration: int) -> None:
        """A file was read: remember the states of networks in it."""
        for value in parts(content):
            if is_module_state(value) and len(value) <= MAX_KEYS and "optimizer" not in of_names(list(value)):
                state = [(name, t) for name, t in value.items() if isinstance(t, torch.Tensor)]
                source = _source(state, site, iteration)
                source.memory.clear()  # (memory is reused when the state is gone)
                source.tensors = {self._tensors.number(t): name for name, t in state}
                self._sources.append(source)

    def taken(self, module: int, iteration: int) -> None:
        """The program took the state of a module."""
        self.takers.pop(module, None)
        self.takers[module] = iteration
        if len(self.takers) > MAX_TAKERS:
            self.takers.pop(next(iter(self.takers)))

    def left_out(
        self,
        module: int,
        own: _Own,
        given: Mapping[str, torch.Tensor],
        same: set[str],
        missing: tuple[str, ...],
        unexpected: tuple[str, ...],
        recorder: Recorder,
    ) -> LeftOut:
        """What a load of `given` into `own` left out.  `same`: keys whose values the module had before."""
        others = [(recorder.modules.get(n), at) for n, at in reversed(self.takers.items()) if n != module]
        takers = [(tree_tensors(m), at) for m, at in others[:MAX_LOOKED] if m is not None]
        iteration = recorder.iteration
        new = {k: t for k, t in given.items() if k not in same}
        source, used = self._best(own, given, new, takers, iteration)
        fresh = set(missing) | same
        if source is None:
            kept: tuple[str, ...] = ()
            keys: tuple[str, ...] = ()
        else:
            source.used = source.used or bool(used)
            kept = tuple(k for k in own if k in same and source.shapes.get(k) != tuple(own[k][1].shape))
            turned = any(key != name for key, name in used.items())  # the program renames: values alone tell the rest
            gone = set(used.values()) | (source.shapes.keys() - source.says() if turned else set())
            keys = tuple(k for k in source.shapes if k not in own and k not in gone)
            fresh -= source.shapes.keys()
        shapes = {k: tuple(t.shape) for k, t in given.items()} | (source.shapes if source is not None else {})
        left = list(dict.fromkeys((*unexpected, *keys)))
        pairs = _renamed([k for k in own if k in fresh], left, own, shapes)
        order = {k: i for i, k in enumerate(own)}
        loaded = [order[k] for k in used or given if k in order and k not in kept]
        last = max(loaded, default=len(order))
        return LeftOut(
            kept, keys, pairs, sum(order[k] < last for k, _ in pairs), source.site if source is not None else NOWHERE
        )

    def _best(
        self,
        own: _Own,
        given: Mapping[str, torch.Tensor],
        new: Mapping[str, torch.Tensor],
        takers: Iterable[tuple[_Own, int]],
        iteration: int,
    ) -> tuple[Source | None, dict[str, str]]:
        """The state that most of the given values come from, and which of them: key -> name there.  When nothing was
        taken from any, and the module was given its own memory: the one that was read or taken last, with no step
        since."""
        mine = {t.data_ptr() for _, t in own.values() if readable(t)}
        live = []
        for theirs, at in takers:
            source = _source(((k, t) for k, (_, t) in theirs.items()), NOWHERE, at)
            if not mine & source.memory.keys():
                live.append(source)
        best: tuple[Source | None, dict[str, str]] = (None, {})
        for source in (*reversed(self._sources), *live):
            used = {k: name for k, t in new.items() if (name := self._name(source, t)) is not None}
            if len(used) > len(best[1]):
                best = source, used
        if best[0] is None and all(k in own and same_memory(t, own[k][1]) for k, t in given.items()):
            # it was given its own live state, as it is after an update with nothing (or nothing at all)
            return next(
                (s for s in (*reversed(self._sources), *live) if s.iteration == iteration and not s.used), None
            ), {}
        return best

    def _name(self, source: Source, tensor: torch.Tensor) -> str | None:
        number = self._tensors.find(tensor)
        found = source.tensors.get(number) if number is not None else None
        if found is None and source.memory and readable(tensor):
            found = source.memory.get(tensor.data_ptr())
            if found is not None and source.shapes[found] != tuple(tensor.shape):
                found = None
        if found is None:
            key = key_of(tensor)
            found = source.prints.get(key) if key is not None else None
        return found


def same_values(own: _Own, given: Mapping[str, torch.Tensor]) -> set[str]:
    """Keys of a state whose values the module has already, by a few elements."""
    found = set()
    for key, tensor in given.items():
        mine = own[key][1] if key in own else None
        if mine is None or is_lazy(mine) or mine.shape != tensor.shape:
            continue
        if same_memory(mine, tensor) or (readable(mine) and readable(tensor) and elements(mine) == elements(tensor)):
            found.add(key)
    return found


def _renamed(
    missing: list[str], left: list[str], own: _Own, shapes: Mapping[str, _Shape]
) -> tuple[tuple[str, str], ...]:
    """Keys that were left on both sides and belong together: one shape, and names that end alike."""
    ends: dict[str, list[str]] = {}
    for key in left[:MAX_KEYS]:
        ends.setdefault(key.rpartition(".")[2], []).append(key)
    found = []
    for key in missing[:MAX_KEYS]:
        shape = tuple(own[key][1].shape)
        alike = [k for k in ends.get(key.rpartition(".")[2], ()) if shapes.get(k) == shape]
        if alike:
            best = max(alike, key=lambda k: _common_end(k, key))
            ends[key.rpartition(".")[2]].remove(best)
            found.append((key, best))
    return tuple(found[:64])


def _common_end(a: str, b: str) -> int:
    count = 0
    for one, other in zip(reversed(a.split(".")), reversed(b.split(".")), strict=False):
        if one != other:
            break
        count += 1
    return count


__all__ = ["LeftOut", "Offered", "same_values"]
