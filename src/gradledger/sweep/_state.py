"""What flows between blocks: a tensor, or tensors nested in tuples, lists, dicts and TensorDicts, cut from its graph.

A boundary holds its tensors flat and detached.  A tensor that stands twice in a state stays one tensor, so that a block
sees the same object twice, as it would without us.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor


class Boundary:
    """The state between two blocks, detached.

    `flat` are the leaves of the nested state (tensors or anything else), `needs` says for each whether a gradient is to
    flow back through it, `spec` is the shape of the nesting (None: the state is one tensor).
    """

    __slots__ = ("flat", "needs", "spec")

    def __init__(self, flat: list[Any], needs: tuple[bool, ...], spec: pytree.TreeSpec | None) -> None:
        self.flat, self.needs, self.spec = flat, needs, spec

    def state(self) -> Any:
        """The state as a block takes it, with no graph."""
        return self.flat[0] if self.spec is None else pytree.tree_unflatten(self.flat, self.spec)

    def tensors(self) -> list[Tensor]:
        """Its tensors, each once."""
        return list({id(t): t for t in self.flat if isinstance(t, Tensor)}.values())


def data(state: Any, *, differentiate: bool = False) -> Boundary:
    """The boundary before the first block: what the user gives, as it is (never detached, never differentiated)."""
    if isinstance(state, Tensor):
        return Boundary([state], (differentiate and state.requires_grad,), None)
    flat, spec = pytree.tree_flatten(state)
    return Boundary(flat, tuple(differentiate and isinstance(t, Tensor) and t.requires_grad for t in flat), spec)


def cut(state: Any, needs: tuple[bool, ...] | None = None) -> tuple[Boundary, tuple[Tensor, ...]]:
    """Detach what a block returned.

    Returns the boundary and the block's outputs that carry a gradient, each once and in order.  `needs` overrides what
    the tensors say of themselves, for a run that kept no graph.
    """
    if isinstance(state, Tensor):
        if needs is None:
            if state.requires_grad:
                return Boundary([state.detach()], (True,), None), (state,)
            return Boundary([state], (False,), None), ()
        return Boundary([state.detach()], needs, None), ()
    flat, spec = pytree.tree_flatten(state)
    said = needs if needs is not None else tuple(isinstance(t, Tensor) and t.requires_grad for t in flat)
    once: dict[int, Tensor] = {}
    roots: list[Tensor] = []
    out: list[Any] = []
    for value, wanted in zip(flat, said, strict=True):
        if not isinstance(value, Tensor):
            out.append(value)
            continue
        known = once.get(id(value))
        if known is None:
            # a new handle wherever a leaf is to be made of it: what passed through is the held boundary's own tensor
            known = once[id(value)] = value.detach() if wanted or value.requires_grad else value
            if wanted:
                roots.append(value)
        out.append(known)
    return Boundary(out, said, spec), tuple(roots) if needs is None else ()


Opened = tuple[Any, tuple[Tensor, ...], list[Any]]


def open_up(boundary: Boundary, *, copies: bool, fresh: bool) -> Opened:
    """The state for a block that is recorded.

    `copies`: the block writes into its input, so it is given a copy of every tensor.  `fresh`: the boundary's own
    tensors stay untouched (they are held for a later run); else they become the leaves themselves.

    Returns:
        the state; its new leaves, one for each tensor that needs a gradient; the tensors it was given, flat.
    """
    if boundary.spec is None:
        value = boundary.flat[0]
        if not boundary.needs[0]:
            given = value.clone() if copies else value
            return given, (), [given]
        leaf = value.detach() if fresh else value
        leaf.requires_grad_(True)
        given = leaf.clone() if copies else leaf
        return given, (leaf,), [given]
    once: dict[int, Tensor] = {}
    leaves: list[Tensor] = []
    flat: list[Any] = []
    for value, wanted in zip(boundary.flat, boundary.needs, strict=True):
        if not isinstance(value, Tensor):
            flat.append(value)
            continue
        known = once.get(id(value))
        if known is None:
            if wanted:
                leaf = (value.detach() if fresh else value).requires_grad_(True)
                leaves.append(leaf)
                known = leaf.clone() if copies else leaf
            else:
                known = value.clone() if copies else value
            once[id(value)] = known
        flat.append(known)
    return pytree.tree_unflatten(flat, boundary.spec), tuple(leaves), flat


def look_at(boundary: Boundary, *, copies: bool) -> Any:
    """The state for a run that keeps no graph."""
    if not copies:
        return boundary.state()
    once = {id(t): t.detach().clone() for t in boundary.tensors()}
    flat = [once[id(t)] if isinstance(t, Tensor) else t for t in boundary.flat]
    return flat[0] if boundary.spec is None else pytree.tree_unflatten(flat, boundary.spec)


def same_bits(first: Any, second: Any) -> str | None:
    """None when two states are equal bit for bit (NaN equals NaN of the same bits), else what differs."""
    a, spec_a = pytree.tree_flatten(first)
    b, spec_b = pytree.tree_flatten(second)
    if spec_a != spec_b:
        return f"the nesting differs: {spec_a} and {spec_b}"
    for index, (x, y) in enumerate(zip(a, b, strict=True)):
        where = f"output {index}" if len(a) > 1 else "the output"
        if isinstance(x, Tensor) != isinstance(y, Tensor):
            return f"{where} is a {type(x).__name__} once and a {type(y).__name__} the other time"
        if isinstance(x, Tensor):
            if x.shape != y.shape or x.dtype != y.dtype or x.device != y.device:
                return f"{where} is {describe(x)} once and {describe(y)} the other time"
            if not equal_bits(x, y):
                return f"{where} differs in {count_unequal(x, y)} of {x.numel()} entries"
    return None


def equal_bits(x: Tensor, y: Tensor) -> bool:
    """Bit equality of two tensors; NaNs of the same bits are equal, +0 and -0 are not."""
    x, y = x.detach(), y.detach()
    if x.layout != y.layout or (x.layout is not torch.jagged and x.shape != y.shape) or x.dtype != y.dtype:
        return False
    if x.layout is torch.jagged:
        a: Any = x
        b: Any = y
        parts = zip((a.values(), a.offsets()), (b.values(), b.offsets()), strict=True)
        return all(equal_bits(one, other) for one, other in parts)
    if x.layout != torch.strided:
        x, y = x.coalesce() if x.is_sparse else x, y.coalesce() if y.is_sparse else y
        return bool(torch.equal(x.to_dense(), y.to_dense()))
    if torch.equal(x, y) and not (x.is_floating_point() or x.is_complex()):
        return True
    return bool(torch.equal(_bits(x), _bits(y)))


def count_unequal(x: Tensor, y: Tensor) -> int:
    """How many entries differ in their bits."""
    return int((_bits(x.detach()) != _bits(y.detach())).sum())


def describe(x: Tensor) -> str:
    """Shape, dtype and device, as errors name a tensor."""
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}"


def address_of(tensor: Tensor) -> int:
    """What tensors that share memory have in common, while they live; one without strides shares with none."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)


def what(state: Any) -> str:
    """A state as errors name it: its tensors, up to four."""
    tensors = [t for t in pytree.tree_leaves(state) if isinstance(t, Tensor)]
    if isinstance(state, Tensor):
        return describe(state)
    more = ", ..." if len(tensors) > 4 else ""
    return f"{type(state).__name__} of {', '.join(map(describe, tensors[:4])) or 'no tensors'}{more}"


_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(x: Tensor) -> Tensor:
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    if not x.is_floating_point():
        return x
    return x.contiguous().view(_WHOLE[x.element_size()])


def clone_all(state: Any) -> Any:
    """The same state with every tensor copied, graph and all; what is one tensor stays one."""
    if isinstance(state, Tensor):
        return state.clone()
    flat, spec = pytree.tree_flatten(state)
    once = {id(t): t.clone() for t in flat if isinstance(t, Tensor)}
    return pytree.tree_unflatten([once[id(t)] if isinstance(t, Tensor) else t for t in flat], spec)
