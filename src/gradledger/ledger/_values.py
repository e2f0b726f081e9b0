"""Looks at values of registered tensors: a few elements, on the CPU only, changing nothing.

Call under the recorder's guard: every torch function here runs unwatched.
"""

from __future__ import annotations

import torch

from gradledger.ledger._registry import tree_tensors

MAX_TENSORS = 8  # of one module, spread evenly
MAX_ELEMENTS = 16  # of one tensor
ALL_OVER = 1 << 16  # elements of one tensor that are looked through for one number
MAX_COMPARED = 1 << 20  # elements of all buffers together that are compared whole


def readable(tensor: torch.Tensor) -> bool:
    """Whether reading elements is cheap and waits for no device."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.numel() > 0
    )


def elements(tensor: torch.Tensor, limit: int = MAX_ELEMENTS) -> tuple[float, ...]:
    """Some elements, spread evenly over the tensor; none of a large one that lies scattered in memory."""
    if not tensor.is_contiguous() and tensor.numel() > MAX_COMPARED:
        return ()
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // limit)
    values = flat[::step][:limit].tolist()
    return tuple(float(abs(v)) if isinstance(v, complex) else float(v) for v in values)


def number_of(tensors: list[torch.Tensor]) -> float | None:
    """The value of one tensor of one element, or of one that holds the same number all over; None for any other."""
    if len(tensors) != 1 or torch._C._functorch.is_functorch_wrapped_tensor(tensors[0]):
        return None
    tensor = tensors[0]
    if not readable(tensor) or not 0 < tensor.numel() <= ALL_OVER or tensor.is_complex():
        return None
    with torch._C.DisableTorchFunction():
        flat = tensor.detach().reshape(-1)
        first = float(flat[0].item())
        return first if flat.numel() == 1 or bool((flat == first).all()) else None


def print_of(module: torch.nn.Module) -> tuple[float, ...]:
    """A few elements of a few of the tensors of a tree: equal prints mean that it most likely has not changed.

    NaN is told as a number, so that two prints with NaN can be equal.
    """
    tensors = [t for _, t in tree_tensors(module).values() if readable(t) and t.is_floating_point()]
    chosen = tensors[:: max(1, len(tensors) // MAX_TENSORS)][:MAX_TENSORS]
    return tuple(1e308 if v != v else v for t in chosen for v in elements(t))


def floating_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Floating buffers of a tree by path."""
    return {k: t for k, (role, t) in tree_tensors(module).items() if role == "buffer" and t.is_floating_point()}


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same shape and values (NaN equals NaN)."""
    return a.shape == b.shape and (torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all()))


def buffers_that_differ(source: torch.nn.Module, target: torch.nn.Module) -> tuple[str, ...]:
    """Paths of floating buffers that both trees have and whose values differ."""
    mine, yours = floating_buffers(source), floating_buffers(target)
    left = MAX_COMPARED
    found = []
    for path, tensor in mine.items():
        other = yours.get(path)
        if other is None or not readable(tensor) or not readable(other):
            continue
        left -= tensor.numel()
        if left < 0:
            break
        if not equal(tensor, other):
            found.append(path)
    return tuple(found[:32])


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape begin at the same place in memory."""
    strided = a.layout == b.layout == torch.strided and a.device == b.device and a.device.type != "meta"
    return strided and a.shape == b.shape and a.numel() > 0 and a.data_ptr() == b.data_ptr()


__all__ = [
    "buffers_that_differ",
    "elements",
    "equal",
    "floating_buffers",
    "print_of",
    "readable",
    "same_memory",
]
