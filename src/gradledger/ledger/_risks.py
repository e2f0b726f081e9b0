"""Operations at a point where they, or their derivative, are not finite: the root of 0, a row that is masked entirely.

Looked at in the first iterations, before anything went wrong: when a value then is not finite, the operation that was
at such a point in the same iteration is the one to name.
"""

from __future__ import annotations

from typing import Any

import torch

MAX_CHECKED = 1_000_000  # elements of a tensor that is looked at


def risk(name: str, args: tuple[Any, ...]) -> str:
    """Why the result or the derivative of operation `name` on `args` is not finite; "" when nothing says so."""
    tensor = next((a for a in args if isinstance(a, torch.Tensor)), None)
    if name in ("div", "rdiv"):
        tensor = args[1] if name == "div" and len(args) > 1 else args[0]
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.numel() > MAX_CHECKED:
        return ""
    return RISKS[name](tensor.detach(), args) if tensor.is_floating_point() else ""


def _zero(tensor: torch.Tensor, args: Any) -> str:
    return "its derivative is infinite at 0, and an operand is exactly 0" if bool((tensor == 0).any()) else ""


def _not_positive(tensor: torch.Tensor, args: Any) -> str:
    return "an operand is 0 or negative" if bool((tensor <= 0).any()) else ""


def _divides_by_zero(tensor: torch.Tensor, args: Any) -> str:
    return "a divisor is exactly 0" if bool((tensor == 0).any()) else ""


def _edge_of_one(tensor: torch.Tensor, args: Any) -> str:
    return (
        "an operand is at or beyond 1 in size, where the derivative is infinite"
        if bool((tensor.abs() >= 1).any())
        else ""
    )


def _all_masked(tensor: torch.Tensor, args: Any) -> str:
    if not tensor.dim() or not tensor.numel() or not bool(torch.isneginf(tensor.amin())):
        return ""
    return "a whole row is -inf" if bool(torch.isneginf(tensor.amax(dim=-1)).any()) else ""


def _root_power(tensor: torch.Tensor, args: Any) -> str:
    exponent = args[1] if len(args) > 1 else None
    if isinstance(exponent, (int, float)) and exponent < 1 and exponent != 0 and bool((tensor == 0).any()):
        return f"0 raised to the power {exponent} has an infinite derivative"
    return ""


def _large(tensor: torch.Tensor, args: Any) -> str:
    limit = 88.0 if tensor.dtype == torch.float32 else 700.0
    return f"exp of {float(tensor.max()):.3g} overflows" if tensor.numel() and float(tensor.max()) > limit else ""


RISKS = {
    "sqrt": _zero,
    "rsqrt": _not_positive,
    "log": _not_positive,
    "log2": _not_positive,
    "log10": _not_positive,
    "div": _divides_by_zero,
    "rdiv": _divides_by_zero,
    "reciprocal": _divides_by_zero,
    "acos": _edge_of_one,
    "asin": _edge_of_one,
    "softmax": _all_masked,
    "log_softmax": _all_masked,
    "logsumexp": _all_masked,
    "arccos": _edge_of_one,
    "arcsin": _edge_of_one,
    "atanh": _edge_of_one,
    "pow": _root_power,
    "exp": _large,
    "cdist": _zero,
}
