"""A walk over the autograd graph of a root: which leaves it reaches, and which nodes it passes.

Only `next_functions`, sequence numbers and `AccumulateGrad.variable` are read.  Saved tensors are never touched: with
saved-tensor hooks (activation checkpointing, offloading) reading them would run the program's code.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

MAX_NODES = 200_000


@dataclass(slots=True)
class Walk:
    """`leaves` in the order found; `nodes`: sequence numbers passed; `complete`: False when the graph was too large."""

    leaves: list[torch.Tensor] = field(default_factory=list)
    nodes: set[int] = field(default_factory=set)
    by_number: dict[int, Any] = field(default_factory=dict)
    complete: bool = True


def sequence_number(node: Any) -> int:
    """The sequence number of a graph node, 0 when it has none."""
    read = getattr(node, "_sequence_nr", None)
    return int(read()) if read is not None else 0


class _Mark:
    """Lives as long as the graph node in whose metadata it lies; the Python object of a node dies sooner."""

    __slots__ = ("__weakref__",)


def mark(node: Any) -> weakref.ref[Any]:
    """A reference that dies with the graph node itself."""
    return weakref.ref(node.metadata.setdefault("gradledger", _Mark()))


def walk(roots: Iterable[torch.Tensor]) -> Walk:
    """Walk everything reachable from `roots` (leaves that require grad count as reached)."""
    result = Walk()
    nodes = []
    for root in roots:
        if root.grad_fn is not None:
            nodes.append(root.grad_fn)
        elif root.requires_grad:
            result.leaves.append(root)
    _from_nodes(nodes, result)
    return result


def leaves_below(node: Any) -> list[torch.Tensor]:
    """Leaves reachable from one graph node."""
    result = Walk()
    _from_nodes([node], result)
    return result.leaves


def _from_nodes(nodes: list[Any], result: Walk) -> None:
    seen = set(nodes)
    stack = list(nodes)
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            if isinstance(variable, torch.Tensor):
                result.leaves.append(variable)
            continue
        number = sequence_number(node)
        if number:
            result.nodes.add(number)
            result.by_number[number] = node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
        if len(seen) > MAX_NODES:
            result.complete = False
            return
