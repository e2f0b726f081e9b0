"""Where parameter gradients go: into `.grad`, all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gradledger.sweep import _vjp
from gradledger.sweep._parallel import Reduction


@contextmanager
def without_hooks(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Within: no hook of a parameter runs (an optimizer that steps in one would train on what is only measured)."""
    registries = [
        registry
        for p in parameters
        for registry in (p._backward_hooks, getattr(p, "_post_accumulate_grad_hooks", None))
        if registry
    ]
    held = [list(registry.items()) for registry in registries]
    for registry in registries:
        registry.clear()
    try:
        yield
    finally:
        for registry, items in zip(registries, held, strict=True):
            registry.update(items)


class Gradients:
    """The `.grad` of a step's parameters while the walk fills them.

    Older gradients (accumulation over micro-batches) are set aside and added last, as plain backward adds the whole sum
    of a step once; so a step that fails leaves every `.grad` as it was.  A parameter with hooks that look at `.grad`
    after accumulation keeps its older gradient in place, for the hook is to see the sum; so does one whose gradient is
    reduced over processes, for the older part is reduced with it.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        only: Mapping[int, Tensor] | None = None,
        reduction: Reduction | None = None,
        *,
        aside: bool = True,
    ) -> None:
        """`only`: by id the tensors that may get one (None: all); `reduction`: over processes; `aside`: at once."""
        self.only, self.reduction = only, reduction
        if reduction is not None:
            reduction.begin()
        self.committed = False
        self._empty: list[Tensor] = []
        self._older: list[tuple[Tensor, Tensor]] = []
        for p in parameters:
            old = p.grad
            if old is None:
                self._empty.append(p)
            elif reduction is not None and reduction.stays(p):
                pass
            elif not getattr(p, "_post_accumulate_grad_hooks", None):
                self._older.append((p, old))
        if aside:
            self.set_aside()

    def set_aside(self) -> None:
        """Take the older gradients away, until `finish` or `undo`."""
        for p, _ in self._older:
            p.grad = None

    def add(self, parameter: Tensor, gradient: Tensor, taken: Sequence[Tensor | None]) -> None:
        """Add one block's whole gradient of `parameter`."""
        if self.only is None or id(parameter) in self.only:
            reduction = self.reduction
            by_engine = reduction is not None and reduction.hangs_on(parameter)
            _vjp.give(parameter, gradient, taken, by_engine=by_engine)

    def finish(self) -> None:
        """Wait for what is reduced, and add the step's gradients to the older ones."""
        if self.reduction is not None:
            self.reduction.end()
        self.committed = True  # the sum is one call, and from it there is no way back
        if not self._older:
            return
        both = [(old, p.grad) for p, old in self._older if p.grad is not None]
        dense = [pair for pair in both if pair[0].layout is torch.strided]
        sums: dict[int, Tensor] = {}
        try:
            with torch.no_grad():
                if dense:
                    torch._foreach_add_([old for old, _ in dense], [new for _, new in dense])
                for old, new in both:
                    if old.layout is not torch.strided:
                        sums[id(old)] = _sparse_sum(old, new)
        finally:
            for p, old in self._older:
                p.grad = sums.get(id(old), old)
        self._older.clear()

    def merge(self, parameters: Iterable[Tensor]) -> None:
        """The same for a few parameters whose gradients are whole; there is no way back for them."""
        wanted = {id(p) for p in parameters}
        if not self._older or not wanted:
            return
        for p, old in self._older:
            if id(p) in wanted:
                if p.grad is not None:
                    with torch.no_grad():
                        old = old.add_(p.grad) if old.layout is torch.strided else _sparse_sum(old, p.grad)
                p.grad = old
        self._older = [(p, old) for p, old in self._older if id(p) not in wanted]

    def undo(self) -> None:
        """Every `.grad` as it was before the step (older ones that are reduced with the step's apart).

        Nothing where the step had been finished when an interrupt came.
        """
        if self.committed:
            return
        if self.reduction is not None:
            self.reduction.abandon()
        for p, old in self._older:
            p.grad = old
        for p in self._empty:
            p.grad = None


def _sparse_sum(old: Tensor, new: Tensor) -> Tensor:
    """As the engine adds to a sparse gradient: in place, unless the new one is dense."""
    return old.add_(new) if new.layout is old.layout else new + old
