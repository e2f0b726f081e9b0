"""Weighted averages of a parameter and a tensor beside it, read from the operations that made them.

`s.mul_(d).add_(p, alpha=1 - d)`, `s.lerp_(p, 1 - d)`, `d * s + (1 - d) * p` and `s + (1 - d) * (p - s)` are one thing:
plain weights that make one, on a parameter and on something that is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradledger.ledger._operations import Op, Token, Value, is_ref
from gradledger.ledger._trace import Trace

_SUMS = frozenset({"add", "sub"})
BLENDS = _SUMS | {"lerp", "lerp_"}
_DEPTH = 3
_NEAR = 1e-4  # of weights that were written as plain numbers


@dataclass(frozen=True, slots=True)
class Blend:
    """`parameter`: number of the followed tensor; `tau`: its weight; `other`: token of the value that it is blended
    with, as it stood before (None: the parameter's own memory)."""

    parameter: int
    tau: float
    other: int | None


def blend_of(trace: Trace, op: Op, result: Value) -> Blend | None:
    """The average that an operation ends, if it does."""
    if op.name not in BLENDS or len(op.ins) != 2 or not result.floating:
        return None
    stands: list[tuple[int | None, int, float]] = []  # (parameter or None, token, weight)
    if not all(_stand(trace, token, weight, 0, stands) for token, weight in _operands(op)):
        return None
    weights: dict[tuple[int | None, int], float] = {}
    for parameter, token, weight in stands:
        key = (parameter, 0 if parameter is not None else token)
        weights[key] = weights.get(key, 0.0) + weight
    mine = {k[0]: w for k, w in weights.items() if k[0] is not None}
    others = {k[1]: w for k, w in weights.items() if k[0] is None}
    if len(mine) != 1 or abs(sum(weights.values()) - 1.0) > _NEAR:
        return None
    (parameter, tau), shares = next(iter(mine.items())), [w for _, _, w in stands]
    if len(others) == 1 and 0.0 < tau < 1.0:
        if op.inplace and stands[0][0] is not None:
            return None  # the parameter is drawn to something, which is no average of it
        return Blend(parameter, tau, next(iter(others)))
    if not others and len(stands) == 2 and all(0.0 < w < 1.0 for w in shares) and op.inplace:
        return Blend(parameter, min(shares), None)
    return None


def of_itself(trace: Trace, token: int, leaf: int | None) -> float | None:
    """The smaller weight of a value that blends a followed tensor with itself and nothing else; None for any other."""
    stands: list[tuple[int | None, int, float]] = []
    if leaf is None or not _stand(trace, token, 1.0, 0, stands) or len(stands) < 2:
        return None
    shares = [weight for _, _, weight in stands]
    if any(p != leaf for p, _, _ in stands) or abs(sum(shares) - 1.0) > _NEAR or min(shares) <= 0.0:
        return None
    return min(shares)


def _operands(op: Op) -> list[tuple[int, float]]:
    """The two operands of a blend with their weights."""
    if op.name in ("lerp", "lerp_"):
        weight = op.options.get("weight", (op.options.get("_args") or (None,))[-1])
        if not isinstance(weight, (int, float)):
            return []
        return [(op.ins[0], 1.0 - weight), (op.ins[1], float(weight))]
    alpha = float(op.options.get("alpha", 1.0))
    return [(op.ins[0], 1.0), (op.ins[1], -alpha if op.name == "sub" else alpha)]


def _stand(
    trace: Trace, token: int, weight: float, depth: int, found: list[tuple[int | None, int, float]]
) -> bool:
    """Add what a value is made of, in this iteration and by plain weights alone; False where it is something else."""
    value = trace.values.get(token)
    if value is None or not value.floating:
        return False
    op = value.op if value.iteration == trace.recorder.iteration and depth < _DEPTH else None
    numbers = [o for o in op.operands if isinstance(o, (int, float)) and not isinstance(o, Token)] if op else []
    if op is not None and op.name in ("mul", "div") and len(op.ins) == 1 and len(numbers) == 1:
        if op.name == "div" and (not numbers[0] or not is_ref(op.operands[0])):
            return False
        factor = 1.0 / numbers[0] if op.name == "div" else float(numbers[0])
        return _stand(trace, op.ins[0], weight * factor, depth + 1, found)
    parameter = _parameter(trace, value)
    if parameter is not None:
        found.append((parameter, token, weight))
        return True
    if op is not None and op.name in _SUMS and len(op.ins) == 2 and not op.inplace:
        return all(_stand(trace, t, weight * w, depth + 1, found) for t, w in _operands(op))
    found.append((None, token, weight))
    return True


def _parameter(trace: Trace, value: Value) -> int | None:
    """The followed tensor that a value is, or whose memory it is."""
    held = trace.param_aliases.get(value.token)
    tensor = held() if held is not None else None
    if tensor is not None:
        return trace.recorder.tensors.find(tensor)
    return value.leaf


__all__ = ["BLENDS", "Blend", "blend_of", "of_itself"]
