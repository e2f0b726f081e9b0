"""Sums that are means after all: a masked loss, divided by the number of elements that its own mask leaves."""

from __future__ import annotations

from math import prod

from gradledger.ledger._naming import VIEWS
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._provenance import THROUGH
from gradledger.ledger._trace import Trace

COUNTED = "_counted"  # option of an operation: the number that was counted (see `probes/counts.py`)
ZEROS = "_zeros"  # option of a product: of each operand, how many elements are zero and how many there are
COUNTS = frozenset({"sum", "count_nonzero"})
CLASS_LOSSES = frozenset({"cross_entropy", "nll_loss"})
_IGNORED = -100
_LIMITED = frozenset({"clamp", "clamp_min", "clip", "maximum", "add"})  # against a division by zero
# From a mask to what it was made of: the same positions.
_MASKS = frozenset(
    {
        "to", "double", "half", "bfloat16", "bool", "long", "type", "type_as", "ne", "eq", "gt", "ge",
        "lt", "le", "logical_not", "bitwise_not", "invert", "rsub", "unsqueeze", "clone", "contiguous",
    }
)  # fmt: skip
_STEPS = 12


def ignored_index(op: Op) -> float:
    """The target that a loss over classes leaves out."""
    given = op.options.get("ignore_index")
    if given is None:
        numbers = [a for a in op.options.get("_args", ()) if isinstance(a, int) and not isinstance(a, bool)]
        given = numbers[0] if numbers else _IGNORED
    return float(given)


def own_count(trace: Trace, total: Value, divisor: int, elements: int, batch: int) -> int:
    """By how many elements of its own the sum `total` (over `elements`, of `batch` rows) is divided; 0 when `divisor`
    is no count of them (a count of a whole window, a number of sequences)."""
    count = _counted(trace, divisor)
    mask = trace.values.get(count.ins[0]) if count is not None else None
    size = prod(mask.shape) if mask is not None else 0
    if count is None or mask is None or size < max(2, batch):
        return 0
    if total.op is not None and total.op.name in CLASS_LOSSES:
        return elements if elements == count.options.get(COUNTED) and _is_size_of_targets(trace, total.op, size) else 0
    if elements % size:
        return 0
    return round(count.options.get(COUNTED, 0)) if _made_of(trace, mask.token) in _laid_on(trace, total) else 0


def _is_size_of_targets(trace: Trace, loss: Op, size: int) -> bool:
    target = trace.values.get(loss.ins[1]) if len(loss.ins) > 1 else None
    return target is not None and prod(target.shape) == size


def _counted(trace: Trace, token: int) -> Op | None:
    """The sum that a divisor is, guarded against zero perhaps."""
    for _ in range(_STEPS):
        value = trace.values.get(token)
        op = value.op if value is not None else None
        if op is None or not op.ins or op.name in COUNTS:
            return op if op is not None and op.ins else None
        if op.name not in THROUGH | _LIMITED or len(op.ins) != 1:
            return None
        token = op.ins[0]
    return None


def _made_of(trace: Trace, token: int) -> int:
    """What a mask was made of, with as many elements."""
    for _ in range(_STEPS):
        value = trace.values.get(token)
        if value is None or value.op is None or len(value.op.ins) != 1 or value.op.name not in _MASKS:
            return token
        below = trace.values.get(value.op.ins[0])
        if below is None or prod(below.shape) != prod(value.shape):
            return token
        token = below.token
    return token


def _laid_on(trace: Trace, total: Value) -> set[int]:
    """Graph-free values that go, element by element, into what is summed, by what they were made of."""
    found: set[int] = set()
    value: Value | None = total
    for _ in range(_STEPS):
        if value is None or value.op is None:
            break
        above = [v for t in value.op.ins if (v := trace.values.get(t)) is not None]
        found.update(_made_of(trace, v.token) for v in above if not v.graph and prod(v.shape) > 1)
        graph = [v for v in above if v.graph]
        if not graph or value.call is not None or (value.op.name not in VIEWS and len(graph) > 1):
            break
        value = graph[0]
    return found


__all__ = ["CLASS_LOSSES", "COUNTED", "COUNTS", "ZEROS", "ignored_index", "own_count"]
