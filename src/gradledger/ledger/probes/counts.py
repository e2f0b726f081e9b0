"""How many elements count: targets that a loss does not ignore, the sums that masks are counted by, and the zeros of
what a value without graph is multiplied with.

A mean is over the elements that count, and a sum over a masked loss that is divided by the sum of its mask is a mean.
These numbers are values and not shapes, so they are read when they are there; see `_counts` for what follows from them.
"""

from __future__ import annotations

from typing import Any

import torch

from gradledger.ledger._counts import CLASS_LOSSES, COUNTED, COUNTS, ZEROS, ignored_index
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session
from gradledger.ledger._values import readable

MOST = 1 << 22  # targets of one loss that are looked at
MOST_MASKED = 1 << 16  # elements of one mask


def install(session: Session) -> Undo:
    """Listen to the operations of watched iterations."""
    trace = session.trace

    def made(op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        if op.name in COUNTS:
            if not results[0].graph and outs[0].numel() == 1 and readable(outs[0]) and not outs[0].is_complex():
                op.options[COUNTED] = float(outs[0])
        elif op.name in CLASS_LOSSES and len(args) > 1 and isinstance(args[1], torch.Tensor):
            target = args[1]
            if target.is_floating_point() or not readable(target) or target.numel() > MOST:
                return
            left = int((target != ignored_index(op)).sum())
            if left < target.numel():
                op.options[COUNTED] = float(left)
        elif op.name == "mul" and not op.in_forward and not results[0].graph and len(op.ins) == 2:
            zeros = {t: _zeros(a) for t, a in zip(op.ins, args, strict=False) if isinstance(a, torch.Tensor)}
            op.options[ZEROS] = {t: z for t, z in zeros.items() if z is not None}

    trace.listeners.made.append(made)
    return lambda: trace.listeners.made.remove(made)


def _zeros(operand: torch.Tensor) -> tuple[int, int] | None:
    n = operand.numel()
    if not 1 < n <= MOST_MASKED or not readable(operand):
        return None
    return n - int(torch.count_nonzero(operand.detach())), n
