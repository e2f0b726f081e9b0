"""One reverse pass while it runs, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gradledger.core.events import CallRef, Cut, Term
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._graph import Walk


@dataclass(slots=True)
class Pass:
    """One reverse pass while it runs."""

    number: int
    method: str
    roots: list[torch.Tensor]
    retain: bool
    create: bool
    site: Site
    mark: Any
    repeats: int | None = None
    covers: tuple[int, ...] = ()
    value: float | None = None
    age: int | None = None
    walk: Walk | None = None
    terms: tuple[Term, ...] = ()
    tokens: set[int] = field(default_factory=set)
    cuts: tuple[Cut, ...] = ()
    calls: tuple[CallRef, ...] = ()
    no_grad_site: Site = NOWHERE
    root_op: str = ""
    root_site: Site = NOWHERE
    seed: float | None = None
    comparisons: list[Callable[[], None]] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)

    @property
    def root(self) -> torch.Tensor | None:
        """The first of its roots."""
        return self.roots[0] if self.roots else None

    def facts(self, leaves: tuple[int, ...], reached: tuple[int, ...], raised: str, scaled: bool) -> dict[str, Any]:
        """The fields of its event."""
        root = self.root
        return {
            "backward": self.number,
            "method": self.method,
            "leaves": leaves,
            "retain_graph": self.retain,
            "create_graph": self.create,
            "raised": raised,
            "root_is_leaf": root is not None and root.is_leaf and root.requires_grad,
            "root_has_graph": root is not None and root.requires_grad,
            "value": self.value,
            "root_age": self.age,
            "repeats": self.repeats,
            "covers": self.covers,
            "detailed": self.walk is not None,
            "root_op": self.root_op,
            "root_site": self.root_site,
            "root_shape": tuple(root.shape) if root is not None else (),
            "terms": self.terms,
            "calls": self.calls,
            "reached": reached,
            "cuts": self.cuts,
            "no_grad_site": self.no_grad_site,
            "scaled": scaled,
            "seed": self.seed,
        }

    def signature(self, leaves: tuple[int, ...], raised: str) -> tuple[Any, ...]:
        """What makes one pass another one than those before; equal ones are counted."""
        root = self.root
        return (
            self.method,
            leaves,
            self.retain,
            self.create,
            bool(raised),
            root is not None and root.is_leaf and root.requires_grad,
            root is not None and root.requires_grad,
            self.repeats is None,
            len(self.covers),
            self.value is None or math.isfinite(self.value),
            self.walk is None,
        )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Those of a tensor, a list of them, or what stands for one (an edge of a graph)."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for t in value if isinstance(t, torch.Tensor)]
    tensor = getattr(value, "edge", None)
    return [tensor] if isinstance(tensor, torch.Tensor) else []
