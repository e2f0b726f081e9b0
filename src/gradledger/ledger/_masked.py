"""Losses that are zero at padded positions, followed from the mask to what averages them.

A value is *masked* from the multiplication by a mask on, through elementwise operations and sums over features; it is
*averaged* once the axis of time is gone by a mean, or by a sum and a division by the number of all positions.  A
division by a tensor (the number of valid positions) ends both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._naming import LOSSES
from gradledger.ledger._operations import Op, Value, is_ref
from gradledger.ledger._padding import Lengths, array_of, lengths_of, lengths_of_mask
from gradledger.ledger._trace import Trace

_IGNORED = -100
_POINTWISE = frozenset(
    {
        "pow", "square", "abs", "neg", "clamp", "clamp_min", "sqrt", "huber", "view", "reshape", "flatten", "squeeze",
        "unsqueeze", "contiguous", "positive", "to", "double", "relu", "log", "exp",
    }
)  # fmt: skip
_SHAPES = frozenset({"view", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous"})
_PASSED = frozenset({"add", "sub", "rsub", "neg", "stack", "cat", "squeeze", "view", "reshape", "positive", "to"})


@dataclass(frozen=True, slots=True)
class Mark:
    """What became of the value so far: "masked", "summed" (over all positions) or "averaged".  `positions`: of it."""

    lengths: Lengths
    mask_site: Site
    what: str = "masked"
    op: str = ""
    site: Site = NOWHERE
    positions: int = 0


class Masked:
    """Marks of this iteration's values, by token."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.marks: dict[int, Mark] = {}

    def clear(self) -> None:
        """A new iteration."""
        self.marks.clear()

    def average(self, root: int) -> Mark | None:
        """The masked average that a root contains, if any."""
        found = self.marks.get(root)
        return found if found is not None and found.what == "averaged" else None

    def follow(self, op: Op, results: list[Value], args: Any) -> None:
        """One operation has run."""
        result = results[0]
        if not result.graph and op.name not in ("mul", "masked_fill"):
            return
        below = [self.marks[t] for t in op.ins if t in self.marks]
        mark = self._carried(op, result, below, args) if below else None
        if mark is None and not any(m.what != "masked" for m in below):
            mark = self._masks(op, result, args)
        if mark is not None:
            self.marks[result.token] = mark

    # ------------------------------------------------------------------ a mask is laid on

    def _masks(self, op: Op, result: Value, args: Any) -> Mark | None:
        lengths: Lengths | None = None
        if op.name == "mul" and len(op.ins) == 2 and len(result.shape) >= 2:
            for mine, other in ((args[0], args[1]), (args[1], args[0])):
                if isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor) and not other.requires_grad:
                    lengths = lengths or _mask(other, mine, True)
        elif op.name in ("masked_fill", "masked_fill_") and len(args) == 3 and _zero(args[2]):
            lengths = _mask(args[1], args[0], False)
        elif op.name == "where" and len(args) == 3:
            if _zero(args[2]) and isinstance(args[1], torch.Tensor):
                lengths = _mask(args[0], args[1], True)
            elif _zero(args[1]) and isinstance(args[2], torch.Tensor):
                lengths = _mask(args[0], args[2], False)
        elif op.name == "setitem" and len(args) == 3 and _zero(args[2]):
            lengths = _mask(args[1], args[0], False)
        elif op.name in ("cross_entropy", "nll_loss") and "none" in (
            op.options.get("reduction"),
            *op.options.get("_args", ()),
        ):
            lengths = _ignored(op, args)
        return Mark(lengths, op.site, positions=prod(result.shape)) if lengths is not None else None

    # ------------------------------------------------------------------ what happens to it then

    def _carried(self, op: Op, result: Value, below: list[Mark], args: Any) -> Mark | None:
        mark = below[0]
        if mark.what == "masked":
            return self._masked(op, result, below)
        if mark.what == "summed":
            number = _number(op, args)
            if op.name == "div" and number is not None and number in (mark.positions, _positions(mark)):
                return _averaged(mark, op)
            return mark if op.name in ("squeeze", "neg", "positive") else None
        if op.name in _PASSED or op.name in ("sum", "mean"):
            return mark
        if op.name in ("mul", "div") and _number(op, args) is not None:
            return mark
        return None

    def _masked(self, op: Op, result: Value, below: list[Mark]) -> Mark | None:
        mark = below[0]
        first = self.trace.values.get(op.ins[0])
        shape = first.shape if first is not None else ()
        alike = len(below) == len(op.ins) and len({m.lengths.rows for m in below}) == 1
        if op.name in LOSSES:  # of two masked operands
            reduction = str(op.options.get("reduction", "mean"))
            if not alike:
                return None
            if len(result.shape) == 0:
                return _averaged(mark, op) if reduction == "mean" else None
            return Mark(mark.lengths, mark.mask_site, positions=prod(result.shape))
        if op.name in ("sub", "add"):
            return Mark(mark.lengths, mark.mask_site, positions=prod(result.shape)) if alike else None
        if op.name in ("mean", "sum"):
            rows, steps = len(mark.lengths.rows), mark.lengths.steps
            if prod(shape) < rows * steps or prod(shape) % (rows * steps):
                return None
            if len(result.shape) >= 1 and tuple(result.shape[:2]) in ((rows, steps), (steps, rows)):
                return Mark(mark.lengths, mark.mask_site, positions=prod(result.shape))
            if op.name == "mean":
                return _averaged(mark, op)
            whole = prod(result.shape) == 1
            return Mark(mark.lengths, mark.mask_site, "summed", "sum", op.site, prod(shape)) if whole else None
        if op.name in _POINTWISE and (op.name in _SHAPES or result.shape == shape):
            return mark if len(op.ins) == 1 else None
        if op.name in ("mul", "div") and len(op.ins) == 1 and result.shape == shape:
            return mark
        return None


def _averaged(mark: Mark, op: Op) -> Mark:
    return Mark(mark.lengths, mark.mask_site, "averaged", op.name, op.site, mark.positions)


def _positions(mark: Mark) -> int:
    return len(mark.lengths.rows) * mark.lengths.steps


def _mask(mask: Any, over: Any, kept: bool) -> Lengths | None:
    """Lengths of a mask that is laid over a value whose first two axes it shares."""
    if not isinstance(mask, torch.Tensor) or not isinstance(over, torch.Tensor) or mask.dim() < 2 or over.dim() < 2:
        return None
    if mask.requires_grad or isinstance(mask, torch.nn.Parameter) or tuple(mask.shape[:2]) != tuple(over.shape[:2]):
        return None
    values = array_of(mask)
    if values is None or prod(s for s in values.shape[2:]) != 1:
        return None
    values = values.reshape(values.shape[:2])
    return lengths_of_mask(values, kept) or lengths_of_mask(values.T, kept)


def _ignored(op: Op, args: Any) -> Lengths | None:
    given = op.options.get("ignore_index", _IGNORED)
    target = array_of(args[1]) if len(args) > 1 and isinstance(args[1], torch.Tensor) else None
    if target is None or target.ndim != 2:
        return None
    found = lengths_of(target)
    return found if found is not None and found.value == given else None


def _zero(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.requires_grad and value.numel() == 1 and value.device.type == "cpu" and float(value) == 0.0
    return isinstance(value, (int, float)) and value == 0


def _number(op: Op, args: Any) -> float | None:
    """The plain number of a product or quotient whose first operand is a tensor."""
    plain = [o for o in op.operands if not is_ref(o)]
    return float(plain[0]) if len(plain) == 1 and isinstance(plain[0], (int, float)) else None


__all__ = ["Mark", "Masked"]
