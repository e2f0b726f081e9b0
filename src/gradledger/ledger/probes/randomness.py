"""Functions that draw at random inside a module that is in eval mode, because nobody told them the mode."""

from __future__ import annotations

import sys
from typing import Any

from gradledger.core.events import RandomInEval
from gradledger.ledger import _site
from gradledger.ledger._often import Often
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session

_DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})
_ATTENTION = "scaled_dot_product_attention"


def _probability(op: Op) -> float:
    """The probability with which it drew; 0 when it did not."""
    if op.name in _DROPOUTS:
        return float(op.options.get("p", 0.5)) if op.options.get("training") else 0.0
    return float(op.options.get("dropout_p", 0.0))


def _called_by_program(name: str) -> bool:
    """Whether the program called the function itself: `nn.Dropout` has a mode of its own, which was set on purpose."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        if frame.f_code.co_name == name and not _site.is_user_code(frame.f_code):
            return _site.is_user_code(frame.f_back.f_code)
        if _site.is_user_code(frame.f_code):
            return True  # a function of torch that is not written in Python
        frame = frame.f_back
    return False


def install(session: Session) -> Undo:
    """Listen to the operations of watched calls."""
    recorder, trace = session.recorder, session.trace
    often = Often()

    def op_seen(op: Op, results: list[Value], args: Any) -> None:
        if not op.in_forward or (op.name not in _DROPOUTS and op.name != _ATTENTION):
            return
        p = _probability(op)
        module = session.called()
        if p <= 0 or module is None or module.training or not _called_by_program(op.name):
            return
        if often.worth_telling((recorder.module_id(module), op.site.key())):
            recorder.emit(RandomInEval, op.site, module=recorder.module_id(module), op=op.name, p=p)

    trace.listeners.op.append(op_seen)
    return lambda: trace.listeners.op.remove(op_seen)
