"""Modules, parameters, buffers, modes and flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradledger.core.events._base import Event
from gradledger.core.events._parts import PlainAttribute
from gradledger.core.site import NOWHERE, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMade(Event):
    """A module was first seen; `site` is the user line that built it (or first used it)."""

    KIND: ClassVar[str] = "module_made"
    module: int
    cls: str
    builtin: bool  # a class of torch itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRegistered(Event):
    """`child` became the submodule `name` of `parent` (`replaced`: the module that had the name before)."""

    KIND: ClassVar[str] = "child_registered"
    parent: int
    child: int
    name: str
    replaced: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRegistered(Event):
    """A parameter or buffer was registered under `name`; `replaced`: the tensor object that had the name before;
    `lent`: a plain tensor stands in the place of a parameter, as `functional_call` puts it there for one call."""

    KIND: ClassVar[str] = "tensor_registered"
    tensor: int
    module: int
    name: str
    role: str  # "parameter" | "buffer"
    shape: tuple[int, ...]
    requires_grad: bool
    replaced: int | None = None
    lent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSeen(Event):
    """A leaf that requires grad, is no registered parameter, and was reached by a backward or held by an optimizer.

    `made_from`: "requires_grad" (created or flagged so), "unknown".  `fed_to`: module ids into which it (or a slice,
    view or stack of it) goes as input; `in_loss`: it (or a slice) is an operand of a loss without passing a module;
    `attribute_of`: module id whose plain attribute it is.  `site`: where it was created, when known."""

    KIND: ClassVar[str] = "leaf_seen"
    tensor: int
    shape: tuple[int, ...]
    is_parameter: bool
    fed_to: tuple[int, ...] = ()
    in_loss: bool = False
    attribute_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAttributes(Event):
    """Unregistered tensors and modules found on a module when it was first called (and again when they change)."""

    KIND: ClassVar[str] = "plain_attributes"
    module: int
    attributes: tuple[PlainAttribute, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCalled(Event):
    """A forward call made by the program itself (detail iterations).  `inputs_need_grad`: an input carries a graph;
    `moody`: layers in it that depend on the mode (dropout, running statistics); `active`: those in train mode."""

    KIND: ClassVar[str] = "module_called"
    call: int
    module: int
    training: bool
    grad_on: bool
    output_has_graph: bool
    inputs_need_grad: bool
    batch: int = 0
    moody: int = 0
    active: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleUsed(Event):
    """The forward of `module` ran for the first time in a watched iteration, at any depth (once a module)."""

    KIND: ClassVar[str] = "module_used"
    module: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsMoved(Event):
    """A normalisation layer ran in train mode and moved its running statistics.  `frozen`: all parameters of the layer
    (or, for a layer without parameters, of its parent) have requires_grad False; `mode_site`: the last `.train()` call
    that reached it; `root`: the module the program called."""

    KIND: ClassVar[str] = "statistics_moved"
    module: int
    root: int
    frozen: bool
    grad_on: bool
    mode_site: Site = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSet(Event):
    """`.train(mode)` or `.eval()` was called on `module`; `changed`: modules whose mode really changed."""

    KIND: ClassVar[str] = "mode_set"
    module: int
    training: bool
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomInEval(Event):
    """A function that draws at random (`dropout` told to, attention with a `dropout_p`) was called inside a call of
    `module`, which is in eval mode.  `op`: its name; `p`: the probability; `how`: "function" when the program's own
    code called it, "module" when a layer did that is no part of `module`."""

    KIND: ClassVar[str] = "random_in_eval"
    module: int
    op: str
    p: float
    how: str = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradFlagSet(Event):
    """`requires_grad` of followed tensors was set to `value` (by attribute, `requires_grad_`, or
    `module.requires_grad_`)."""

    KIND: ClassVar[str] = "grad_flag_set"
    tensors: tuple[int, ...]
    value: bool
    changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersIterated(Event):
    """The program walked `named_parameters()`/`parameters()` of a module at `site`: how many it was given.  Or its
    `named_children()`/`named_modules()`: how many it has of its own.
    """

    KIND: ClassVar[str] = "parameters_iterated"
    module: int
    method: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhaustedIterator(Event):
    """A user function was entered with an argument `name` that is an already consumed iterator over parameters.
    `site` is the function's first executed line seen, `made_site` where the iterator was built when known."""

    KIND: ClassVar[str] = "exhausted_iterator"
    function: str
    name: str
    made_site: Site = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFreed(Event):
    """A module that owned parameters was garbage collected while the program ran on."""

    KIND: ClassVar[str] = "module_freed"
    module: int
