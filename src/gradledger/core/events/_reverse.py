"""Reverse passes and what becomes of graphs and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradledger.core.events._base import Event
from gradledger.core.events._parts import CallRef, Cut, Operand, Term
from gradledger.core.site import NOWHERE, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward(Event):
    """`loss.backward()`, `torch.autograd.backward` ("backward") or `torch.autograd.grad` ("grad").

    Always: `backward` id, `method`, `leaves` (followed tensors whose `.grad` it wrote; for "grad" the inputs asked
    for), `retain_graph`, `create_graph`, `raised` (message of the error that it raised, if any), `root_is_leaf`,
    `root_has_graph`, `value` (of a scalar root when known), `root_age` (iterations since the root was computed; None
    unknown). `repeats`: an earlier backward whose root is the very same tensor and whose contribution still stands in
    `.grad`. `covers`: earlier backwards (still standing) whose root is one of this root's additive terms.
    Detail (`detailed`): `terms`; `calls`: module calls reached by the walk; `reached`: leaves reachable, in the order
    found; `root_op`, `root_site`; `cuts`: cuts of the graph between this iteration's module calls and the root (when
    the root has no graph or reaches no optimizer tensor); `no_grad_site`: where grad mode was off while the root was
    computed; `seed`: the number that was handed to it (all over) as the gradient of its root; `alias_writes`: in-place
    writes through detached aliases into tensors this walk used.
    """

    KIND: ClassVar[str] = "backward"
    backward: int
    method: str
    leaves: tuple[int, ...]
    retain_graph: bool = False
    create_graph: bool = False
    raised: str = ""
    root_is_leaf: bool = False
    root_has_graph: bool = True
    value: float | None = None
    root_age: int | None = None
    repeats: int | None = None
    covers: tuple[int, ...] = ()
    detailed: bool = False
    root_op: str = ""
    root_site: Site = NOWHERE
    root_shape: tuple[int, ...] = ()
    terms: tuple[Term, ...] = ()
    calls: tuple[CallRef, ...] = ()
    reached: tuple[int, ...] = ()
    cuts: tuple[Cut, ...] = ()
    no_grad_site: Site = NOWHERE
    scaled: bool = False
    seed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Event):
    """A loss-like comparison inside what a backward walked: `op` is mse_loss, smooth_l1_loss, l1_loss, huber_loss,
    kl_div, cross_entropy, ..., or "difference" (a - b, then squared/abs).  `site` is its line; `backward` the walk."""

    KIND: ClassVar[str] = "comparison"
    backward: int
    op: str
    left: Operand
    right: Operand
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast(Event):
    """Arithmetic or a loss broadcast [B] against [B, 1] (either order) into [B, B], or, in a loss call, unequal shapes.

    `explicit`: an operand was expanded on purpose (its immediate producer is unsqueeze, None-indexing or a view written
    in the same expression, or both come from one tensor).  `has_graph`: an operand carries a graph.  `harmless`: a sum
    of the two of which the loss is a mean, without anything but plain factors in between: its value and gradient are
    those of the sum row by row."""

    KIND: ClassVar[str] = "broadcast"
    op: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]
    has_graph: bool
    explicit: bool
    left_site: Site = NOWHERE
    right_site: Site = NOWHERE
    harmless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasWritten(Event):
    """An in-place write through an alias that shares storage with a graph tensor (`alias_how`: detach, data, numpy)
    which a later backward walked.  `site`: the write; `alias_site`: where the alias was taken; `base_site`: what made
    the
    tensor."""

    KIND: ClassVar[str] = "alias_written"
    backward: int
    op: str
    alias_how: str
    alias_site: Site
    base_op: str
    base_site: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite(Event):
    """First non-finite value seen.  `what`: loss, gradient, parameter, output.  `tensor`: which leaf; `op`, `op_site`:
    the operation suspected, with `reason` (for instance "sqrt at 0 has an infinite derivative")."""

    KIND: ClassVar[str] = "non_finite"
    what: str
    tensor: int | None = None
    op: str = ""
    op_site: Site = NOWHERE
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphsAlive(Event):
    """Graphs of past iterations are still referenced.  `alive` of the last `looked` results made at `made_site` (a loss
    or a module output; `what`) still carry their graph after `age` iterations; `growing`: a running tensor adds each
    iteration's graph to the one before, at `site`."""

    KIND: ClassVar[str] = "graphs_alive"
    what: str
    alive: int
    looked: int
    age: int
    made_site: Site
    growing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDiscarded(Event):
    """Forward calls of `module` at `site` recorded a graph that was freed, or thrown away, without any backward.
    `calls`: how many so far; `walked`: how many from the same line were walked; `then`: "detach" | "item" | "" and its
    site: what the program did with the output; `training`; `inputs_need_grad`: the input carried a graph; `in_a_row`:
    the most of them without a reverse pass in between; `used`: how many had outputs whose values, cut off, went into a
    walked loss; `since`: the iteration of the first."""

    KIND: ClassVar[str] = "graph_discarded"
    module: int
    calls: int
    walked: int
    then: str
    then_site: Site
    training: bool
    inputs_need_grad: bool
    elements: int = 0
    in_a_row: int = 0
    used: int = 0
    since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationFed(Event):
    """In a walked loss, `op` at `site` was given the result of the activation `maker` (softmax, log_softmax, sigmoid),
    with changes of shape at most in between; told where the two do not fit each other.

    `operand`: "input" or "target"; `axis`: the axis that `maker` normalised, `used_axis`: the one along which `op`
    takes the result for normalised (counted from the left; None: does not matter)."""

    KIND: ClassVar[str] = "activation_fed"
    backward: int
    op: str
    operand: str
    maker: str
    maker_site: Site
    shape: tuple[int, ...] = ()
    axis: int | None = None
    used_axis: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed(Event):
    """Something ran inside `torch.utils.checkpoint` (called at `site`), or is run again by the backward of a Function
    (at `site`), that the second run does not repeat alike.

    `what`: "random" (`op` drew random numbers, and `preserve_rng_state` was off or, with `compared`, they differed),
    "state" (`op` is the first to make something else the second time) or "statistics" (the running statistics of `op`
    were moved by the forward and once more by its recomputation).  `op_site`: the line that ran it; `asked_site`: the
    line that called the function with the recompute."""

    KIND: ClassVar[str] = "recomputed"
    what: str
    op: str
    op_site: Site = NOWHERE
    compared: bool = False
    asked_site: Site = NOWHERE
