"""Records of the trace: values, the operations that made them, calls, exits and aliases.  Numbers and strings only."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy
import torch

from gradledger.core.site import NOWHERE, Site

SIMPLE = (bool, int, float, str)
_PLAIN = (torch.Tensor, *SIMPLE)
MOST_LISTED = 64
MOST_SUMMED = 1 << 16  # elements of an array


@dataclass(slots=True)
class Call:
    """A forward call that the program made itself.  `gap`: reverse passes before it; `marks` die with its graph;
    `carries`: an input carries a graph that is not just the state which the line's last call gave; `used`: its values
    went into a walked loss, through a graph or cut off; `moody`, `active`: see `ModuleCalled`; `differentiates`:
    a reverse pass ran within it; `given`: the known values that it was given."""

    number: int
    module: int
    site: Site
    training: bool
    grad_on: bool
    iteration: int
    order: int
    inputs_need_grad: bool = False
    output_has_graph: bool = False
    outputs: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    marks: tuple[weakref.ref[Any], ...] = ()
    walked: bool = False
    elements: int = 0
    batch: int = 0
    then: str = ""
    then_site: Site = NOWHERE
    gap: int = 0
    used: bool = False
    closed: bool = False
    moody: int = 0
    active: int = 0
    carries: bool = False
    differentiates: bool = False
    given: tuple[int, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether the graph of some output still exists."""
        return any(mark() is not None for mark in self.marks)


@dataclass(slots=True)
class Op:
    """One operation.  `operands`: arguments of elementwise operations (token or number); `ins`: all tensor tokens."""

    name: str
    site: Site
    ins: tuple[int, ...]
    operands: tuple[Any, ...]
    options: dict[str, Any]
    grad_on: bool
    order: int
    in_forward: bool
    inplace: bool = False


@dataclass(slots=True)
class Value:
    """One tensor value.  `leaf`: number of the followed tensor it is; `node`: sequence number of its grad_fn."""

    token: int
    op: Op | None
    shape: tuple[int, ...]
    graph: bool
    node: int
    iteration: int
    leaf: int | None = None
    floating: bool = True
    call: Call | None = None
    grad_input: bool = False  # result of autograd.grad without create_graph
    is_parameter: bool = False
    is_leaf: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """A value left the tensor world (`.item()`, `.numpy()`, ...)."""

    how: str
    token: int
    site: Site
    order: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor came from, as far as the trace remembers."""

    op: str
    site: Site
    in_init: bool
    in_forward: bool
    from_parameter: bool


@dataclass(slots=True)
class Alias:
    """`token` shares memory with the graph value `base`, behind autograd's back."""

    base: int
    how: str
    site: Site
    tensor: weakref.ref[torch.Tensor] | None = None  # the base itself


@dataclass(slots=True)
class AliasWrite:
    """An in-place write through an alias, waiting for a backward that uses the base.  `order`: of the operation.

    `below`: the node that the base is a view of, 0 if it is none: torch gives a view another node once its memory has
    been written; `whole`: the view covers all of that memory."""

    op: str
    site: Site
    alias: Alias
    base_node: int
    base_op: str
    base_site: Site
    order: int = 0
    below: int = 0
    whole: bool = True


@dataclass(slots=True)
class ArrayAlias:
    """An array that shares memory with a graph value; writes into it are seen by what they leave behind."""

    array: weakref.ref[Any]
    before: tuple[float, float]
    site: Site
    alias: Alias

    @property
    def written(self) -> bool:
        """Whether the elements are no longer those that the array was made with."""
        array = self.array()
        if array is None and self.alias.tensor is not None and (base := self.alias.tensor()) is not None:
            array = base.detach().numpy()
        return array is not None and fingerprint(array) != self.before


def fingerprint(array: Any) -> tuple[float, float]:
    """Two sums of the elements; equal ones mean equal elements, as far as a program goes."""
    flat = array.astype("float64").ravel()
    flat[~(abs(flat) < 1e300)] = 0.0
    return float(flat.sum()), float(flat @ flat)


class Token(int):
    """A token among operands, told apart from a plain number."""


def is_ref(operand: Any) -> bool:
    """Whether an operand of an elementwise operation is a token."""
    return isinstance(operand, Token)


def all_told(arguments: tuple[Any, ...]) -> bool:
    """Whether an operation is told in full by its tensors and plain arguments."""
    for a in arguments:
        if a is None or isinstance(a, _PLAIN):
            continue
        if not isinstance(a, (list, tuple)) or not all(isinstance(x, torch.Tensor) for x in a):
            return False
    return True


def tensors_of(out: Any) -> list[torch.Tensor]:
    """The tensors that an operation gave back."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, (tuple, list)):
        return [t for t in out if isinstance(t, torch.Tensor)]
    return []


@dataclass
class Listeners:
    """What the trace tells others, as it happens.  Each list is called in order; errors are contained."""

    op: list[Callable[[Op, list[Value], Any], None]] = field(default_factory=list)
    grad_set: list[Callable[[torch.Tensor, Any], None]] = field(default_factory=list)
    grad_read: list[Callable[[torch.Tensor, Any, FrameType], None]] = field(default_factory=list)
    flag_set: list[Callable[[torch.Tensor, bool, bool], None]] = field(default_factory=list)
    data_set: list[Callable[[torch.Tensor, torch.Tensor, int | None, float | None], None]] = field(default_factory=list)
    written: list[Callable[[torch.Tensor, torch.Tensor | None, str, float | None, Op], None]] = field(
        default_factory=list
    )
    user_frame: list[Callable[[FrameType], None]] = field(default_factory=list)
    made: list[Callable[[Op, list[Value], Any, list[torch.Tensor]], None]] = field(default_factory=list)
    ran: list[Callable[[Any, tuple[Any, ...], dict[str, Any], Op, list[Value]], None]] = field(default_factory=list)


def node_number(tensor: torch.Tensor) -> int:
    """Sequence number of the node that made a tensor; 0 without one."""
    try:
        grad_fn = tensor.grad_fn
    except RuntimeError:  # a view made under no_grad whose base was written since: it has no graph that could be walked
        return 0
    return grad_fn._sequence_nr() if grad_fn is not None else 0


def note_numbers(options: dict[str, Any], args: tuple[Any, ...], made: torch.Tensor) -> None:
    """What a tensor was made of that holds no tensor: the number, or of a list or array of floats their sum."""
    if made.numel() == 1:
        options["_value"] = float(made.item())
    elif args and isinstance(args[0], (list, tuple)) and 1 < len(args[0]) <= MOST_LISTED:
        if all(type(number) is float for number in args[0]):
            options["_listed"] = float(sum(args[0]))
    elif args and type(args[0]) is numpy.ndarray and args[0].dtype.kind == "f" and args[0].size <= MOST_SUMMED:
        options["_listed"] = float(args[0].sum())
