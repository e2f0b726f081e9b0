"""Whether asking a data set for its length runs no code that may have effects.

A data set may load its next file when it is asked how long it is; asked once more than the program does, it would stand
elsewhere.  Safe are containers, torch's and other libraries' data sets, and a `__len__` of the program that only reads.
"""

from __future__ import annotations

import dis
from types import FunctionType
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from gradledger.core.site import is_installed

_PLAIN = frozenset({"len", "int", "min", "max", "sum"})
_DEPTH = 4


def asks_plainly(data: Any, depth: int = _DEPTH) -> bool:
    """Whether `len(data)` only reads."""
    if depth == 0:
        return False
    if isinstance(data, Subset):
        return asks_plainly(data.indices, depth - 1)
    if isinstance(data, ConcatDataset):
        return True  # it knows its parts' lengths since it was made
    asked = getattr(type(data), "__len__", None)
    if not isinstance(asked, FunctionType) or is_installed(asked.__code__.co_filename):
        return True  # a container, a library's, or none at all
    return _only_reads(asked, type(data))


def _only_reads(function: FunctionType, owner: type) -> bool:
    """Whether a method stores nothing outside its own names and calls nothing but a few of Python's own functions."""
    for step in dis.get_instructions(function):
        name = step.opname
        if name.startswith(("STORE_", "DELETE_")) and not name.startswith("STORE_FAST"):
            return False
        if name in ("LOAD_GLOBAL", "LOAD_NAME") and str(step.argval) not in _PLAIN:
            return False
        if name == "LOAD_METHOD" or (name == "LOAD_ATTR" and "NULL" in step.argrepr):
            return False  # calls a method
        if name == "LOAD_ATTR" and isinstance(getattr(owner, str(step.argval), None), property):
            return False
        if name in ("IMPORT_NAME", "LOAD_DEREF", "YIELD_VALUE", "MAKE_FUNCTION"):
            return False
    return True
