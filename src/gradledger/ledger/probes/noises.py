"""Regressions whose target is noise: is it the noise that was mixed into the input, or another draw of it?"""

from __future__ import annotations

from typing import Any

import torch

from gradledger.core.events import TargetDrawn
from gradledger.core.site import Site
from gradledger.ledger._naming import VIEWS
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session

LOOKS = 3  # with the same answer
SPOTS = 16
_COMPARES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub"})
_DRAWS = frozenset({"randn", "randn_like", "normal"})
_SAME = VIEWS | {"to", "float_cast", "clone", "detach"}
_VISITS = 400


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.trace = session.trace
        self.inputs: dict[int, tuple[int, ...]] = {}  # of calls of this iteration
        self.iteration = -1
        self.looks: dict[tuple[str, int], int] = {}  # -1: it is in order

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if call.iteration != self.iteration:
            self.iteration = call.iteration
            self.inputs.clear()
        if self.trace.active and call.grad_on and len(self.inputs) <= 64:
            self.inputs[call.number] = tuple(self.trace.token_of(t) for t in inputs if isinstance(t, torch.Tensor))

    def op_seen(self, op: Op, results: list[Value], args: Any) -> None:
        if op.name not in _COMPARES or op.in_forward or len(op.ins) != 2 or not self.inputs:
            return
        left, right = self.trace.values.get(op.ins[0]), self.trace.values.get(op.ins[1])
        if left is None or right is None or left.graph == right.graph or left.shape != right.shape:
            return
        prediction, target = (left, right) if left.graph else (right, left)
        key = op.site.key()
        looks = self.looks.get(key, 0)
        if not 0 <= looks < LOOKS or (not looks and len(self.looks) >= SPOTS):
            return
        drawn = self._drawn(target)
        found = self._mixed(prediction, drawn) if drawn is not None else None
        self.looks[key] = looks + 1 if found is not None else -1
        if found is None or drawn is None or drawn.op is None or self.looks[key] < LOOKS:
            return
        call, mixed = found
        self.session.recorder.emit(
            TargetDrawn, op.site, module=call.module, drawn_site=drawn.op.site, mixed_site=mixed
        )

    def _drawn(self, value: Value | None) -> Value | None:
        """The draw that a value is, as it was made."""
        for _ in range(8):
            if value is None or value.op is None or value.graph:
                return None
            if value.op.name in _DRAWS:
                return value
            if value.op.name not in _SAME or not value.op.ins:
                return None
            value = self.trace.values.get(value.op.ins[0])
        return None

    def _mixed(self, prediction: Value, drawn: Value) -> tuple[Call, Site] | None:
        """The call that made a prediction, and where a draw of the shape of `drawn` in its input was made; None when
        the input has no such draw, nothing but noise, `drawn` itself, or something that nobody knows any more."""
        call = self._call(prediction)
        queue = list(self.inputs.get(call.number, ())) if call is not None else []
        seen, mixed, data = set(queue), None, False
        while queue:
            token = queue.pop()
            value = self.trace.values.get(token)
            if value is None or token == drawn.token or len(seen) > _VISITS:
                return None
            if value.op is not None and value.op.name in _DRAWS and value.shape == drawn.shape:
                mixed = value.op.site
                continue
            below = value.op.ins if value.op is not None else ()
            data = data or not below
            queue += [t for t in below if t not in seen]
            seen.update(below)
        return (call, mixed) if call is not None and mixed is not None and data else None

    def _call(self, prediction: Value) -> Call | None:
        """The one call of this iteration below a value."""
        found: dict[int, Call] = {}
        queue, seen = [prediction.token], {prediction.token}
        while queue and len(seen) < _VISITS:
            value = self.trace.values.get(queue.pop(0))
            if value is not None and value.call is not None and value.call.number in self.inputs:
                found[value.call.number] = value.call
                continue
            below = value.op.ins if value is not None and value.op is not None else ()
            queue += [t for t in below if t not in seen]
            seen.update(below)
        return next(iter(found.values())) if len(found) == 1 else None


def install(session: Session) -> Undo:
    """Listen to calls and to operations that compare."""
    probe = _Probe(session)
    session.at_call.append(probe.called)
    session.trace.listeners.op.append(probe.op_seen)

    def undo() -> None:
        session.at_call.remove(probe.called)
        session.trace.listeners.op.remove(probe.op_seen)

    return undo
