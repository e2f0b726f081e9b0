"""Masks that reach one operand of a minimum of several values and not the others."""

from __future__ import annotations

from gradledger.core.site import Site
from gradledger.ledger._counts import ZEROS
from gradledger.ledger._naming import SELECTIONS
from gradledger.ledger._operations import Op, is_ref
from gradledger.ledger._provenance import CUTS, has_call
from gradledger.ledger._trace import Trace

_STEPS = 20


def uneven(trace: Trace, op: Op) -> Site | None:
    """Where the smallest of several values is taken, of which some are 0 at some places by a mask and others are not:
    `min(alive * q1, q2)`.  What is masked everywhere, or nowhere, has nothing uneven."""
    if op.name not in ("min", "minimum", "amin"):
        return None
    branches = op.ins
    if len(branches) == 1:  # torch.stack([alive * q1, q2]).min(0)
        below = trace.values.get(branches[0])
        if below is None or below.call is not None or below.op is None or below.op.name != "stack":
            return None
        branches = below.op.ins
    read = [_zeroed(trace, token) for token in branches]
    return op.site if len(read) > 1 and True in read and False in read and None not in read else None


def _zeroed(trace: Trace, token: int) -> bool | None:
    """Whether a mask with a zero multiplies the module output that a value is; None when the way to it is not plain."""
    for _ in range(_STEPS):
        value = trace.values.get(token)
        if value is None or value.graph:
            return None
        op = value.op
        if value.call is not None:
            return False
        if op is None or not op.ins:
            return None
        if op.name == "mul":
            sides = [int(o) for o in op.operands if is_ref(o)]
            with_call = [t for t in sides if has_call(trace, t)]
            if len(with_call) != 1:
                return None
            zeros = op.options.get(ZEROS, {})
            if any(zeros.get(t, (0, 0))[0] for t in sides if t not in with_call):
                return True
            token = with_call[0]
        elif (op.name in SELECTIONS or op.name in CUTS or op.name in ("neg", "clamp")) and op.name != "cat":
            token = op.ins[0]
        else:
            return None
    return None
