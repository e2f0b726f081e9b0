"""Optimizers, schedulers, scalers and clips: clear, consume, change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradledger.core.events._base import Event
from gradledger.core.events._parts import Dropped, Group, Life


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
class StepMeasured(Event):
    """Sizes at a step (detail iterations), tensor by tensor as Euclidean norms: `gradients` that it consumed, `values`
    before it, `updates` that it made (empty: not measured).  Dense floating tensors with a gradient only."""

    KIND: ClassVar[str] = "step_measured"
    optimizer: int
    tensors: tuple[int, ...]
    gradients: tuple[float, ...]
    values: tuple[float, ...]
    updates: tuple[float, ...] = ()


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
class GradientInView(Event):
    """Leaves that no optimizer holds have values that change, and gradients that are views of other memory, which the
    program made: what is done to that memory is done to them (a flat parameter, an update by hand)."""

    KIND: ClassVar[str] = "gradient_in_view"
    tensors: tuple[int, ...]


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
class ClippedRescaled(Event):
    """Between the clip at `site` and the step, the program multiplied all of the clipped gradients by one number,
    `factor` (looked at in detail iterations).  `pending`: of that clip."""

    KIND: ClassVar[str] = "clipped_rescaled"
    factor: float
    pending: tuple[int, ...]


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
