"""Values that were read from files, known again by shape and a few elements, whatever way they take into a network.

A tensor that `torch.load` returns is known by itself.  What comes as an array, is copied, cast or written in place is
another object; its values are the same.  Nothing of the program is kept.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy
import torch

from gradledger.core.site import Site
from gradledger.ledger._values import elements, readable

MAX_VALUES = 20_000
FEWEST = 4  # elements below which a value says nothing
LOOKED = 8

# Names under which programs keep how far they are; not how far they mean to go (epochs, total_steps).
COUNTER = re.compile(
    r"((global|start|last|next|current|env|optimizer|opt|train|resume|trained)_?)?"
    r"(steps?_?done|(step|epoch|iter|iteration|update|batch)(_?(idx|index|number|count|num))?)|iterations?_done|counters?",
    re.IGNORECASE,
)
_MOMENTS = re.compile(
    r"exp_avg|momentum_buf|square_avg|acc_delta|/(step|mu|nu|sum|max_exp_avg_sq)$|^(mu|nu|m|v)[./]|opt(imizer)?_?state"
)


class Filed:
    """Values by their print: when (a number that grows with each read) and on which line they were read."""

    def __init__(self) -> None:
        self._at: OrderedDict[tuple[Any, ...], tuple[int, Site]] = OrderedDict()

    def note(self, value: Any, at: int, site: Site) -> None:
        """One tensor or array of a file."""
        key = key_of(value)
        if key is not None:
            self._at.pop(key, None)
            self._at[key] = at, site
            if len(self._at) > MAX_VALUES:
                self._at.popitem(last=False)

    def find(self, tensor: torch.Tensor) -> tuple[int, Site] | None:
        """When and where these values were read from a file."""
        key = key_of(tensor) if self._at else None
        return self._at.get(key) if key is not None else None


def says_something(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be known again by its values."""
    return key_of(tensor) is not None


def telling(tensors: Iterable[torch.Tensor], most: int = 16) -> list[torch.Tensor]:
    """Some tensors whose values say something, spread evenly."""
    known = [t for t in tensors if says_something(t)]
    return known[:: max(1, len(known) // most)][:most]


def of_names(names: list[str]) -> tuple[str, ...]:
    """What the tensors of a file belong to, by their names."""
    moments = sum(_MOMENTS.search(name) is not None for name in names)
    found = [*(["optimizer"] if moments else []), *(["module"] if moments < len(names) else [])]
    if any(COUNTER.fullmatch(re.split(r"[./]", name)[-1]) for name in names):
        found.append("number")
    return tuple(found)


def key_of(value: Any) -> tuple[Any, ...] | None:
    """Shape and some elements, as float32 has them; None for what says nothing (few elements, all of them equal)."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point() or not readable(value) or value.numel() < FEWEST:
            return None
        some = elements(value, LOOKED)
    else:
        if value.dtype.kind != "f" or value.size < FEWEST or not value.flags.c_contiguous:
            return None
        flat = value.reshape(-1)
        some = tuple(float(v) for v in flat[:: max(1, value.size // LOOKED)][:LOOKED].tolist())
    if len(set(some)) < 2:
        return None
    with numpy.errstate(over="ignore"):
        return (tuple(value.shape), *(float(numpy.float32(v)) for v in some))
