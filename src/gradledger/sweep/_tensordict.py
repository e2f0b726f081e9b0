"""TensorDicts, where the program has loaded the package: it is never imported here, so it stays optional."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor

NestedKey = str | tuple[Any, ...]


def is_tensordict(value: Any) -> bool:
    """Whether `value` is a TensorDict or a tensorclass. No object is one before somebody imported the package."""
    package = sys.modules.get("tensordict")
    known = getattr(package, "is_tensor_collection", None)  # None while the package is half imported, or shut out
    return known is not None and bool(known(value))


def leaves(value: Any) -> Iterator[tuple[NestedKey, Tensor]]:
    """The tensors of a TensorDict with their nested keys (a string, or a tuple of them below the first level).

    Depth first, in the order of `TensorDict.items`; entries that are no tensors (strings, arrays) are left out.
    """
    for key, leaf in value.items(include_nested=True, leaves_only=True):
        if isinstance(leaf, Tensor):
            yield key, leaf


def entry(value: Any, key: NestedKey) -> Any:
    """The entry under a nested key, or None where there is none."""
    return value.get(key, default=None)
