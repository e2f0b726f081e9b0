"""What a file of a program's own format holds: networks, optimizers, schedules, counters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from gradledger.ledger._filed import COUNTER, of_names
from gradledger.ledger._states import contents, is_optimizer_state, is_scheduler_state, parts

MAX_ENTRIES = 400  # of one document that are looked at


def values_in(content: Any) -> Iterator[Any]:
    """The tensors and arrays of a file's content."""
    for value in parts(content):
        if isinstance(value, (torch.Tensor, numpy.ndarray)):
            yield value


def held(content: Any) -> tuple[str, ...]:
    """What a file of the program's own format holds, by owner.  Numbers count where their names say that they tell how
    far a run is."""
    if isinstance(content, (torch.Tensor, numpy.ndarray)):
        return ("other",)
    found = dict.fromkeys(one for one in contents(content) if one != "number")
    found.update(dict.fromkeys(_told(content)))
    return tuple(found)


def _told(content: Any, depth: int = 0) -> Iterator[str]:
    """Counters and states in a nested document."""
    if is_optimizer_state(content):
        yield "optimizer"
    elif is_scheduler_state(content):
        yield "scheduler"
    elif type(content) in (dict, OrderedDict) and content and depth < 4:
        entries = list(content.items())[:MAX_ENTRIES]
        if all(isinstance(value, (torch.Tensor, numpy.ndarray)) for _, value in entries):
            yield from of_names([str(name) for name, _ in entries])
            return
        for name, value in entries:
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                if COUNTER.fullmatch(str(name)):
                    yield "number"
            else:
                yield from _told(value, depth + 1)
