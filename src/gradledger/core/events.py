"""The vocabulary that ledger and audit share: frozen facts about a running program, without any tensor.

Identifiers are small integers given once and never reused: `tensor` ids name *leaf-like* tensors that the
ledger follows (parameters, buffers, free leaves, attributes), `module`, `optimizer`, `scheduler`, `loader`
ids name those objects, `backward` ids name reverse passes and `call` ids name forward calls of a module.
`iteration` counts completed optimizer steps of the whole program (all optimizers together), so everything
between two steps shares one number.  `seq` orders all events of a run.

"Detail" facts (terms, comparisons, calls, broadcasts, aliases) are taken on watched iterations only: the
first twenty, samples, and suspicious ones; lifecycle facts (fills, clears, steps, clips, copies by
load_state_dict, schedulers, modes) are taken always.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from gradledger.core.site import NOWHERE, Frame, Site

SCHEMA = 1


# ----------------------------------------------------------------------------------------------- parts of events


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
    `frozen`: requires_grad is False.  `moved`: did the step change the values (None: not looked at).
    Of a long history `fills` keeps the four oldest and the eight newest; `omitted` counts those left out between.
    `rescaled`: the program changed the gradient in place after the last fill (clipping and scalers not counted).
    """

    tensors: tuple[int, ...]
    grad: str
    fills: tuple[Fill, ...] = ()
    frozen: bool = False
    moved: bool | None = None
    omitted: int = 0
    rescaled: bool = False


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


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a comparison (loss call, or the two sides of a difference that is then squared, made absolute, ...).

    `calls`: module calls its value depends on (graph says whether gradient flows into each); `op`, `site`: what made
    it; `selection`: only views, gathers, reductions by max/mean over a non-batch axis and the like lie between the call
    and here; `bootstrap`: value = (something without graph) + number * call output (possibly masked): the form of a TD
    target; `discount`: that number.  `alias_of_other`: it is the other operand, detached.  `cut`: nearest cut on the
    way.
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


# ----------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base: order, iteration, and the line of the user's program that caused it.

    `weight`: how many happenings alike it stands for.  In a long run the iterations that repeat are told by sample; an
    event that is told then counts for those left out before it, so that sums of weights are true counts (to 5 %).
    """

    KIND: ClassVar[str] = "event"
    seq: int = 0
    iteration: int = 0
    site: Site = NOWHERE
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """First event.  `program` as given, `argv`, torch version, python version, schema."""

    KIND: ClassVar[str] = "run_started"
    program: str
    argv: tuple[str, ...] = ()
    torch: str = ""
    python: str = ""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """Last event.  `exit_code`; the uncaught exception if any, with the user frames of its traceback (innermost last);
    totals: optimizer steps, backwards, module calls; `failures`: errors inside our own probes (counted, never
    raised)."""

    KIND: ClassVar[str] = "run_ended"
    exit_code: int = 0
    exception: str = ""
    message: str = ""
    frames: tuple[Frame, ...] = ()
    steps: int = 0
    backwards: int = 0
    calls: int = 0
    failures: tuple[str, ...] = ()
    not_watched: tuple[str, ...] = ()


# --- modules and tensors


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
    """A parameter or buffer was registered under `name`; `replaced`: the tensor object that had the name before."""

    KIND: ClassVar[str] = "tensor_registered"
    tensor: int
    module: int
    name: str
    role: str  # "parameter" | "buffer"
    shape: tuple[int, ...]
    requires_grad: bool
    replaced: int | None = None


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
    """A forward call made by the program itself (detail iterations).  `inputs_need_grad`: an input carries a graph."""

    KIND: ClassVar[str] = "module_called"
    call: int
    module: int
    training: bool
    grad_on: bool
    output_has_graph: bool
    inputs_need_grad: bool
    batch: int = 0


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
class GradFlagSet(Event):
    """`requires_grad` of followed tensors was set to `value` (by attribute, `requires_grad_`, or
    `module.requires_grad_`)."""

    KIND: ClassVar[str] = "grad_flag_set"
    tensors: tuple[int, ...]
    value: bool
    changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersIterated(Event):
    """The program walked `named_parameters()`/`parameters()` of a module at `site`: how many it was given."""

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


# --- optimizers, schedulers, scalers, clips


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerMade(Event):
    """An optimizer was built over `groups`."""

    KIND: ClassVar[str] = "optimizer_made"
    optimizer: int
    cls: str
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdded(Event):
    """`add_param_group` after construction."""

    KIND: ClassVar[str] = "group_added"
    optimizer: int
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Event):
    """An optimizer is about to consume its gradients.  `index`: how many steps this optimizer made before;
    `closure`: it was given one (then backwards happen inside)."""

    KIND: ClassVar[str] = "step"
    optimizer: int
    index: int
    lives: tuple[Life, ...]
    closure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear(Event):
    """Gradients were cleared.  `how`: "zero_grad" (optimizer or module), "none" (`p.grad = None`), "zero"
    (`p.grad.zero_()`), "unseen" (found gone).  `tensors`: those that had a gradient; `dropped`: what was thrown
    away."""

    KIND: ClassVar[str] = "clear"
    how: str
    optimizer: int | None
    module: int | None
    tensors: tuple[int, ...]
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsRead(Event):
    """The program itself read `.grad` (detail iterations; told once an iteration and line, before the step).

    No tensors: that of a non-leaf.  `backward`: the latest reverse pass before the first of these reads."""

    KIND: ClassVar[str] = "gradients_read"
    tensors: tuple[int, ...]
    backward: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(Event):
    """`clip_grad_norm_` / `clip_grad_value_`.  `tensors`: with a gradient; `given`: number of tensors passed in;
    `pending`: backwards whose contributions (not yet consumed) stand in those gradients;
    `consumed`: those contributions had already been consumed by a step; `scaled`: a GradScaler scaled the loss and
    `unscale_` was not called; `scale`: its factor."""

    KIND: ClassVar[str] = "clip"
    method: str
    tensors: tuple[int, ...]
    given: int
    limit: float
    pending: tuple[int, ...]
    consumed: bool
    scaled: bool
    scale: float | None = None
    total_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerCalled(Event):
    """`GradScaler.scale/unscale_/step/update`.  `skipped`: step was withheld because of non-finite gradients."""

    KIND: ClassVar[str] = "scaler_called"
    method: str
    optimizer: int | None = None
    skipped: bool = False
    scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerMade(Event):
    """`horizon`: its length-like arguments by name (T_max, total_steps, step_size, T_0, milestones' last, total_iters,
    ...)."""

    KIND: ClassVar[str] = "scheduler_made"
    scheduler: int
    optimizer: int
    cls: str
    horizon: tuple[tuple[str, float], ...]
    lrs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStep(Event):
    """`scheduler.step()` by the program (not the one of its constructor).  `index`: calls before this one;
    `optimizer_steps`: steps its optimizer has made so far; `lrs`: after the call; `metric`: it was given a metric."""

    KIND: ClassVar[str] = "scheduler_step"
    scheduler: int
    optimizer: int
    index: int
    optimizer_steps: int
    lrs: tuple[float, ...]
    metric: bool = False


# --- reverse passes


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
    computed; `alias_writes`: in-place writes through detached aliases into tensors this walk used.
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
    in the same expression, or both come from one tensor).  `has_graph`: an operand carries a graph."""

    KIND: ClassVar[str] = "broadcast"
    op: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]
    has_graph: bool
    explicit: bool
    left_site: Site = NOWHERE
    right_site: Site = NOWHERE


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
    walked
    loss."""

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


# --- copies, state, storage


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCopied(Event):
    """`copy.deepcopy` of a module (or of an object holding it): `source` -> `target`."""

    KIND: ClassVar[str] = "deep_copied"
    source: int
    target: int
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied(Event):
    """Values of `source`'s tensors were written into `target`'s.  `how`: load_state_dict, copy_, lerp_, "mul_add",
    assign (`.data = new tensor`), replace (new Parameter objects).  `tau`: weight of the source when known (1.0 =
    hard); `pairs`: (source tensor, target tensor); `changed`: values of the target really changed (None: not looked
    at); `same`: source and target are the same module; `buffers`: floating buffers of the target's tree;
    `buffers_followed`: how many of them were copied too; `buffers_differ`: names of buffers whose values differ from
    the source's after the copy and that do not move by themselves."""

    KIND: ClassVar[str] = "copied"
    how: str
    source: int
    target: int
    pairs: tuple[tuple[int, int], ...]
    tau: float | None = None
    changed: bool | None = None
    same: bool = False
    buffers: int = 0
    buffers_followed: int = 0
    buffers_differ: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesCompared(Event):
    """The parameters of a module that the program calls and no optimizer holds were compared with what they were at
    iteration `since` (a few elements of a few of them, at growing intervals): `changed` says whether any differs."""

    KIND: ClassVar[str] = "values_compared"
    module: int
    since: int
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageShared(Event):
    """After an assignment (usually `.data = other.data`) two different followed tensors have the same memory."""

    KIND: ClassVar[str] = "storage_shared"
    target: int
    source: int
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTaken(Event):
    """`state_dict()` of a module, optimizer or scheduler.  `missing`: plain tensor attributes that it does not
    carry."""

    KIND: ClassVar[str] = "state_taken"
    owner: str  # "module" | "optimizer" | "scheduler"
    ident: int
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLoaded(Event):
    """`load_state_dict` on a module, optimizer or scheduler.  `origin`: where the state came from ("file", "live",
    "unknown") and `origin_ident` the module it was taken from.  `plain_differ`: plain tensor attributes whose values
    differ between origin and loaded module although all registered tensors agree."""

    KIND: ClassVar[str] = "state_loaded"
    owner: str
    ident: int
    strict: bool = True
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    matched: int = 0
    origin: str = "unknown"
    origin_ident: int | None = None
    plain_differ: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTouched(Event):
    """`torch.save` / `torch.load`: `what` it held, by owner ("module", "optimizer", "scheduler", "rng", "number",
    "other")."""

    KIND: ClassVar[str] = "file_touched"
    method: str
    what: tuple[str, ...] = ()


# --- data


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMade(Event):
    """A DataLoader.  `length`: batches an epoch (0: unknown)."""

    KIND: ClassVar[str] = "loader_made"
    loader: int
    length: int
    batch_size: int
    shuffled: bool
    workers: int
    drop_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderEpoch(Event):
    """`iter(loader)`: a new pass begins.  `epoch`: passes before this one; `pending`: backwards whose contributions
    stand unconsumed in gradients now."""

    KIND: ClassVar[str] = "loader_epoch"
    loader: int
    epoch: int
    pending: tuple[int, ...] = ()


EVENTS: dict[str, type[Event]] = {}


def _collect(cls: type[Event]) -> None:
    # a closed, declared vocabulary: built once from this module's own names
    EVENTS[cls.KIND] = cls


for _value in list(globals().values()):
    if isinstance(_value, type) and issubclass(_value, Event) and _value is not Event:
        _collect(_value)


# ----------------------------------------------------------------------------------------------- to and from JSON


def to_json(value: Any) -> Any:
    """Plain JSON value of an event or of a part of one (dataclasses become lists of field values, in order)."""
    if is_dataclass(value) and not isinstance(value, type):
        return [to_json(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, tuple):
        return [to_json(v) for v in value]
    return value


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls)
    return _HINTS[cls]


def _build(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(hint, type) and is_dataclass(hint):
        hints = _hints(hint)
        return hint(**{f.name: _build(hints[f.name], v) for f, v in zip(fields(hint), value, strict=False)})
    origin = get_origin(hint)
    if origin is tuple:
        args = get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_build(args[0], v) for v in value)
        return tuple(_build(a, v) for a, v in zip(args, value, strict=True))
    inner = [a for a in get_args(hint) if a is not type(None)]
    if len(inner) == 1:  # X | None
        return _build(inner[0], value)
    return value


def from_json(kind: str, value: Any) -> Event:
    """Inverse of `to_json` for a whole event of kind `kind`.

    Raises KeyError for an unknown kind: a ledger of a newer schema.
    """
    event: Event = _build(EVENTS[kind], value)
    return event
