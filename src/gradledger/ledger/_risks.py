"""Operations at a point where they, or their derivative, are not finite: the root of 0, a row that is masked entirely,
the deviation of one sample, the mean of none.

Looked at in the first iterations, before anything went wrong: when a value then is not finite, the operation that was
at such a point in the same iteration is the one to name.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch

MAX_CHECKED = 1_000_000  # elements of a tensor that is looked at


def risk(name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """Why the result or the derivative of operation `name` is not finite; "" when nothing says so.

    Args:
        name: the operation.
        args: its positional arguments.
        options: its plain keyword arguments.
    """
    tensor = next((a for a in args if isinstance(a, torch.Tensor)), None)
    if name in ("div", "rdiv"):
        tensor = args[1] if name == "div" and len(args) > 1 else args[0]
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.numel() > MAX_CHECKED:
        return ""
    if not tensor.is_floating_point():
        return ""
    if name in SIZES:
        return SIZES[name](tensor, args, options)
    return RISKS[name](tensor.detach(), args)


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
    if not isinstance(exponent, (int, float)) or (exponent == int(exponent) and exponent >= 0):
        return ""
    if exponent < 1 and bool((tensor == 0).any()):
        return f"0 raised to the power {exponent} has an infinite derivative"
    if exponent != int(exponent) and bool((tensor < 0).any()):
        return f"a negative number raised to the power {exponent} is NaN"
    return ""


def _large(tensor: torch.Tensor, args: Any) -> str:
    limit = 88.0 if tensor.dtype == torch.float32 else 700.0
    return f"exp of {float(tensor.max()):.3g} overflows" if tensor.numel() and float(tensor.max()) > limit else ""


def _one_sample(tensor: torch.Tensor, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """A deviation over so few samples that its divisor is 0 or less."""
    dims = options.get("dim", args[1] if len(args) > 1 and not isinstance(args[1], bool) else None)
    flags = [a for a in args[1:] if isinstance(a, bool)]
    correction = options.get("correction", options.get("unbiased", flags[0] if flags else True))
    sizes = tuple(tensor.shape) if dims is None else tuple(tensor.shape[d] for d in _each(dims))
    if not isinstance(correction, (bool, int, float)) or prod(sizes) - float(correction) > 0:
        return ""
    return f"a deviation over {prod(sizes)} sample(s) divides by 0"


def _each(dims: Any) -> tuple[int, ...]:
    return (dims,) if isinstance(dims, int) else tuple(d for d in dims if isinstance(d, int))


def _of_nothing(tensor: torch.Tensor, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    return "the mean of no elements is NaN" if not tensor.numel() and _is_mean(options) else ""


def _all_ignored(tensor: torch.Tensor, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """A mean over the targets that are not ignored, of which there is none."""
    target = args[1] if len(args) > 1 else None
    if not isinstance(target, torch.Tensor) or target.is_floating_point() or not _is_mean(options):
        return ""
    ignored = options.get("ignore_index", -100)
    return f"every target is ignore_index ({ignored}): the mean of no elements is NaN" if bool(
        (target == ignored).all()
    ) else ""  # fmt: skip


def _is_mean(options: Mapping[str, Any]) -> bool:
    return bool(options.get("reduction", "mean") == "mean")


def _outside_one(tensor: torch.Tensor, args: Any) -> str:
    return "an operand is -1 or less" if bool((tensor <= -1).any()) else ""


def _edge_of_probability(tensor: torch.Tensor, args: Any) -> str:
    edge = (tensor <= 0) | (tensor >= 1)
    return "an operand is exactly 0 or 1, or beyond" if len(args) < 2 and bool(edge.any()) else ""


# judged by sizes and options, not by values alone
SIZES = {
    "std": _one_sample,
    "var": _one_sample,
    "std_mean": _one_sample,
    "var_mean": _one_sample,
    "mean": _of_nothing,
    "mse_loss": _of_nothing,
    "l1_loss": _of_nothing,
    "smooth_l1_loss": _of_nothing,
    "huber_loss": _of_nothing,
    "binary_cross_entropy": _of_nothing,
    "binary_cross_entropy_with_logits": _of_nothing,
    "cross_entropy": _all_ignored,
    "nll_loss": _all_ignored,
}
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
    "log1p": _outside_one,
    "logit": _edge_of_probability,
}
