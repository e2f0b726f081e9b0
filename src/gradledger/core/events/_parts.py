"""What events are made of."""

from __future__ import annotations

from dataclasses import dataclass

from gradledger.core.site import NOWHERE, Site


@dataclass(frozen=True, slots=True)
class Group:
    """One parameter group: tensor ids, learning rate, weight decay."""

    tensors: tuple[int, ...]
    lr: float | None = None
    weight_decay: float | None = None


@dataclass(frozen=True, slots=True)
class Fill:
    """A contribution inside a `.grad`: which backward wrote it, and how many optimizer steps have consumed it since."""

    backward: int
    consumed: int


@dataclass(frozen=True, slots=True)
class Life:
    """Tensors whose `.grad` has the same history when an optimizer steps.

    `grad`: "none" (no gradient), "zero" (cleared to zeros, nothing since), "filled" (by backwards, see `fills`, oldest
    first, since the last clear), "assigned" (written by the program itself, e.g. `p.grad = g`).
    `frozen`: requires_grad is False.  `moved`: there is no gradient now, but the values were written since the last
    step that was told (None: not, or not known).
    Of a long history `fills` keeps the four oldest and the eight newest; `omitted` counts those left out between.
    `rescaled`: the program changed the gradient in place after the last fill (clipping and scalers not counted).
    `drifted`: the optimizer's own last step wrote into them although there was no gradient.
    `scaled`: what the program multiplied the gradient by since, when that was all it did (None: else, or not seen).
    `lenders`: the gradients are those of these other leaves, the same tensors, which the program put there.
    """

    tensors: tuple[int, ...]
    grad: str
    fills: tuple[Fill, ...] = ()
    frozen: bool = False
    moved: bool | None = None
    omitted: int = 0
    rescaled: bool = False
    drifted: bool = False
    scaled: float | None = None
    lenders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a clear threw away: contributions of one backward in these tensors.

    `consumed`: optimizer steps that used it before the clear.  `read`: the program itself read `.grad` since the fill.
    """

    backward: int
    tensors: tuple[int, ...]
    consumed: int
    read: bool


@dataclass(frozen=True, slots=True)
class CallRef:
    """A forward call of a module that the program made itself (not from inside another module's forward).

    `graph`: gradient can flow from here into the module's output.  `grad_on`: grad mode was on during the call.
    """

    call: int
    module: int
    site: Site
    graph: bool
    grad_on: bool
    training: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a value left the graph: `how` is detach, data, item, numpy, tolist, float, no_grad, rebuilt
    (torch.tensor(...) of Python numbers), autograd_grad (result of autograd.grad without create_graph) or argmax-like
    "integer"."""

    how: str
    site: Site


@dataclass(frozen=True, slots=True)
class Term:
    """One additive operand of a loss, after `+`, `-`, `sum(...)`, and factors that are plain numbers were unfolded.

    `op`: the operation that made it ("mse_loss", "mean", "number", ...); `factor`: product of the plain numbers on the
    way from the root (sign included); `times`: how often the very same tensor stands among the terms;
    `has_graph`; `kind`: "tensor" or "number" (a Python number); `value`: its value when it was looked at;
    `leaves`: followed tensors that its graph reaches; `depends`: followed tensors *held by an optimizer* on which its
    value depends although no gradient can flow (through `cut`); `cut`: the nearest cut on that way.
    `reduction`: "mean", "sum", "none" or "" (unknown) of the innermost reduction, over `elements` elements with `batch`
    rows; `divided`: it is divided or multiplied by a tensor that is a count or weight without graph (a normalisation).
    `own_count`: the sum is divided by the number of its own elements that a mask leaves, which makes it a mean over
    them (0: it is not; `elements` of a mean are those that count).  `each`: every one of those that are averaged is a
    sum over so many.
    `penalty_of_grad`: its value depends on a result of autograd.grad taken without create_graph (site in `cut`).
    """

    op: str
    site: Site
    factor: float
    times: int
    has_graph: bool
    kind: str
    value: float | None
    leaves: tuple[int, ...] = ()
    depends: tuple[int, ...] = ()
    cut: Cut | None = None
    reduction: str = ""
    elements: int = 0
    batch: int = 0
    divided: bool = False
    penalty_of_grad: bool = False
    node: int = 0
    own_count: int = 0
    each: int = 0


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a comparison (loss call, or the two sides of a difference that is then squared, made absolute, ...).

    `calls`: module calls its value depends on (graph says whether gradient flows into each); `op`, `site`: what made
    it; `selection`: only views, gathers, reductions by max/mean over a non-batch axis and the like lie between the call
    and here; `bootstrap`: value = (something without graph) + number * call output (possibly masked): the form of a TD
    target; `discount`: that number; `masked`: the output is multiplied by a value that depends on no module;
    `mask_zeros`: how many elements of that value are zero, and how many it has; `mask_across`: where it was made by a
    running product over the rows of the batch; `mask_uneven`: where the smallest of several values is taken, of which
    only some are masked.
    `alias_of_other`: it is the other operand, detached.  `cut`: nearest cut on the way.
    `behind`: of a bootstrap, calls of other modules whose outputs the calls above were given.
    """

    shape: tuple[int, ...]
    has_graph: bool
    op: str
    site: Site
    calls: tuple[CallRef, ...] = ()
    selection: bool = False
    bootstrap: bool = False
    discount: float | None = None
    alias_of_other: bool = False
    cut: Cut | None = None
    made_from: tuple[str, ...] = ()
    masked: bool = False
    mask_zeros: tuple[int, int] | None = None
    mask_across: Site | None = None
    mask_uneven: Site | None = None
    behind: tuple[CallRef, ...] = ()


@dataclass(frozen=True, slots=True)
class PlainAttribute:
    """Something on a module that is neither registered parameter, buffer nor submodule.

    `kind`: "tensor", "tensors" (list/tuple/dict of tensors), "module", "modules" (list/tuple/dict).  For tensors: ids,
    shape of the first, requires_grad, is_leaf, whether it is an nn.Parameter, `made_from_parameter` (non-leaf made by
    `.to()`/arithmetic of a Parameter), where it was made and whether that was inside an `__init__` or inside a forward.
    For modules: module ids and the tensor ids of all their parameters.
    """

    name: str
    kind: str
    tensors: tuple[int, ...] = ()
    modules: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    floating: bool = False
    requires_grad: bool = False
    is_leaf: bool = True
    is_parameter: bool = False
    made_from_parameter: bool = False
    made_site: Site = NOWHERE
    made_in_init: bool = False
    made_in_forward: bool = False
