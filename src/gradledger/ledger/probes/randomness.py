"""Draws at random inside a module that is in eval mode: of functions that nobody told the mode, and of layers that its
`eval()` does not reach, since they are made in forward or kept in a list."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gradledger.core.events import RandomInEval
from gradledger.ledger import _site
from gradledger.ledger._often import Often
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._registry import tree
from gradledger.ledger._session import Session

_DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})
_ATTENTION = "scaled_dot_product_attention"


def _probability(op: Op) -> float:
    """The probability with which it drew; 0 when it did not."""
    if op.name in _DROPOUTS:
        return float(op.options.get("p", 0.5)) if op.options.get("training") else 0.0
    return float(op.options.get("dropout_p", 0.0))


def _out_of_reach(name: str, root: torch.nn.Module) -> str:
    """"function" where the program called the function itself, "module" where a layer did that is no part of `root`;
    "" where it is one: that has a mode of its own, which was set on purpose."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        if frame.f_code.co_name == name and not _site.is_user_code(frame.f_code):
            above = frame.f_back
            layer = above.f_locals.get("self")
            if isinstance(layer, torch.nn.Module) and not _site.is_user_code(above.f_code):
                return "module" if not any(part is layer for _, part in tree(root)) else ""
            return "function" if _site.is_user_code(above.f_code) else ""
        if _site.is_user_code(frame.f_code):
            return "function"  # of torch, that is not written in Python
        frame = frame.f_back
    return ""


def install(session: Session) -> Undo:
    """Listen to the operations of watched calls."""
    recorder, trace = session.recorder, session.trace
    often = Often()

    def op_seen(op: Op, results: list[Value], args: Any) -> None:
        if not op.in_forward or (op.name not in _DROPOUTS and op.name != _ATTENTION):
            return
        p = _probability(op)
        module = session.called()
        if p <= 0 or module is None or module.training:
            return
        how = _out_of_reach(op.name, module)
        if how and often.worth_telling((recorder.module_id(module), op.site.key())):
            recorder.emit(RandomInEval, op.site, module=recorder.module_id(module), op=op.name, p=p, how=how)

    trace.listeners.op.append(op_seen)
    return lambda: trace.listeners.op.remove(op_seen)
