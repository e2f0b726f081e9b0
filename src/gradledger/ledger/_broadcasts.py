"""Which accidental looking broadcasts a loss was computed from, elementwise, and which of them were meant.

A [B] against a [B, 1] gives a [B, B] matrix.  In a loss that is a mistake, unless somebody asked for a matrix: an
operand was reshaped for it, the matrix meets a genuine [B, B] matrix (a mask, a Gram matrix), or it is reduced along
one axis after a reshape.  Below matrix products and softmaxes matrices are ordinary, and so are constants and
parameters of a module that happen to be as long as the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from gradledger.ledger import _provenance
from gradledger.ledger._naming import EXPLICIT_SHAPES, LOSSES, VIEWS
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._recorder import Recorder
from gradledger.ledger._trace import Trace

MAX_VISITS = 600
_OPAQUE = frozenset(
    {
        "matmul", "mm", "bmm", "linear", "addmm", "baddbmm", "einsum", "embedding", "conv1d", "conv2d", "conv3d",
        "cdist", "outer", "scaled_dot_product_attention", "softmax", "log_softmax", "logsumexp", "cumsum", "sort",
        "topk", "pdist", "cross_entropy", "nll_loss", "multi_head_attention_forward", "layer_norm", "batch_norm",
        "tensordot", "bilinear", "autograd_grad",
    }
)  # fmt: skip
_MEETS = LOSSES | {
    *("add", "sub", "rsub", "mul", "div", "rdiv", "minimum", "maximum", "where", "min", "max", "masked_fill"),
}

_SUMS = frozenset({"add", "sub", "rsub"})
_LINEAR, _AVERAGED = 1, 2


@dataclass(frozen=True, slots=True)
class Wide:
    """A broadcast of [B] against [B, 1]: the operation, its operands, the shape they span."""

    op: Op
    left: Value
    right: Value
    out: tuple[int, ...]


def reached(trace: Trace, recorder: Recorder, root: int, wide: dict[int, Wide]) -> Iterator[tuple[Wide, bool, bool]]:
    """Broadcasts below `root`, each once; whether they were meant; and whether they change nothing: the mean over all
    pairs of a sum of two is the sum of the means."""
    # token; was it reduced along an axis further up; did it meet a genuine matrix there; is it inside a model; do only
    # sums, plain factors and a mean stand above it
    stack: list[tuple[int, bool, bool, bool, int]] = [(root, False, False, False, _LINEAR)]
    seen: set[int] = set()
    while stack and len(seen) < MAX_VISITS:
        token, by_axis, matrix, model, linear = stack.pop()
        value = trace.values.get(token)
        if token in seen or value is None or value.op is None:
            continue
        seen.add(token)
        op = value.op
        model = (model or _is_model(recorder, value)) and op.in_forward
        found = wide.get(token)
        if found is not None:
            yield (
                found,
                matrix or _asked_for(trace, found, by_axis) or (model and _has_constant(found)),
                linear == _AVERAGED and op.name in _SUMS,
            )
            continue
        if op.name in _OPAQUE:
            continue
        inputs = [v for t in op.ins if (v := trace.values.get(t)) is not None]
        by_axis = by_axis or (len(inputs) == 1 and prod(value.shape) > 1 and len(value.shape) < len(inputs[0].shape))
        squares = [v for v in inputs if _is_square(v.shape)] if op.name in _MEETS else []
        genuine = len(squares) > 1 and any(not _holds(trace, v.token, wide) for v in squares)
        linear = _linear(linear, op, value, inputs)
        stack.extend((t, by_axis, matrix or genuine, model, linear) for t in op.ins)


def _linear(above: int, op: Op, value: Value, inputs: list[Value]) -> int:
    """What stands above the inputs of an operation, when `above` stands above its result."""
    if op.name == "mean" and prod(value.shape) == 1:
        return _AVERAGED if above else 0
    plain = len(inputs) == 1 or any(prod(v.shape) == 1 for v in inputs)  # (a temperature is one number, too)
    same = op.name in _SUMS or op.name in VIEWS or op.name == "neg" or (op.name in ("mul", "div") and plain)
    return above if same else 0


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] == shape[1] > 1


def _is_model(recorder: Recorder, value: Value) -> bool:
    """The output of a module with parameters (a loss module has none)."""
    module = recorder.modules.get(value.call.module) if value.call is not None else None
    return module is not None and next(module.parameters(), None) is not None


def _has_constant(found: Wide) -> bool:
    """Whether an operand is no quantity of the batch: a parameter, or a tensor made before this iteration."""
    sides = (found.left, found.right)
    return any(v.is_parameter or v.leaf is not None or (v.op is None and not v.graph) for v in sides)


def _holds(trace: Trace, token: int, wide: dict[int, Wide]) -> bool:
    """Whether a value comes from one of the broadcasts by way of squares, but not through a layer."""
    queue, seen = [token], {token}
    while queue and len(seen) < 64:
        token = queue.pop()
        if token in wide:
            return True
        value = trace.values.get(token)
        if value is None or value.op is None or value.op.name in _OPAQUE:
            continue
        for t in value.op.ins:
            below = trace.values.get(t)
            if t not in seen and below is not None and _is_square(below.shape):
                seen.add(t)
                queue.append(t)
    return False


def _asked_for(trace: Trace, found: Wide, by_axis: bool) -> bool:
    """Whether an operand was given its shape for this broadcast, or both operands are one tensor."""
    for side in (found.left, found.right):
        made = _made_wide(trace, side)
        if made is not None and (side.graph or by_axis or made.site.key() == found.op.site.key()):
            return True
    return _provenance.strip(trace, found.left.token)[0] == _provenance.strip(trace, found.right.token)[0]


def _made_wide(trace: Trace, value: Value) -> Op | None:
    """The operation that gave a column its second axis, seen through arithmetic with plain numbers."""
    for _ in range(6):
        op = value.op
        below = trace.values.get(op.ins[0]) if op is not None and op.ins else None
        if op is None or below is None:
            return None
        if op.name in EXPLICIT_SHAPES:
            return op if len(value.shape) > len(below.shape) else None
        if len(op.ins) != 1 or below.shape != value.shape:
            return None
        value = below
    return None
