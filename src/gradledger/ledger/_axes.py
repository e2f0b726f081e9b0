"""Whether a network was asked at points along one axis: at t and at t + dt, or on a grid that stands.

Then its values at both are compared as the ends of one step (the residual of an equation), and the form `b + a * u(t)`
of one side is no target: the gradient is meant to flow into both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gradledger.ledger._operations import Value
from gradledger.ledger._provenance import MAX_VISITS, content
from gradledger.ledger._trace import Trace

_SHIFTS = frozenset({"add", "sub", "rsub"})
_JOINS = frozenset({"cat", "concat", "concatenate", "stack", "column_stack", "hstack"})
_DEEPEST = 20

Base = int | tuple["Base", ...]


def along_one_axis(trace: Trace, one: int, other: int) -> bool:
    """Whether two values come from a module at inputs that differ by plain numbers alone, or from one call whose input
    is older than this iteration: a grid, where a trajectory would be another one each time."""
    theirs = list(_outputs(trace, other))
    for mine in _outputs(trace, one):
        for its in theirs:
            if mine.call is None or its.call is None or mine.call.module != its.call.module:
                continue
            if mine.call is its.call:
                if any(token < trace.first_token for token in _inputs(trace, mine)):
                    return True
            else:
                first, second = _inputs(trace, mine), _inputs(trace, its)
                if any(a != b and _base(trace, a) == _base(trace, b) for a in first for b in second):
                    return True
    return False


def _outputs(trace: Trace, start: int) -> Iterator[Value]:
    """The nearest outputs of module calls below a value."""
    queue, seen = deque([start]), {start}
    while queue and len(seen) < MAX_VISITS:
        value = trace.values.get(queue.popleft())
        if value is None:
            continue
        if value.call is not None:
            yield value
        elif value.op is not None:
            fresh = [t for t in value.op.ins if t not in seen]
            seen.update(fresh)
            queue.extend(fresh)


def _inputs(trace: Trace, output: Value) -> set[int]:
    """What went into the call that gave this value: tokens that were made outside of it and are no parameters."""
    found: set[int] = set()
    queue, seen = deque([output.token]), {output.token}
    while queue and len(seen) < MAX_VISITS:
        token = queue.popleft()
        value = trace.values.get(token)
        if value is None or value.is_parameter or value.leaf is not None:
            continue
        if value.op is None or not value.op.in_forward:
            found.add(token)
            continue
        fresh = [t for t in value.op.ins if t not in seen]
        seen.update(fresh)
        queue.extend(fresh)
    return found


def _base(trace: Trace, token: int, depth: int = 0) -> Base:
    """A value without what plain numbers were added to it; of joined values, that of each."""
    for _ in range(_DEEPEST):
        token = content(trace, token)[0]
        value = trace.values.get(token)
        if value is None or value.op is None or value.op.inplace:
            break
        op = value.op
        if op.name in _JOINS and depth < 3:
            return tuple(_base(trace, t, depth + 1) for t in op.ins)
        moved = [t for t in op.ins if not _is_number(trace, t)]
        if op.name not in _SHIFTS or len(moved) != 1:
            break
        token = moved[0]
    return token


def _is_number(trace: Trace, token: int) -> bool:
    """Whether a value is one number that no other is made from: a step such as `torch.tensor(0.1)`."""
    value = trace.values.get(token)
    return value is not None and value.shape in ((), (1,)) and not value.graph
