"""# The schedule counts in another unit than its steps

## What it is
A schedule has a length (`T_max`, `total_steps`, `step_size`, milestones) that counts calls of `scheduler.step()`.  The
length was given in epochs and `step()` sits in the batch loop, or the other way round.

## Why it matters
Stepped too often, a cosine reaches its minimum in the first epoch, climbs back and oscillates, a step decay is at zero
before training has begun.  Stepped too rarely, the rate stays at its first value (or in its warm-up) to the end.

## How it is found
Two readings of one schedule are compared.  In the unit in which it is stepped it does not fit (it comes back up, decays
to nothing, or has run less than half of its length at the end); in the other unit it fits: its length is the number of
epochs of this run, the number of batches, or is written as such in the program.  Or it is what the loop around counts
to by other strides (environment steps), and the run went through that loop.  A function of the program's own that
comes back up each time the number of epochs has gone by in batches, and computes with that number, is one of these.
So is a cosine that makes several half-waves over a length that the program calls all its steps.

## Near misses
- Warm restarts and cyclic schedules, which come back on purpose.
- A warm-up that is short on purpose.
- A run that was stopped, or planned, shorter than its schedule.

## Fix
`T_max=epochs * len(loader)` where `step()` runs per batch, `T_max=epochs` where it runs per epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradledger.audit import _schedules
from gradledger.audit._lengths import (
    LENGTHS,
    counts_around,
    counts_batches,
    counts_epochs,
    epochs_around,
    length_lines,
    loop_in_strides,
    says_epochs,
    says_total,
)
from gradledger.audit._phrases import distinct, number, times
from gradledger.audit._schedules import Schedule
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "O2",
    "schedule-in-wrong-unit",
    "optimizers and schedulers",
    "The length of a schedule counts epochs while it is stepped per batch, or batches while it is stepped per epoch.",
)
LISTENS = _schedules.LISTENS

RESTARTS = ("CosineAnnealingWarmRestarts", "CyclicLR", "ReduceLROnPlateau")
OF_OTHERS = ("SequentialLR", "ChainedScheduler")
GONE = 1e-3  # of the peak rate: decayed to nothing
LOW, HIGH = 0.25, 0.75  # of the peak rate: the bottom of a wave of one's own, and back at its top


@dataclass(frozen=True, slots=True)
class Verdict:
    """`symptom`: what the rate did; `fits`: in which unit the length fits; `fix`: what to write."""

    symptom: str
    fits: str
    fix: str
    length: float
    evidence: dict[str, float]


def init() -> _schedules.State:
    return _schedules.State()


def update(state: _schedules.State, event: Event, world: World) -> None:
    _schedules.update(state, event, world)


def finish(state: _schedules.State, world: World) -> list[Finding]:
    findings = []
    for schedule in state.schedules.values():
        if schedule.cls in RESTARTS or "inner.T_0" in schedule.horizon or "inner.total_size" in schedule.horizon:
            continue
        verdict = (
            _too_often(schedule, world)
            or _too_rarely(schedule, world)
            or _in_strides(schedule, world)
            or _overran(schedule, world)
        )
        if verdict is None:
            continue
        made = schedule.made.site
        site = made if made.file else schedule.site
        findings.append(
            Finding(
                "O2",
                "error",
                site,
                f"{schedule.cls} {verdict.symptom}; {verdict.fits}.",
                verdict.fix,
                related=distinct(
                    site, (schedule.site, _step_site(schedule, world), *length_lines(schedule, _length(schedule)[1]))
                ),
                evidence={
                    "calls": schedule.calls,
                    "length": verdict.length,
                    "first_rate": schedule.made.lrs[0] if schedule.made.lrs else None,
                    "last_rate": schedule.last,
                    **verdict.evidence,
                },
                count=schedule.calls,
                subject=schedule.cls,
                iteration=schedule.iteration,
            )
        )
    return findings


# ------------------------------------------------------------------------------------- stepped too often


def _too_often(schedule: Schedule, world: World) -> Verdict | None:
    """Stepped for every optimizer step, with a length in epochs."""
    if not schedule.per_step:
        return None
    length, name = _length(schedule)
    passes, each = _epochs(schedule, world)
    calls = schedule.calls
    if length is None:
        return _lambda_too_often(schedule, passes, each)
    if length < 1 or calls < 1.5 * length + 1:
        return None
    waves = {length, schedule.horizon.get("inner.T_max", length)} if _is_cosine(schedule) else set()
    if waves and not passes and schedule.cls in OF_OTHERS:  # without a loader
        passes = epochs_around(schedule)
        each = round(calls / passes) if passes >= 2 else 0
    said = not passes and says_epochs(schedule, name)
    if said:
        passes = epochs_around(schedule)
        each = round(calls / passes) if passes >= 2 else 0
    warm = schedule.horizon.get("milestones", 0.0)
    epochs = {passes, passes - 1, passes - warm, each} if waves else {passes}
    by_count = each >= 2 and passes >= 2 and not epochs.isdisjoint(waves or {length})
    written = counts_epochs(schedule, name) or (said and each >= 2)
    small = each >= 2 and passes >= 2 and length <= passes and length < each
    symptom = _symptom_often(schedule, length, by_count or written, small or written)
    if not symptom:
        return _fewer_than_said(schedule, length, name, each) if waves else None
    k = each if each >= 2 else round(calls / length)
    unit = "epochs" if length != each or written else "batches of one epoch"
    where = (
        f"this run made {times(passes, 'pass')} of {each} batches" if each >= 2 else "the outer loop counts the same"
    )
    factor = "len(loader)" if each >= 2 else "<batches per epoch>"
    new = f"{name}={number(length)} * {factor}" if length != each or written else f"{name}=epochs * len(loader)"
    return Verdict(
        f"is stepped once per batch and {symptom}",
        f"{name} = {number(length)} counts {unit}: {where}",
        f"{new}  (or call scheduler.step() once per epoch)",
        length,
        {"passes": passes, "steps_per_pass": k, "too_fast": round(calls / length, 1)},
    )


def _fewer_than_said(schedule: Schedule, length: float, name: str, each: int) -> Verdict | None:
    """A cosine over what is called all steps of the training, and was computed from another batch size, say."""
    waves = schedule.calls / length
    if waves < 1.9 or abs(waves - round(waves)) > 0.05 * waves or not says_total(schedule, name):
        return None
    return Verdict(
        f"is stepped once per batch, reached its minimum after {times(int(length), 'call')} and came back up: "
        f"{schedule.calls} calls make {number(round(waves, 1))} half-waves",
        f"{name} = {number(length)} is called all steps of the training, which are {schedule.calls}",
        f"{name}=epochs * len(loader)",
        length,
        {"steps_per_pass": each, "too_fast": round(waves, 1)},
    )


def _symptom_often(schedule: Schedule, length: float, fits: bool, small: bool) -> str:
    calls, cls = schedule.calls, schedule.cls
    if _is_cosine(schedule):
        if fits and calls >= 1.5 * length:
            return (
                f"reached its minimum after {times(int(length), 'call')} and came back up: {calls} calls make "
                f"{number(round(calls / length, 1))} half-waves"
            )
        return ""
    if cls in ("StepLR", "MultiStepLR"):
        collapsed = abs(schedule.last) < 0.02 * schedule.peak
        early = schedule.rate_at(calls // 2) < 0.2 * schedule.peak
        if small and early and (collapsed or cls == "MultiStepLR"):
            return f"is at {number(schedule.last)} of {number(schedule.peak)} after {times(calls, 'call')}"
        return ""
    falling = schedule.last < 0.5 * schedule.peak
    if fits and falling and cls in ("LinearLR", "PolynomialLR"):
        return f"was at its end after {number(length)} of {times(calls, 'call')}"
    return ""


def _lambda_too_often(schedule: Schedule, passes: int, each: int) -> Verdict | None:
    """A schedule without a length of its own (a lambda, a gamma, a class of the program): its rate tells."""
    calls, peak = schedule.calls, schedule.peak
    if schedule.negative is not None:
        return Verdict(
            f"is stepped once per optimizer step and gave a negative rate from call {schedule.negative} on",
            f"the schedule ends long before its {calls} calls do",
            "give the schedule its length in optimizer steps, or call scheduler.step() once per epoch",
            schedule.negative - 1,
            {"passes": passes, "steps_per_pass": each},
        )
    loaded = bool(each or passes)
    if not loaded and peak > 0:
        passes = epochs_around(schedule)
        each = round(calls / passes) if passes >= 2 else 0
        if schedule.cls == "ExponentialLR":
            return None  # without a loader nothing says how long an epoch is
    if each < 2 or passes < 2 or peak <= 0:
        return None
    if schedule.cls == "ExponentialLR":
        # the same factor per epoch would have been an ordinary decay: that is what it was written for
        end, half = schedule.last / peak, schedule.rate_at(calls // 2) / peak
        per_epoch = end ** (passes / calls) if end > 0 else 0.0
        if end < GONE and half < 0.02 and per_epoch >= 0.05:
            return Verdict(
                f"is stepped once per batch and decayed to {number(end)} of its first rate",
                f"stepped once in each of its {passes} epochs it would have ended at {number(per_epoch)} of it",
                "call scheduler.step() once per epoch, after the batch loop",
                calls,
                {"passes": passes, "steps_per_pass": each},
            )
        return None
    ends, back, again = (schedule.rate_at(k * passes) / peak for k in (1, 2, 3))
    written = passes in (v for k, v in schedule.horizon.items() if k.startswith("lambda."))
    if written and calls >= 3 * passes and max(ends, again) < LOW < HIGH < back:
        return Verdict(
            f"is stepped once per batch: its rate was down after {passes} calls and up again after {2 * passes}",
            f"this run made {times(passes, 'pass')} of {each} batches, and the function counts {passes}: epochs",
            "give the schedule its length in batches, or call scheduler.step() once per epoch",
            passes,
            {"passes": passes, "steps_per_pass": each, "too_fast": round(calls / passes, 1)},
        )
    gone = schedule.first_call_at_or_below(GONE * peak)
    if gone is not None and not loaded:
        counts = [n for n in counts_around(schedule) if abs(gone - n) <= 1 and calls >= 2 * n]
        passes, each = (counts[0], round(calls / counts[0])) if counts else (passes, each)
    if gone is not None and abs(gone - passes) <= 1 and calls >= 2 * passes:
        return Verdict(
            f"is stepped once per batch and its rate was gone after {times(gone, 'call')} of {calls}",
            f"this run made {times(passes, 'pass')} of {each} batches: the schedule counts epochs",
            "call scheduler.step() once per epoch, or give the schedule its length in batches",
            gone,
            {"passes": passes, "steps_per_pass": each},
        )
    return None


# ------------------------------------------------------------------------------------- stepped too rarely


def _too_rarely(schedule: Schedule, world: World) -> Verdict | None:
    """Stepped once for several optimizer steps (or several batches), with a length in batches."""
    passes, each = _epochs(schedule, world)
    batches = _loader_length(schedule, world)
    accumulates = schedule.per_step and each >= 1 and batches >= 2 * each
    if not (schedule.rarer or accumulates):
        return None
    length, name = _length(schedule)
    steps = world.optimizer(schedule.made.optimizer).steps - schedule.steps_at_making
    if length is None:
        length, name = _closed_over(schedule, steps, batches)
    if length is None or schedule.calls > 0.5 * length:
        return None
    written = counts_batches(schedule, name)
    walked = passes * batches if accumulates else schedule.calls * batches
    exact = (length == steps and not accumulates) or (batches >= 2 and length == walked)
    multiple = written and not accumulates and any(n >= 2 and length % n == 0 for n in (each, batches))
    if not (exact or multiple):
        return None
    per = max(round(steps / schedule.calls), 1)
    unit = f"once per {per} optimizer steps" if not accumulates else f"once per {round(batches / each)} batches"
    size = f"an epoch has {batches or each}" if max(batches, each) >= 2 else f"the run made {steps} optimizer steps"
    right = f"{name}=<optimizer steps>" if accumulates else f"{name}=epochs"
    return Verdict(
        f"is stepped {unit} and had run {schedule.calls} of its {number(length)} calls at the end, at rate "
        f"{number(schedule.last)}",
        f"{name} = {number(length)} counts batches: {size}",
        right if accumulates else f"call scheduler.step() after every optimizer.step(), or {right}",
        length,
        {
            "passes": passes or schedule.calls,
            "steps_per_pass": each or per,
            "share_of_length_run": round(schedule.calls / length, 3),
        },
    )


def _in_strides(schedule: Schedule, world: World) -> Verdict | None:
    """With the length of a loop that goes by strides (environment steps, samples), of which several are one call."""
    length, name = _length(schedule)
    ended = world.ended
    if length is None or schedule.calls > 0.5 * length or ended is None or ended.exit_code:
        return None
    loop = loop_in_strides(schedule, name)
    if loop is None:
        return None
    return Verdict(
        f"had run {schedule.calls} of its {number(length)} calls when the loop of line {loop.line} was through, at "
        f"rate {number(schedule.last)}",
        f"{name} = {number(length)} is what that loop counts to in larger strides",
        f"{name}=<calls of scheduler.step()>",
        length,
        {"share_of_length_run": round(schedule.calls / length, 3)},
    )


def _closed_over(schedule: Schedule, steps: int, batches: int) -> tuple[float | None, str]:
    """A number of a schedule function that equals the optimizer steps or batches of the run, where the rate never
    fell."""
    if schedule.last < 0.5 * schedule.peak:
        return None, ""
    for name, value in schedule.horizon.items():
        if name.startswith("lambda.") and value >= 2 * schedule.calls and value in (steps, schedule.calls * batches):
            return value, name.removeprefix("lambda.")
    return None, ""


# ------------------------------------------------------------------------------------- raised


def _overran(schedule: Schedule, world: World) -> Verdict | None:
    """OneCycleLR raises by itself when it is stepped past its end."""
    ended, total = world.ended, schedule.horizon.get("total_steps")
    if ended is None or total is None or "Tried to step" not in ended.message or schedule.calls < total - 1:
        return None
    passes, each = _epochs(schedule, world)
    return Verdict(
        f"was stepped more often than its total_steps = {number(total)} and raised",
        f"it is stepped once per batch, {each} times in a pass over the loader"
        if each >= 2
        else "its length is too short",
        "total_steps=epochs * len(loader)",
        total,
        {"passes": passes, "steps_per_pass": each},
    )


# ------------------------------------------------------------------------------------- readings


def _length(schedule: Schedule) -> tuple[float | None, str]:
    """The length of the schedule in calls, and the argument that holds it."""
    horizon = schedule.horizon
    if schedule.cls in OF_OTHERS:
        # the last schedule of a sequence begins at the last milestone
        for name in ("T_max", "total_iters", "total_steps"):
            if f"inner.{name}" in horizon:
                return horizon[f"inner.{name}"] + horizon.get("milestones", 0.0), name
        return None, ""
    for name in LENGTHS:
        if name in horizon:
            return horizon[name], name
    return None, ""


def _is_cosine(schedule: Schedule) -> bool:
    return schedule.cls == "CosineAnnealingLR" or (schedule.cls in OF_OTHERS and "inner.T_max" in schedule.horizon)


def _epochs(schedule: Schedule, world: World) -> tuple[int, int]:
    """(passes over the training loader, optimizer steps in one); (0, 0) without a loader."""
    found = schedule.epochs(world)
    return (0, 0) if found is None else (found[0], found[1])


def _loader_length(schedule: Schedule, world: World) -> int:
    found = schedule.epochs(world)
    info = world.loaders.get(found[2]) if found is not None else None
    return info.made.length if info is not None else 0


def _step_site(schedule: Schedule, world: World) -> Site:
    last = world.optimizer(schedule.made.optimizer).last_step
    return last.site if last is not None else NOWHERE


def not_checked(state: _schedules.State, world: World) -> str | None:
    if not state.schedules:
        return "no learning-rate scheduler was built"
    if not any(s.calls > 1 for s in state.schedules.values()):
        return "no scheduler was stepped twice"
    return None
