"""State dictionaries as (tensors, JSON): what a scheduler, a sampler or a program keeps, without pickle.

What JSON cannot say is written as an object with one key that starts with `$`: tensors and arrays by the name under
which they stand beside the text, tuples, numbers that are not finite, dictionaries whose keys are not text.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gradledger.core.errors import GradledgerError


class TreeError(GradledgerError):
    """A state holds something that a checkpoint without pickle cannot."""

    slug = "state"


def encode(value: Any, where: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """`value` as (JSON, tensors by name). Tensors are views of the live ones.

    Args:
        value: any nesting of None, bool, int, float, complex, text, bytes, tensors, numpy arrays and numbers, dtypes,
            devices, lists, tuples, deques, sets and dictionaries.
        where: what the value is called, for errors and as the beginning of the tensors' names.

    Raises:
        TreeError: something else is in it; the text says where.
    """
    tensors: dict[str, torch.Tensor] = {}
    return _encode(value, where, tensors), tensors


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, torch.Tensor):
        name = _free(path, tensors)
        tensors[name] = value.detach()
        return {"$tensor": name}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        if value.dtype.kind == "u" and value.dtype.itemsize > 1:  # not every torch can hold these
            return {"$array": [_encode(value.tolist(), path, tensors), str(value.dtype)]}
        name = _free(path, tensors)
        tensors[name] = torch.from_numpy(np.ascontiguousarray(value).copy()).reshape(value.shape)
        return {"$numpy": name}
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return {"$scalar": [_encode(value.item(), path, tensors), str(value.dtype)]}
    if type(value) is complex:
        return {"$complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, torch.dtype | torch.device | torch.Size):
        kind = type(value).__name__.lower()
        return {f"${kind}": list(value) if isinstance(value, torch.Size) else str(value)}
    if type(value) is list:
        return [_encode(one, f"{path}/{index}", tensors) for index, one in enumerate(value)]
    if type(value) is tuple:
        return {"$tuple": [_encode(one, f"{path}/{index}", tensors) for index, one in enumerate(value)]}
    if type(value) is deque:
        return {"$deque": [_encode(list(value), path, tensors), value.maxlen]}
    if type(value) in (set, frozenset):
        return {"$set": _encode(sorted(value, key=repr), path, tensors)}
    # A counter and a default dictionary come back as plain ones: what is asked of a state is its entries.
    if type(value) in (dict, OrderedDict, defaultdict, Counter):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _encode(one, f"{path}/{key}", tensors) for key, one in value.items()}
        return {
            "$pairs": [
                [_encode(key, f"{path}/{key}", tensors), _encode(one, f"{path}/{key}", tensors)]
                for key, one in value.items()
            ]
        }
    raise TreeError(
        got=f"a {type(value).__module__}.{type(value).__qualname__} at {path}",
        wanted="None, numbers, text, bytes, tensors, arrays, lists, tuples, sets and dictionaries of these",
        where="train: a state that is to be saved",
        next_step="let its state_dict() return plain values, or keep this object out of the state",
    )


def _free(path: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """A name that no tensor has yet: the keys 1 and "1" of one dictionary give the same path."""
    while path in tensors:
        path += "'"
    return path


def decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What `encode` was given. Tensors are those of `tensors`, not copies."""
    if isinstance(value, list):
        return [decode(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, held),) = value.items()
        if tag.startswith("$"):
            return _decode_tagged(tag, held, tensors)
    return {key: decode(one, tensors) for key, one in value.items()}


def _decode_tagged(tag: str, held: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    match tag:
        case "$float":
            return float(held)
        case "$tensor":
            return tensors[held]
        case "$numpy":
            return tensors[held].numpy().copy()
        case "$array":
            return np.array(held[0], dtype=held[1])
        case "$scalar":
            return np.dtype(held[1]).type(decode(held[0], tensors))
        case "$complex":
            return complex(float(held[0]), float(held[1]))
        case "$bytes":
            return bytes.fromhex(held)
        case "$dtype":
            return getattr(torch, held.removeprefix("torch."))
        case "$device":
            return torch.device(held)
        case "$size":
            return torch.Size(held)
        case "$tuple":
            return tuple(decode(held, tensors))
        case "$deque":
            return deque(decode(held[0], tensors), maxlen=held[1])
        case "$set":
            return set(decode(held, tensors))
        case "$pairs":
            return {decode(key, tensors): decode(one, tensors) for key, one in held}
    raise TreeError(
        got=f"the tag {tag}",
        wanted="one that this version writes",
        where="train: a saved state",
        next_step="load it with the version of gradledger that wrote it",
    )
