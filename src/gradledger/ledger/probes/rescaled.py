"""Gradients that the program multiplies in place by a plain number: accumulated sums that it divides by how many."""

from __future__ import annotations

from typing import Any

import torch

from gradledger.ledger._operations import Op, Value, is_ref
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session


def install(session: Session) -> Undo:
    """Listen to the operations of watched iterations."""
    trace, lifecycle = session.trace, session.lifecycle

    def made(op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        if not op.inplace or results[0].graph or trace.optimizer_running:
            return
        if op.name in ("mul", "div") and len(op.operands) == 2 and not is_ref(op.operands[1]):
            _told(op.name, [args[0]], op.operands[1])
        elif op.name in ("_foreach_mul_", "_foreach_div_") and len(args) > 1 and isinstance(args[0], (list, tuple)):
            _told(op.name[9:12], list(args[0]), args[1])

    def _told(name: str, tensors: list[Any], number: Any) -> None:
        if isinstance(number, (int, float)) and number:
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor):
                    lifecycle.multiplied(tensor, number if name == "mul" else 1 / number)

    trace.listeners.made.append(made)
    return lambda: trace.listeners.made.remove(made)
