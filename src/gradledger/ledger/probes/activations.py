"""Activations that do not fit what they are given to: a softmax before a cross entropy, weights along another axis.

Each operation of a watched iteration is looked at once, by name; only a pair that does not fit is remembered, until a
reverse pass comes from it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from gradledger.core.events import ActivationFed
from gradledger.ledger._naming import VIEWS
from gradledger.ledger._often import Often
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session
from gradledger.ledger._trace import Trace

MAX_PENDING = 64
MAX_VISITS = 4000
MAX_FRAMES = 12
MAKERS = frozenset({"softmax", "log_softmax", "sigmoid"})
# Nothing but shape, precision, or values at the very edge.
_UNCHANGED = VIEWS | {"to", "double", "half", "bfloat16", "type", "clone", "clamp", "clip", "cpu", "cuda"}
_SAME_AXES = frozenset(
    {"to", "double", "half", "bfloat16", "type", "clone", "clamp", "clip", "cpu", "cuda", "contiguous",
     "dropout", "log"}
)  # fmt: skip
_SCORES = frozenset({"mul", "div", "add", "sub", "masked_fill", "where", "masked_fill_", "clamp", "to"})
# What must not be given to what: operation -> makers of its first operand.
_MISFITS = {
    "cross_entropy": {"softmax", "log_softmax", "sigmoid"},
    "nll_loss": {"softmax", "sigmoid"},
    "binary_cross_entropy_with_logits": {"sigmoid", "softmax"},
    "kl_div": {"softmax", "sigmoid"},
    "softmax": {"softmax"},
    "log_softmax": {"softmax"},
    "logsumexp": {"softmax"},
    "sigmoid": {"sigmoid"},
}
_OF_CLASSES = frozenset({"cross_entropy", "nll_loss", "binary_cross_entropy_with_logits"})
_PRODUCTS = frozenset({"matmul", "bmm", "einsum"})


def maker_of(trace: Trace, token: int, by_hand: bool = False) -> Value | None:
    """The activation whose result a value is, up to its shape; `by_hand`: also `e / e.sum(axis, keepdim=True)` of an
    exponential."""
    for _ in range(12):
        value = trace.values.get(token)
        if value is None or value.op is None:
            return None
        if value.op.name in MAKERS or (by_hand and _shares(trace, value.op) is not None):
            return value
        if value.op.name not in _UNCHANGED or not value.op.ins:
            return None
        token = value.op.ins[0]
    return None


def _kind(maker: Op) -> str:
    """The name of an activation; what else `maker_of` gives is a softmax by hand."""
    return maker.name if maker.name in MAKERS else "softmax"


def axis_of(op: Op, ndim: int) -> int | None:
    """The axis that a softmax was taken over, counted from the left; None when it was not said."""
    given = op.options.get("dim")
    if given is None:
        given = next((a for a in op.options.get("_args", ()) if type(a) is int), None)
    if type(given) is not int or not ndim:
        return None
    return given % ndim


def normalised(trace: Trace, token: int) -> tuple[Value, int] | None:
    """The softmax that a value comes from, and where its axis stands now; None when that cannot be told."""
    moves: list[tuple[int, int]] = []
    for _ in range(12):
        value = trace.values.get(token)
        if value is None or value.op is None:
            return None
        op, ndim = value.op, len(value.shape)
        shares = _shares(trace, op)
        if op.name in ("softmax", "log_softmax") or shares is not None:
            axis = axis_of(shares or op, ndim)
            if axis is None:
                return None
            for a, b in reversed(moves):
                axis = b if axis == a else a if axis == b else axis
            return value, axis
        if op.name in ("transpose", "swapaxes", "swapdims"):
            numbers = [a for a in op.options.get("_args", ()) if type(a) is int]
            if len(numbers) != 2:
                return None
            moves.append((numbers[0] % ndim, numbers[1] % ndim))
        elif op.name in ("t", "T", "mT"):
            moves.append((ndim - 2, ndim - 1))
        elif op.name == "unsqueeze":
            if axis_of(op, ndim) != ndim - 1:  # an axis at the end moves none
                return None
        elif op.name not in _SAME_AXES:
            return None
        if not op.ins:
            return None
        token = op.ins[0]
    return None


def _shares(trace: Trace, op: Op) -> Op | None:
    """The sum in `e / e.sum(axis, keepdim=True)` of an exponential: a softmax by hand."""
    if op.name != "div" or len(op.ins) != 2:
        return None
    above, below = trace.values.get(op.ins[0]), trace.values.get(op.ins[1])
    if above is None or above.op is None or above.op.name != "exp" or below is None or below.op is None:
        return None
    of_it = below.op.name == "sum" and tuple(below.op.ins) == (op.ins[0],)
    return below.op if of_it and len(above.shape) == len(below.shape) else None


def _contracted(op: Op, ndim: int) -> int | None:
    """The axis of the left operand that a product sums over."""
    if op.name != "einsum":
        return ndim - 1
    equation = next((a for a in op.options.get("_args", ()) if isinstance(a, str)), "")
    left, _, out = equation.replace(" ", "").partition("->")
    names = left.split(",")
    if len(names) != 2 or not out or "." in equation or len(names[0]) != ndim:
        return None
    gone = [i for i, letter in enumerate(names[0]) if letter not in out]
    return gone[0] if len(gone) == 1 else None


def _is_attention(trace: Trace, weights: Value) -> bool:
    """Whether weights were made from scores of everything against everything: a square product of two activations."""
    token = weights.op.ins[0] if weights.op is not None and weights.op.ins else -1
    for _ in range(8):
        value = trace.values.get(token)
        if value is None or value.op is None or not value.op.ins:
            return False
        op = value.op
        if op.name in _PRODUCTS:
            shape = value.shape
            sides = [trace.values.get(t) for t in op.ins]
            both = len(sides) == 2 and all(v is not None and v.graph and v.leaf is None for v in sides)
            return both and len(shape) >= 2 and shape[-1] == shape[-2] > 1
        if op.name not in _SCORES:
            return False
        inner = [t for t in op.ins if (v := trace.values.get(t)) is not None and v.graph and v.leaf is None]
        if len(inner) != 1:
            return False
        token = inner[0]
    return False


def _picked_axis(args: Any) -> int | None:
    """The axis along which `p[torch.arange(len(p)), label]` picks one number a row; None for any other index."""
    table, index = args[0], args[1] if len(args) > 1 else None
    if not isinstance(table, torch.Tensor) or table.dim() != 2 or not isinstance(index, tuple) or len(index) != 2:
        return None
    for axis, one in enumerate(index):
        if not isinstance(one, torch.Tensor) or one.dim() != 1 or one.dtype != torch.int64 or one.device.type != "cpu":
            return None
        if len(one) == table.shape[axis] and bool((one == torch.arange(len(one))).all()):
            return 1 - axis
    return None


def _inside(file: str, function: str) -> bool:
    """Whether a function of torch's distributions runs the operation that is looked at."""
    frame = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
            return str(frame.f_globals.get("__name__")).startswith("torch.distributions")
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


class _Probe:
    def __init__(self, session: Session) -> None:
        self.recorder, self.trace = session.recorder, session.trace
        self.often = Often()
        self.pending: dict[int, dict[str, Any]] = {}

    def op_seen(self, op: Op, results: list[Value], args: Any) -> None:
        """Remember an operation whose operand does not fit."""
        name = op.name
        if not results or not op.ins or not results[0].graph:
            return
        if name in _MISFITS:
            maker = maker_of(self.trace, op.ins[0], by_hand=name in _OF_CLASSES)
            if maker is not None and maker.op is not None and _kind(maker.op) in _MISFITS[name]:
                if name in ("softmax", "log_softmax", "logsumexp") and not self._same_axis(op, maker):
                    return
                self._pend(op, results[0], "input", maker)
                return
            if name == "kl_div" and len(op.ins) > 1:
                self._target(op, results[0])
            elif name == "nll_loss":
                self._classes(op, results[0], 1)
        elif name == "gather":
            value = self.trace.values.get(op.ins[0])
            axis = axis_of(op, len(value.shape)) if value is not None else None
            if axis is not None:
                self._classes(op, results[0], axis)
        elif name == "getitem":
            picked = _picked_axis(args)
            if picked is not None:
                self._classes(op, results[0], picked)
        elif name == "div" and len(op.ins) == 2 and _inside("categorical.py", "__init__"):
            self._classes(op, results[0], len(results[0].shape) - 1, "categorical")
        elif name == "sum":
            self._weighted(op, results[0])
        elif name in _PRODUCTS and len(op.ins) == 2:
            found = normalised(self.trace, op.ins[0])
            left = self.trace.values.get(op.ins[0])
            if found is None or left is None:
                return
            used = _contracted(op, len(left.shape))
            if used is None or used == found[1]:
                return
            if _is_attention(self.trace, found[0]):
                self._pend(op, results[0], "input", found[0], found[1], used)
            elif self._of_rows(found, used, op.ins[1]):
                self._pend(op, results[0], "input", found[0], 0, 1, "sum")

    def _weighted(self, op: Op, result: Value) -> None:
        """(weights * values).sum(1), the weights [B, K] normalised over the batch."""
        product = self.trace.values.get(op.ins[0])
        if product is None or product.op is None or product.op.name != "mul" or len(product.op.ins) != 2:
            return
        if axis_of(op, len(product.shape)) != 1:
            return
        for mine, other in (product.op.ins, product.op.ins[::-1]):
            found = normalised(self.trace, mine)
            if found is not None and self._of_rows(found, 1, other):
                self._pend(op, result, "input", found[0], 0, 1)

    def _of_rows(self, found: tuple[Value, int], used: int, other: int) -> bool:
        """Whether weights [B, K], normalised over the batch, are summed over K with values [B, K, ...]; [B, K, 1] are
        such weights, too."""
        values, shape = self.trace.values.get(other), found[0].shape
        while len(shape) > 2 and shape[-1] == 1:
            shape = shape[:-1]
        if values is None or found[1] != 0 or used != 1 or len(shape) != 2:
            return False
        return min(shape) > 1 and values.shape[:2] == shape

    def _same_axis(self, op: Op, maker: Value) -> bool:
        value = self.trace.values.get(op.ins[0])
        assert maker.op is not None
        if value is None or value.shape != maker.shape:
            return False
        mine, theirs = axis_of(op, len(value.shape)), axis_of(maker.op, len(maker.shape))
        return mine == theirs or mine is None or theirs is None

    def _target(self, op: Op, result: Value) -> None:
        """The target of a divergence: probabilities, or logarithms with `log_target=True`."""
        maker = maker_of(self.trace, op.ins[1])
        logs = op.options.get("log_target", False)
        if logs not in (True, False) or "_untold" in op.options or maker is None or maker.op is None:
            return
        if sum(a is True for a in op.options.get("_args", ())):  # given by position: which one it was is not told
            return
        if maker.op.name == ("softmax" if logs else "log_softmax"):
            self._pend(op, result, "target", maker)

    def _classes(self, op: Op, result: Value, used: int, name: str = "") -> None:
        """A class is picked along one axis out of probabilities that were normalised along another."""
        value = self.trace.values.get(op.ins[0])
        found = normalised(self.trace, op.ins[0])
        if found is None or value is None or len(value.shape) != 2 or value.shape[0] == value.shape[1]:
            return
        if found[1] != used and min(value.shape) > 1:
            self._pend(op, result, "input", found[0], found[1], used, name)

    def _pend(
        self,
        op: Op,
        result: Value,
        operand: str,
        maker: Value,
        axis: int | None = None,
        used: int | None = None,
        name: str = "",
    ) -> None:
        if len(self.pending) >= MAX_PENDING:
            self.pending = {t: f for t, f in self.pending.items() if t in self.trace.values}
        if maker.op is None or len(self.pending) >= MAX_PENDING:
            return
        self.pending[result.token] = {
            "site": op.site, "op": name or op.name, "operand": operand,
            "maker": _kind(maker.op), "maker_site": maker.op.site,
            "shape": maker.shape, "axis": axis, "used_axis": used,
        }  # fmt: skip

    def root_walked(self, root: torch.Tensor, site: Any) -> None:
        """Tell those that this loss was computed from."""
        if not self.pending or not self.trace.active:
            return
        queue = [self.trace.value_of(root).token]
        seen = set(queue)
        while queue and self.pending and len(seen) < MAX_VISITS:
            token = queue.pop()
            facts = self.pending.pop(token, None)
            if facts is not None:
                place = facts.pop("site")
                if self.often.worth_telling((place.key(), facts["maker_site"].key(), facts["op"])):
                    self.recorder.emit(ActivationFed, place, backward=self.recorder.backwards, **facts)
            value = self.trace.values.get(token)
            if value is None or value.op is None or not value.graph:
                continue
            for t in value.op.ins:
                if t not in seen:
                    seen.add(t)
                    queue.append(t)


def install(session: Session) -> Undo:
    """Listen to operations and reverse passes."""
    probe = _Probe(session)
    session.trace.listeners.op.append(probe.op_seen)
    session.at_root.append(probe.root_walked)

    def undo() -> None:
        session.trace.listeners.op.remove(probe.op_seen)

    return undo
