"""Where a state that is being loaded came from: which live module, optimizer or scheduler, or a file.

Three traces are followed: the tensors that `state_dict()` hands out (they are new objects over the live memory), the
tensors that `torch.load` returns, and prints of states (a few elements of a few tensors), which survive cloning and a
round trip through a file.  Nothing of the program is kept alive.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from gradledger.core.site import Site
from gradledger.ledger._carried import Around
from gradledger.ledger._filed import COUNTER, Filed, of_names
from gradledger.ledger._identity import PRUNE_AT, Ref
from gradledger.ledger._patch import Nest
from gradledger.ledger._registry import tree
from gradledger.ledger._values import elements, equal, readable

FILE = -1  # stands for "a file" where otherwise the number of an owner stands
MAX_SNAPSHOTS = 256
MAX_PLAIN = 4096  # elements of a plain attribute whose value is remembered
MAX_PLAINS = 32  # such attributes of one module tree
MAX_WALKED = 20_000  # objects of one saved or loaded file that are looked at
LOOKED = 8  # tensors of a state in which a blend is looked for
PRINTED = 12  # tensors of a state whose elements go into its print


@dataclass(slots=True)
class Snapshot:
    """A state that was taken or saved: of whom, was it written to a file, and plain tensor attributes at that time."""

    owner: str
    ident: int
    saved: bool = False
    plain: dict[str, torch.Tensor] = field(default_factory=dict)
    at: int = 0
    around: Around | None = None


class Handed:
    """Tensors that were handed out, by weak reference: whose state they are part of."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._prune_at = PRUNE_AT

    def note(self, tensor: torch.Tensor, ident: int) -> None:
        """`tensor` is part of the state of `ident` (FILE: was read from a file)."""
        self._of[id(tensor)] = (Ref(tensor), ident)
        if len(self._of) > self._prune_at:
            self._of = {k: v for k, v in self._of.items() if v[0]() is not None}
            self._prune_at = max(PRUNE_AT, 2 * len(self._of))

    def find(self, tensor: torch.Tensor) -> int | None:
        """Whose state a tensor is part of."""
        found = self._of.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None


class States:
    """What is remembered of states in this run."""

    def __init__(self) -> None:
        self.modules = Handed()
        self.optimizers = Handed()
        self.loaded = Handed()
        self.snapshots: OrderedDict[int, Snapshot] = OrderedDict()
        self.filed = Filed()
        self.filled: set[int] = set()  # modules whose state was loaded from a file
        self.put_back: Callable[[torch.nn.Module, int, Site, Around], None] | None = None  # (probes/carried.py)
        self.files = Nest()  # readers and writers of files: one that another one calls is not seen
        self._moment = 0

    def moment(self) -> int:
        """A number above all that were given before: states and reads stand in the order in which they came."""
        self._moment += 1
        return self._moment

    def remember(self, state: Any, snapshot: Snapshot) -> None:
        """Keep the print of a state."""
        key = print_of_state(state)
        if key is None:
            return
        known = self.snapshots.pop(key, None)
        if known is not None and known.saved:
            snapshot.saved = True
        snapshot.at = self.moment()
        self.snapshots[key] = snapshot
        while len(self.snapshots) > MAX_SNAPSHOTS:
            self.snapshots.popitem(last=False)

    def recall(self, state: Any) -> Snapshot | None:
        """The remembered state with the same print."""
        key = print_of_state(state)
        return None if key is None else self.snapshots.get(key)


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """The tensors of a state, also of nested ones (an optimizer's)."""
    for value in parts(state):
        if isinstance(value, torch.Tensor):
            yield value


def parts(value: Any, depth: int = 0, left: list[int] | None = None) -> Iterator[Any]:
    """A value and what is inside it, through plain dicts, lists and tuples."""
    left = left if left is not None else [MAX_WALKED]
    left[0] -= 1
    if left[0] < 0:
        return
    yield value
    if depth < 5:
        inner = list(value.values()) if _is_mapping(value) else value if type(value) in (list, tuple) else ()
        for item in inner:
            yield from parts(item, depth + 1, left)


def _is_mapping(value: Any) -> bool:
    # exact classes: a mapping of the program's own may do anything when it is walked
    return type(value) in (dict, OrderedDict)


def is_module_state(value: Any) -> bool:
    """A dict of tensors under names."""
    if not _is_mapping(value) or not value:
        return False
    if not all(isinstance(k, str) for k in value):
        return False
    others = [(k, v) for k, v in value.items() if not isinstance(v, torch.Tensor)]
    if len(others) > 2 or len(others) == len(value):
        return False
    # a file of states, beside which one tensor lies, is none itself
    return not any(_is_mapping(v) and _holds_tensors(v) and not k.endswith("_extra_state") for k, v in others)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(v, torch.Tensor) for v in parts(value, 2, [64]))


def is_optimizer_state(value: Any) -> bool:
    """What `Optimizer.state_dict` gives."""
    return _is_mapping(value) and {"state", "param_groups"} <= set(value)


def is_scheduler_state(value: Any) -> bool:
    """What `LRScheduler.state_dict` gives."""
    return _is_mapping(value) and "last_epoch" in value and ("_step_count" in value or "_last_lr" in value)


def is_random_state(value: Any) -> bool:
    """What `torch.get_rng_state` gives."""
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.dim() == 1 and value.numel() >= 16


def print_of_state(state: Any) -> int | None:
    """A number that equal states have in common and unequal ones most likely have not; None for other things."""
    if not isinstance(state, Mapping) or not state:
        return None
    if is_scheduler_state(state):
        return hash(tuple((k, v) for k, v in sorted(state.items()) if isinstance(v, (int, float, str))))
    tensors = [(str(k), t) for k, t in state.items() if isinstance(t, torch.Tensor)]
    if is_optimizer_state(state):
        tensors = [(str(i), t) for i, t in enumerate(tensors_in(state["state"]))]
        if not tensors:
            return hash(("optimizer", len(state["param_groups"])))
    if not tensors:
        return None
    tensors.sort(key=lambda item: item[0])
    chosen = [(k, t) for k, t in tensors[:: max(1, len(tensors) // PRINTED)] if readable(t)]
    return hash((len(tensors), tuple((k, tuple(t.shape), elements(t, 4)) for k, t in chosen)))


def plain_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Path -> tensors of a tree that its state leaves out: attributes that are neither parameters nor buffers, by
    themselves or in a list or tuple (`centres.0`), and buffers that were registered with `persistent=False`."""
    found: dict[str, torch.Tensor] = {}
    for path, below in tree(module):
        buffers, unsaved = below.__dict__["_buffers"], below.__dict__.get("_non_persistent_buffers_set", ())
        for name, value in (*below.__dict__.items(), *((n, buffers.get(n)) for n in sorted(unsaved))):
            full = f"{path}.{name}" if path else name
            if isinstance(value, torch.Tensor):
                found[full] = value
            elif type(value) in (list, tuple) and len(value) <= MAX_PLAINS:
                if all(isinstance(v, torch.Tensor) and not isinstance(v, torch.nn.Parameter) for v in value):
                    found.update({f"{full}.{i}": tensor for i, tensor in enumerate(value)})
            if len(found) >= MAX_PLAINS:
                return found
    return found


def copies_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Detached copies of the small ones."""
    return {k: t.detach().clone() for k, t in tensors.items() if readable(t) and t.numel() <= MAX_PLAIN}


def that_differ(then: dict[str, torch.Tensor], now: dict[str, torch.Tensor]) -> tuple[str, ...]:
    """Names in `then` whose value in `now` is another, or that `now` lacks."""
    return tuple(
        name
        for name, value in then.items()
        if name not in now or not readable(now[name]) or not equal(value, now[name])
    )


def contents(value: Any) -> tuple[str, ...]:
    """What a file holds, by owner: "module", "optimizer", "scheduler", "rng", "number", "other"."""
    found: list[str] = []
    entries = list(value.items()) if type(value) is dict and not is_module_state(value) else [("", value)]
    if is_optimizer_state(value) or is_scheduler_state(value):
        entries = [("", value)]
    for name, entry in entries[:256]:
        within = entry if type(entry) in (list, tuple) else entry.values() if type(entry) is dict else ()
        inner = [entry, *islice(within, 256)]
        if isinstance(entry, torch.nn.Module):
            found.append("module")
        elif is_module_state(entry):
            found += of_names(list(entry))  # (moments of an optimizer may lie in a file of tensors)
        elif any(is_optimizer_state(v) or isinstance(v, torch.optim.Optimizer) for v in inner):
            found.append("optimizer")
        elif any(is_scheduler_state(v) or isinstance(v, LRScheduler) for v in inner):
            found.append("scheduler")
        elif is_random_state(entry) or "rng" in str(name).lower() or "random" in str(name).lower():
            found.append("rng")
        elif any(is_module_state(v) or isinstance(v, torch.nn.Module) for v in inner):
            found.append("module")
        else:
            found.append("number" if isinstance(entry, (int, float)) else "other")
    return tuple(dict.fromkeys(found))


def counts(value: Any) -> tuple[tuple[str, int], ...]:
    """Whole numbers of a file that tell how far the run is, by name."""
    entries = list(value.items())[:256] if type(value) is dict else []
    return tuple((k, v) for k, v in entries if type(v) is int and isinstance(k, str) and COUNTER.fullmatch(k))[:8]


def differs(own: dict[str, tuple[str, torch.Tensor]], given: dict[str, torch.Tensor]) -> bool | None:
    """Whether loading `given` would change anything; None when no tensor can be compared."""
    keys = [k for k, t in given.items() if k in own and own[k][1].shape == t.shape]
    seen: bool | None = None
    for key in keys:
        mine, new = own[key][1], given[key]
        if not readable(mine) or not readable(new):
            continue
        seen = False
        if elements(mine) != elements(new) or (mine.numel() <= 65536 and not equal(mine, new)):
            return True
    return seen


def blend(
    own: dict[str, tuple[str, torch.Tensor]],
    given: dict[str, torch.Tensor],
    theirs: dict[str, tuple[str, torch.Tensor]],
) -> float | None:
    """The weight tau with which given = tau * theirs + (1 - tau) * own in a few elements; None when there is none."""
    found: list[float] = []
    keys = [k for k, t in given.items() if k in own and k in theirs and t.is_floating_point()]
    if len(keys) < len(given) / 2:
        return None
    for key in keys[:: max(1, len(keys) // LOOKED)][:LOOKED]:
        mine, new, source = own[key][1], given[key], theirs[key][1]
        if not (mine.shape == new.shape == source.shape) or not all(readable(t) for t in (mine, new, source)):
            return None
        for a, b, c in zip(elements(mine), elements(new), elements(source), strict=True):
            if abs(c - a) > 1e-3 * max(1.0, abs(a)):
                found.append((b - a) / (c - a))
            elif abs(b - a) > 1e-3 * max(1.0, abs(a)):
                return None
    if not found or max(found) - min(found) > 0.02 or not -1e-3 <= min(found) <= 1.001:
        return None
    return round(sorted(found)[len(found) // 2], 6)


__all__ = [
    "FILE",
    "MAX_PLAIN",
    "Snapshot",
    "States",
    "blend",
    "contents",
    "copies_of",
    "counts",
    "differs",
    "parts",
    "plain_tensors",
    "print_of_state",
    "that_differ",
]
