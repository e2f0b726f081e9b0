"""Summands that a loss counts twice below its reductions: `mean(a + b) + mean(b)`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import prod

from gradledger.core.events import Term
from gradledger.ledger._naming import REDUCTIONS
from gradledger.ledger._operations import Op, Value, is_ref
from gradledger.ledger._trace import Trace

_VISITS = 64


def twice_inside(trace: Trace, parts: Iterable[tuple[int, float]]) -> list[Term]:
    """The additive parts of a loss as (token, factor) -> summands with one weight in the means or sums of several.

    Only what was computed from outputs counts, not an output itself, which may well stand in two terms.
    """
    found: defaultdict[tuple[str, int, float], set[int]] = defaultdict(set)
    for number, (token, factor) in enumerate(parts):
        value = trace.values.get(token)
        op = value.op if value is not None else None
        if op is None or op.name not in REDUCTIONS or not op.ins or op.options.get("_args"):
            continue
        for inner, weight in _summands(trace, op.ins[0]):
            found[REDUCTIONS[op.name], inner, float(f"{factor * weight:.9g}")].add(number)
    terms = []
    for (_, token, factor), where in found.items():
        value = trace.values[token]
        if len(where) > 1 and value.op is not None and value.graph and value.call is None and value.leaf is None:
            terms.append(Term(value.op.name, value.op.site, factor, len(where), True, "tensor", None))
    return terms


def _summands(trace: Trace, token: int) -> Iterator[tuple[int, float]]:
    """The tensors of one shape that are added up in a tensor, with the plain numbers on their way."""
    shape = _shape(trace, token)
    queue, visits = [(token, 1.0)], 0
    while queue and prod(shape) > 1 and visits < _VISITS:
        visits += 1
        token, factor = queue.pop()
        value = trace.values.get(token)
        op = value.op if value is not None and value.call is None else None
        inner = list(_opened(trace, op, shape)) if op is not None else []
        if inner:
            queue += [(one, factor * weight) for one, weight in inner]
        else:
            yield token, factor


def _opened(trace: Trace, op: Op, shape: tuple[int, ...]) -> Iterator[tuple[int, float]]:
    """What a sum, or a product with a number, is made of; nothing when it is neither."""
    if len(op.operands) != 2:
        return
    left, right = op.operands
    if op.name in ("add", "sub", "rsub") and is_ref(left) and is_ref(right) and op.options.get("alpha", 1) == 1:
        if _shape(trace, int(left)) == shape == _shape(trace, int(right)):
            yield int(left), -1.0 if op.name == "rsub" else 1.0
            yield int(right), -1.0 if op.name == "sub" else 1.0
    elif op.name in ("mul", "div") and is_ref(left) != is_ref(right):
        number = right if is_ref(left) else left
        if isinstance(number, (int, float)) and number and (op.name == "mul" or is_ref(left)):
            yield int(left if is_ref(left) else right), 1 / number if op.name == "div" else float(number)


def _shape(trace: Trace, token: int) -> tuple[int, ...]:
    value: Value | None = trace.values.get(token)
    return value.shape if value is not None else ()


__all__ = ["twice_inside"]
