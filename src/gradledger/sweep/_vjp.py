"""One local vector-Jacobian product: the only place that calls the autograd engine.

The engine's own entry point costs 3 to 4 microseconds a call, `torch.autograd.backward` and `grad` 11 to 19 (a
two-layer block on one CPU core, PyTorch 2.13); a sweep calls it once a block.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Root = Tensor | GradientEdge

_run: Any = torch.autograd.Variable._execution_engine.run_backward


def accumulate(roots: tuple[Root, ...], d_out: tuple[Tensor, ...], *, keep: bool = False) -> None:
    """Add the products of `d_out` with the Jacobians of `roots` into `.grad` of every leaf; the leaves' hooks fire."""
    _run(roots, d_out, keep, False, (), True, True)


def accumulate_into(
    roots: tuple[Root, ...], d_out: tuple[Tensor, ...], leaves: tuple[Tensor, ...], *, keep: bool
) -> None:
    """Like `accumulate`, into these leaves alone."""
    _run(roots, d_out, keep, False, leaves, True, True)


def capture(
    roots: tuple[Root, ...], d_out: tuple[Tensor, ...], leaves: tuple[Tensor, ...], *, keep: bool = False
) -> Sequence[Tensor | None]:
    """The products with respect to `leaves`, exactly as the engine hands them on; nothing is accumulated."""
    return _run(roots, d_out, keep, False, leaves, True, False)  # type: ignore[no-any-return]


def accumulate_and_observe(
    roots: tuple[Root, ...], d_out: tuple[Tensor, ...], leaves: tuple[Tensor, ...]
) -> list[Tensor | None]:
    """Like `accumulate`; returns what the engine hands to `leaves` (their `.grad` is left None)."""
    seen: list[Tensor | None] = [None] * len(leaves)
    handles = [
        leaf.register_hook(functools.partial(seen.__setitem__, k))  # type: ignore[no-untyped-call]
        for k, leaf in enumerate(leaves)
    ]
    try:
        accumulate(roots, d_out)
    finally:
        for handle in handles:
            handle.remove()
        for leaf in leaves:
            leaf.grad = None
    return seen


LARGE = 1 << 20
"""Bytes from which on a cotangent is handed over: below, the some 30 microseconds that it takes are not worth it."""


def hand_over(roots: Sequence[Root], d_out: list[Tensor]) -> None:
    """Let the engine own these cotangents, so that each is freed as soon as it has been used.

    Whoever calls the engine holds what it passes until the engine returns, a whole cotangent longer than the engine
    itself would in one long backward.  So `d_out` is filled with handles of its own on the same memory; when the turn
    of a root's node comes, the node is given another one and the caller's is emptied.  A hook of the user's that runs
    before may have kept the handle: then it stays as it is.
    """
    alone = _holders_of_one_handed_over()
    seen: set[int] = set()
    nodes: set[Any] = set()
    for root, d in zip(roots, d_out, strict=True):
        node, number = (root.grad_fn, root.output_nr) if isinstance(root, Tensor) else (root.node, root.output_nr)
        if d.layout is not torch.strided or d.nbytes < LARGE or node is None:
            continue
        if id(d) in seen or node in nodes or (isinstance(root, Tensor) and root.is_leaf):
            return  # one tensor for several roots, or several roots at one node: leave the rest as it is
        seen.add(id(d))
        nodes.add(node)
    for k, root in enumerate(roots):
        if id(d_out[k]) in seen:
            node, number = (root.grad_fn, root.output_nr) if isinstance(root, Tensor) else (root.node, root.output_nr)
            d_out[k] = d_out[k].detach()
            _hand_over(node, number, d_out[k], alone)


def _hand_over(node: Any, number: int, d: Tensor, alone: int) -> None:
    def take(given: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        mine = given[number]
        if mine is d and sys.getrefcount(d) > alone:
            return given  # somebody has kept it
        again = mine.detach() if mine is d else mine  # else others have been added to it already
        d.data = torch.empty((), dtype=d.dtype, device=d.device).expand(d.shape)
        return (*given[:number], again, *given[number + 1 :])

    node.register_prehook(take)


@functools.cache
def _holders_of_one_handed_over() -> int:
    """References to a handle that nobody else has kept: the caller's list and tuple, the closure, what it was given.

    Counted, since interpreters differ.
    """
    counted = [0]

    def handed(node: Any, d: Tensor) -> None:
        def take(given: tuple[Tensor | None, ...]) -> None:
            mine = given[0]
            if mine is d:
                counted[0] = sys.getrefcount(d)

        node.register_prehook(take)

    with torch.enable_grad():
        root = torch.ones((), requires_grad=True) * 1
    d_out = [torch.ones(())]
    handed(root.grad_fn, d_out[0])
    accumulate((root,), tuple(d_out))
    return counted[0]


def give(parameter: Tensor, gradient: Tensor, taken: Sequence[Tensor | None], *, by_engine: bool = False) -> None:
    """Do to `parameter.grad` what the engine's accumulation would have done with `gradient`.

    `taken` are tensors that stay in use (cotangents): a gradient that is one of them, or shares memory with anything,
    is copied first.  Hooks that run after accumulation fire; hooks on the tensor itself fired when it was captured.
    `by_engine`: let the engine do it, for something hangs on the node that accumulates (it copies, then).
    """
    owned = gradient.layout is torch.strided and _alone(gradient, taken)
    if parameter.grad is None and not by_engine:
        if gradient.layout is not torch.strided:
            parameter.grad = gradient.clone()
        elif owned and gradient.stride() == parameter.stride():
            # As the engine does it, so that `.grad` is no view of a base that nobody can see.
            parameter.grad = gradient.detach() if gradient._is_view() else gradient
        else:
            parameter.grad = _like(parameter, gradient)
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if hooks:
            for hook in tuple(hooks.values()):
                hook(parameter)
        return
    hooks, parameter._backward_hooks = parameter._backward_hooks, None
    try:
        _run((parameter,), (gradient,), False, False, (), True, True)
    finally:
        parameter._backward_hooks = hooks


def _alone(tensor: Tensor, taken: Sequence[Tensor | None]) -> bool:
    """Whether nothing but this tensor holds its memory, all of which it covers.

    A linear layer's weight gradient comes as a view, the transpose of a transpose: its base is nobody else's then.
    """
    if any(tensor is other for other in taken):
        return False
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.numel() * tensor.element_size() or tensor._use_count() != 1:  # type: ignore[attr-defined]
        return False
    # the tensor and the handle just made hold the memory; the caller's list holds the object
    holders: int = torch._C._storage_Use_Count(storage._cdata)
    return holders == 2 or (holders == 3 and tensor._is_view() and _holders_of_base(tensor) == _holders_of_own_base())


def _holders_of_base(view: Tensor) -> tuple[int, int]:
    """Who holds what a tensor is a view of: in C++, and its object in python."""
    base = view._base
    return base._use_count(), sys.getrefcount(base)  # type: ignore[union-attr]


@functools.cache
def _holders_of_own_base() -> tuple[int, int]:
    """The same where nobody but the view does. Counted, since versions differ."""
    with torch.no_grad():
        return _holders_of_base(torch.ones(2, 3).t())


def _like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """A copy with the parameter's strides where they are dense, contiguous otherwise."""
    return torch.empty_like(parameter, requires_grad=False, memory_format=torch.preserve_format).copy_(gradient)
