"""# A loss, gradient or parameter is not finite

## What it is
A NaN or an infinity appears: in the loss, in a gradient, or in a parameter after a step.

## Why it matters
One step with a NaN gradient writes NaN into every parameter that it touches, and every later value of the run is NaN.
Often the loss is still finite when it happens: the derivative is not (the square root of an exact zero, a norm of equal
points, `0 * log 0`).

## How it is found
The loss is looked at when it is walked, gradients and parameters when the optimizer steps.  The first value that is not
finite is reported with the operation that the trace suspects, the line, the step, and whether the data was already not
finite.  It counts when a step consumed it, when it ended the run, or when the loss is never finite again: whoever
skips all of those steps comes too late, the parameters are broken.

## Near misses
- A gradient scaler, or the program itself, that skips the step, and the next ones until its factor fits.
- `-inf` in masked logits: no loss, gradient or parameter is infinite.

## Fix
Keep the operation away from its singular point: `torch.sqrt(sq + 1e-8)`, `p.clamp_min(1e-8).log()`,
`x / (x.std() + 1e-6)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Clear, Event, NonFinite, ScalerCalled, Step
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "G13",
    "non-finite-value",
    "gradient lifecycle",
    "A NaN or an infinity reached the loss, a gradient or a parameter, and a step consumed it.",
)
LISTENS: tuple[type[Event], ...] = (NonFinite, ScalerCalled, Step, Clear, Backward)

_KEPT = 16
_ROOTS_KEPT = 256
LASTING = 10  # reverse passes from a loss that is not finite, the last of the run
_FIXES = {
    "input": "drop or repair the rows that are not finite before they are batched: torch.isfinite(x).all(dim=1)",
    "sqrt": "keep the argument off zero: torch.sqrt(x + 1e-8)",
    "rsqrt": "keep the argument off zero: torch.rsqrt(x + 1e-8)",
    "norm": "keep the norm off zero: (x.pow(2).sum(-1) + 1e-8).sqrt()",
    "linalg_vector_norm": "keep the norm off zero: (x.pow(2).sum(-1) + 1e-8).sqrt()",
    "cdist": "keep the distance off zero: compute it from squares and add 1e-8 before the root",
    "log": "keep the argument off zero: x.clamp_min(1e-8).log(), or use log_softmax / logsigmoid",
    "log2": "keep the argument off zero: x.clamp_min(1e-8).log2()",
    "div": "keep the divisor off zero: x / (y + 1e-8)",
    "rdiv": "keep the divisor off zero: x / (y + 1e-8)",
    "std": "add a floor to the deviation: (x.var(dim) + 1e-8).sqrt(), and avoid batches of one",
    "var": "avoid batches of one row, or pass correction=0",
    "std_mean": "avoid batches of one row, or pass correction=0",
    "var_mean": "avoid batches of one row, or pass correction=0",
    "mean": "skip the term when it selects nothing, or divide the sum by count.clamp(min=1)",
    "cross_entropy": "skip batches without a target, or divide the sum by count.clamp(min=1)",
    "nll_loss": "skip batches without a target, or divide the sum by count.clamp(min=1)",
    "log1p": "keep the argument above -1: torch.log1p(x.clamp_min(-1 + 1e-6))",
    "logit": "pass eps: torch.logit(p, eps=1e-6)",
    "exp": "bound the argument: x.clamp(max=20).exp()",
    "pow": "keep the base off the point where this power has no derivative: (x + 1e-8).pow(...)",
    "acos": "keep the argument inside (-1, 1): x.clamp(-1 + 1e-6, 1 - 1e-6).acos()",
    "asin": "keep the argument inside (-1, 1): x.clamp(-1 + 1e-6, 1 - 1e-6).asin()",
}

_FIX = "find the operation whose input is at its singular point and keep it off (add an epsilon)"


@dataclass(slots=True)
class _Seen:
    """`root`: where the loss was computed; `step`: the one that consumed it, None while none has; `before`: where the
    latest step before it was made."""

    event: NonFinite
    root: Site = NOWHERE
    step: Step | None = None
    dropped: bool = False
    before: Site = NOWHERE


@dataclass(slots=True)
class State:
    """`roots`: by line of the reverse pass, where its loss was computed when that was last looked at; `lasting`:
    reverse passes since the latest one from a finite loss."""

    seen: list[_Seen] = field(default_factory=list)
    open: bool = False
    last_root: Site = NOWHERE
    lasting: int = 0
    last_step: Site = NOWHERE
    roots: dict[tuple[str, int], Site] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Backward):
        key = event.site.key()
        if event.root_site.file and (key in state.roots or len(state.roots) < _ROOTS_KEPT):
            state.roots[key] = event.root_site
        state.last_root = state.roots.get(key, NOWHERE)
        if event.method == "backward" and event.value is not None and not event.scaled:
            state.lasting = 0 if math.isfinite(event.value) else state.lasting + event.weight
    elif isinstance(event, NonFinite):
        if len(state.seen) < _KEPT:
            state.seen.append(_Seen(event, state.last_root, before=state.last_step))
            state.open = True
    elif not state.open:
        if isinstance(event, Step):
            state.last_step = event.site
    elif isinstance(event, ScalerCalled):
        if event.skipped:
            _drop(state)
    elif isinstance(event, Clear):
        if any(seen.event.what in ("loss", "gradient") for seen in state.seen):
            _drop(state)
    elif isinstance(event, Step):
        for seen in state.seen:
            if not seen.dropped and seen.step is None:
                seen.step = event
        state.open = False


def _drop(state: State) -> None:
    """What was not consumed yet is gone: the step was skipped, or the gradient thrown away."""
    for seen in state.seen:
        if seen.step is None and seen.event.what != "parameter":
            seen.dropped = True
    state.open = False


def finish(state: State, world: World) -> list[Finding]:
    found = [seen for seen in state.seen if not seen.dropped and _counts(seen, world)]
    for_good = not found and state.lasting >= LASTING
    if for_good:
        found = [seen for seen in state.seen if seen.event.what == "loss"][-1:]
    if not found:
        return []
    first = found[0]
    named = next((seen for seen in found if seen.event.op_site.file), first)
    event = named.event
    site = event.op_site if event.op_site.file else event.site
    if for_good and first.before.file:
        site = first.before  # the last step that was not skipped has broken them
    where = world.name(first.event.tensor) if first.event.tensor is not None else ""
    what = f"{first.event.what} {where}".strip()
    because = f"`{event.op}` at line {site.line}: {event.reason}" if event.op and event.reason else event.reason
    if event.op == "input":
        because = event.reason
    step = first.step
    consumed = f"; step {step.index + 1} of the optimizer wrote it into the parameters" if step is not None else ""
    if for_good:
        consumed = f", and never again: {state.lasting} reverse passes to the end of the run, whose steps were skipped"
    return [
        Finding(
            "G13",
            "error",
            site,
            f"The {what} is not finite for the first time after {first.event.iteration} steps (line "
            f"{first.event.site.line}){consumed}." + (f" Cause: {because}." if because else ""),
            _FIXES.get(event.op, _FIX),
            related=distinct(
                site, (first.event.site, *(s.event.site for s in found), *_step_site(step), first.root, first.before)
            ),
            evidence={
                "first": first.event.what,
                "order": [seen.event.what for seen in found],
                "op": event.op,
                "reason": event.reason,
                "steps_before": first.event.iteration,
                "tensor": where,
            },
            iteration=first.event.iteration,
        )
    ]


def _counts(seen: _Seen, world: World) -> bool:
    """Consumed by a step, or the last thing that happened before the run ended."""
    if seen.step is not None or seen.event.what == "parameter":
        return True
    return world.iteration - seen.event.iteration <= 0 and world.ended is not None and bool(world.ended.exception)


def _step_site(step: Step | None) -> tuple[Site, ...]:
    return (step.site,) if step is not None else ()
