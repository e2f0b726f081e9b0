"""# Gradient clipping that clips nothing, or the wrong thing

## What it is
`clip_grad_norm_` or `clip_grad_value_` runs before the gradients are filled, after the step has used them, over other
parameters than those that are stepped, in a hook that the optimizer calls after its step, over an iterator that is
already empty, or while the gradients still carry the scale of a GradScaler, one that was put in by hand, or are sums
that are divided by a count only later.

## Why it matters
The update that the limit was meant to bound goes through unclipped (or, with a loss scale, almost every update is
clipped to nothing).  The program says that gradients are bounded, and they are not.

## How it is found
Each call is compared with what stands in the gradients at that moment, and with what the next optimizer step uses:
fills that no step has used yet must be there, in tensors that this step holds.  A finding needs every call (or nearly
every one) from that line to fail.  A scale by hand is told by two numbers that cancel: the loss was multiplied by it,
and between the clip and the step all gradients were divided by it.  Sums are told alike: their losses were summed over
just so many elements as the gradients are divided by after the clip, the number changes from step to step, and most of
the time the mean is below the limit.

## Near misses
- Clipping per module, some of which have no gradient in some iterations.
- A limit that is itself multiplied by the scale; gradients averaged after the clip, over a window or over ranks.
- A limit made for sums, which few of them exceed; sums over one number of elements in all steps.
- A norm that is only measured: a limit of infinity.
- Gradients that the program wrote itself, also those that were clipped in a worker's copy and then moved to the
  network that is stepped.

## Fix
`backward()`, then (with a scaler) `scaler.unscale_(optimizer)`, then the clip, then the step; parameters in a list.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit import _iterators, _scales
from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._cycle import optimizer_word, written
from gradledger.audit._loops import enclosing_function
from gradledger.audit._phrases import distinct, number, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "O5",
    "clip-without-effect",
    "optimizers and schedulers",
    "Gradients are clipped before they are filled, after they were used, in other parameters, or while still scaled.",
)
LISTENS = (ev.Clip, ev.ClippedRescaled, ev.Step, ev.Backward, ev.ExhaustedIterator)
LINES_KEPT = 256
TWICE = 2  # calls that must have come too early or too late
UNEVEN = 1.1  # largest number of elements by the smallest: a limit for sums could be made for neither
ENOUGH = 3  # calls that must have touched nothing before parameters are called wrong


@dataclass(slots=True)
class Open:
    """The latest call from one line, until the next one.  `filling`: the reverse pass of other gradients was the last
    thing before it, no step; `filled_after`: a reverse pass wrote gradients since; `used`: a step held some of its
    tensors; `stepped`: a step used gradients that stood before it; `followed`: a step used gradients that were filled
    after it."""

    event: ev.Clip
    filling: bool = False
    filled_after: bool = False
    used: bool = False
    stepped: bool = False
    followed: bool = False


@dataclass(slots=True)
class Line:
    """Calls from one line by outcome.  A function that clips for several optimizers has a `Line` for each line that
    calls it; `alone`: it has one caller only; `by_hand`: steps before which gradients were divided by the very number
    that their loss was multiplied by (`scale`); `summed`: those before which they were divided by the number of summed
    elements, the norm of the sums above the limit; `below`: of these, the norm of the means below it; `counts`: the
    numbers of elements; `optimizers`: those whose steps it came before."""

    site: Site
    limit: float
    iteration: int
    calls: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    scale: float | None = None
    largest: float = 0.0
    open: Open | None = None
    step: Site = NOWHERE
    fill: Site = NOWHERE
    tensors: tuple[int, ...] = ()
    alone: bool = True
    by_hand: int = 0
    summed: int = 0
    below: int = 0
    counts: set[int] = field(default_factory=set)
    optimizers: set[int] = field(default_factory=set)

    def count(self, outcome: str) -> int:
        """Calls with this outcome."""
        return self.outcomes.get(outcome, 0)

    def all_but_few(self, outcome: str) -> bool:
        """A few calls at least, and nine of ten."""
        least = TWICE if self.alone else ENOUGH
        return self.count(outcome) >= least and self.count(outcome) >= 0.9 * self.calls


@dataclass(slots=True)
class State:
    """By line of the clip and the line that called its function; exhausted iterators by function and argument; the
    latest reverse pass that filled; whether a step came after it."""

    lines: dict[tuple[tuple[str, int], tuple[str, int]], Line] = field(default_factory=dict)
    exhausted: dict[tuple[str, str, str], list[ev.ExhaustedIterator]] = field(default_factory=dict)
    fill: Site = NOWHERE
    used: bool = True


def init() -> State:
    return State()


def update(state: State, event: ev.Event, world: World) -> None:
    if isinstance(event, ev.Backward):
        if event.method == "backward" and event.leaves:
            state.fill, state.used = event.site, False
            for line in state.lines.values():
                if line.open is not None and not line.open.stepped:
                    line.open.filled_after = True
    elif isinstance(event, ev.Step):
        state.used = True
        for line in state.lines.values():
            if line.open is not None:
                _stepped(line, line.open, event)
    elif isinstance(event, ev.Clip):
        if math.isfinite(event.limit):
            _clipped(state, event)
    elif isinstance(event, ev.ClippedRescaled):
        _rescaled(state, event, world)
    elif isinstance(event, ev.ExhaustedIterator):
        kept = state.exhausted.setdefault((event.site.file, event.function, event.name), [])
        if len(kept) < 2 and len(state.exhausted) < LINES_KEPT:
            kept.append(event)


def _clipped(state: State, event: ev.Clip) -> None:
    caller = next(((c.file, c.line) for c in event.site.callers), ("", 0))
    key = (event.site.key(), caller)
    line = state.lines.get(key)
    if line is None:
        if len(state.lines) >= LINES_KEPT:
            return
        others = [other for (place, _), other in state.lines.items() if place == event.site.key()]
        line = state.lines[key] = Line(event.site, event.limit, event.iteration, alone=not others)
        for other in others:
            other.alone = False
    for (place, _), other in state.lines.items():
        if place == event.site.key():
            _close(other)
    line.calls += event.weight
    line.open = Open(event, filling=not state.used)
    line.fill = state.fill
    line.scale = event.scale if event.scaled else line.scale
    line.tensors = event.tensors or line.tensors
    if event.total_norm is not None and math.isfinite(event.total_norm):
        line.largest = max(line.largest, event.total_norm)


def _rescaled(state: State, event: ev.ClippedRescaled, world: World) -> None:
    """The gradients of the latest clip from this line were multiplied by one number: did that take a scale out?"""
    line = next((one for (place, _), one in state.lines.items() if place == event.site.key() and one.open), None)
    passes = [b for number in event.pending if (b := world.backward(number)) is not None]
    scale = next((s for b in passes if (s := _scales.scale_of(b, event.factor)) is not None), None)
    if line is None or line.open is None:
        return
    if scale is not None and scale > 1:
        line.by_hand += event.weight
        line.scale = scale
        return
    norm = line.open.event.total_norm or 0.0
    if norm > line.limit and _scales.divides_by_count(passes, event.factor):
        line.summed += event.weight
        line.below += event.weight if norm * abs(event.factor) < line.limit else 0
        line.scale = abs(1 / event.factor)
        line.counts.add(round(line.scale))


def _stepped(line: Line, opened: Open, step: ev.Step) -> None:
    line.step = step.site
    touched = set(opened.event.tensors)
    filled = [life for life in step.lives if life.grad in ("filled", "assigned") and not life.frozen]
    if opened.filled_after:
        opened.followed = opened.followed or bool(filled)
    if any(touched.intersection((*life.tensors, *life.lenders)) for life in filled):
        opened.used = True
        line.optimizers.add(step.optimizer)
    elif filled and not opened.filled_after:
        # gradients that the program put there itself may be those that were clipped (a worker's, moved to a shared net)
        opened.stepped = opened.stepped or any(life.grad == "filled" for life in filled)
        line.optimizers.add(step.optimizer)


def _close(line: Line) -> None:
    opened, line.open = line.open, None
    if opened is None:
        return
    outcome = _outcome(opened)
    line.outcomes[outcome] = line.outcomes.get(outcome, 0) + opened.event.weight


def _outcome(opened: Open) -> str:
    clip = opened.event
    stands = bool(clip.pending) or bool(clip.tensors and clip.total_norm and not clip.consumed)
    if clip.given == 0:
        return "nothing given" if opened.stepped or opened.filled_after else "idle"
    if clip.scaled and clip.tensors:
        return "scaled"
    if clip.consumed:
        return "elsewhere" if opened.filling and opened.stepped and not opened.used else "after"
    if stands:
        return "effective" if opened.used or not opened.stepped else "elsewhere"
    if opened.stepped:
        return "elsewhere"
    return "before" if opened.followed else "idle"


def finish(state: State, world: World) -> list[Finding]:
    for line in state.lines.values():
        _close(line)
    findings = [f for line in state.lines.values() if (f := _judged(line, state, world)) is not None]
    return findings + list(_by_hand(state, world))


def _judged(line: Line, state: State, world: World) -> Finding | None:
    limit = number(line.limit)
    word = optimizer_word(line.step, world)
    clip = written(line.site, world) or "clip_grad_norm_(...)"
    related: tuple[Site, ...] = (line.fill, line.step)
    evidence: dict[str, float | int | str | None] = {"calls": line.calls, "limit": line.limit}
    if line.count("scaled") >= max(1, line.calls // 2):
        evidence |= {"scaled_calls": line.count("scaled"), "scale": line.scale, "largest_norm_seen": line.largest}
        message = (
            f"Gradients are clipped to {limit} while they still carry the loss scale {number(line.scale)}: the limit "
            f"that acts is {number(line.limit / line.scale) if line.scale else '?'}, in {line.count('scaled')} of "
            f"{times(line.calls, 'call')}."
        )
        fix = f"scaler.unscale_({word}) on the line before {clip}"
        return _finding(line, "error", message, fix, related, evidence, line.count("scaled"))
    if line.by_hand >= TWICE and line.all_but_few("effective") and not _scales.limit_is_scaled(line.site):
        evidence |= {"steps_that_divide_after": line.by_hand, "scale": line.scale, "largest_norm_seen": line.largest}
        message = (
            f"Gradients are clipped to {limit} while they still carry the factor {number(line.scale)} by which the "
            f"loss was multiplied: they are divided by it only after the clip, and the limit that acts is "
            f"{number(line.limit / line.scale) if line.scale else '?'}."
        )
        fix = f"divide the gradients by {number(line.scale)} first, then {clip}"
        return _finding(line, "error", message, fix, related, evidence, line.by_hand)
    uneven = bool(line.counts) and max(line.counts) >= UNEVEN * min(line.counts)
    if line.summed >= ENOUGH and uneven and 2 * line.below > line.summed and line.all_but_few("effective"):
        if _scales.limit_is_scaled(line.site):
            return None
        evidence |= {"steps_that_divide_after": line.summed, "elements": line.scale, "largest_norm_seen": line.largest}
        message = (
            f"Gradients are clipped to {limit} while they are still sums: they are divided by the number of elements, "
            f"{number(line.scale)} the last time, only after the clip.  In {line.below} of "
            f"{times(line.summed, 'step')} the mean was below {limit}, and the limit that acts is "
            f"{number(line.limit / (line.scale or 1))}."
        )
        fix = f"divide the gradients by the number of elements first, then {clip}"
        return _finding(line, "error", message, fix, related, evidence, line.summed)
    if line.all_but_few("after"):
        evidence |= {"calls_after_step": line.count("after")}
        message = (
            f"The clip runs after the step that used these gradients, in {line.count('after')} of "
            f"{times(line.calls, 'call')}: no update was ever limited to {limit}."
        )
        fix = f"{clip} before {word}.step()" + (f" on line {line.step.line}" if line.step.file else "")
        return _finding(line, "error", message, fix, (*_hooked(line.site), *related), evidence, line.count("after"))
    if line.all_but_few("before"):
        evidence |= {"calls_before_fill": line.count("before")}
        message = (
            f"The clip runs before the reverse pass fills the gradients: {line.count('before')} of "
            f"{times(line.calls, 'call')} found nothing to clip, and every update went through unlimited."
        )
        fix = (
            f"{clip} after backward()"
            + (f" on line {line.fill.line}" if line.fill.file else "")
            + f", before {word}.step()"
        )
        return _finding(line, "error", message, fix, related, evidence, line.count("before"))
    if line.count("nothing given") >= 2 and line.count("nothing given") >= line.calls - 2:
        evidence |= {"calls_given_no_parameter": line.count("nothing given")}
        made = _iterators.made_at(line.site, world)
        message = (
            f"{line.count('nothing given')} of {times(line.calls, 'call')} were given no parameter at all: the "
            f"iterator was used up by an earlier walk, so nothing is clipped any more."
        )
        fix = "keep the parameters in a list: list(...)" + (f" on line {made.line}" if made.file else "")
        return _finding(line, "error", message, fix, (made, *related), evidence, line.count("nothing given"))
    if line.count("elsewhere") >= ENOUGH and line.count("elsewhere") == line.calls and not _others_clip(line, state):
        evidence |= {"calls_without_a_stepped_gradient": line.count("elsewhere")}
        message = (
            f"None of the gradients that the step uses are among those that are clipped, in "
            f"{times(line.calls, 'call')}: the limit {limit} acts on other parameters."
        )
        fix = f"clip the parameters that {word} holds"
        return _finding(line, "error", message, fix, related, evidence, line.calls)
    return None


def _finding(
    line: Line,
    severity: str,
    message: str,
    fix: str,
    related: tuple[Site, ...],
    evidence: dict[str, float | int | str | None],
    count: int,
) -> Finding:
    callers = () if line.alone else line.site.above(1)
    return Finding(
        "O5",
        "error" if severity == "error" else "warning",
        line.site,
        message,
        fix,
        related=distinct(line.site, (*related, *callers)),
        evidence=evidence,
        count=count,
        subject="clip",
        iteration=line.iteration,
    )


def _hooked(clip: Site) -> list[Site]:
    """Where the function around the clip is made a hook that runs after the step."""
    function, tree = enclosing_function(clip.file, clip.line), parsed(clip.file)
    calls = [n for n in walk(tree) if isinstance(n, ast.Call)] if function is not None and tree is not None else []
    return [
        Site(clip.file, call.lineno, "")
        for call in calls
        if last_name(call.func) == "register_step_post_hook"
        and function is not None
        and any(last_name(given) == function.name for given in call.args)
    ]


def _others_clip(line: Line, state: State) -> bool:
    """Whether another line clips what the step uses: then this one is a module that has no gradient in this run."""
    return any(
        other is not line and other.count("effective") > 0 and not line.optimizers.isdisjoint(other.optimizers)
        for other in state.lines.values()
    )


def _by_hand(state: State, world: World) -> Iterator[Finding]:
    """Clipping written by hand over an iterator that is used up."""
    for events in state.exhausted.values():
        first = events[0]
        uses = [use for use in _iterators.uses_of(first.site, first.name) if "grad" in use.writes]
        if not uses:
            continue
        caller = _iterators.caller(first.site)
        places = (first.made_site, _iterators.made_at(caller, world), _iterators.made_at(uses[-1].site, world))
        made = next((s for s in places if s.file), NOWHERE)
        yield _nothing_walked(first.name, made, uses[-1], (caller, *(use.loop for use in uses)), first.iteration)
    for found in _iterators.used_up(world):
        if "grad" in found.use.writes and found.repeated:
            yield _nothing_walked(found.name, found.made, found.use, (), None)


def _nothing_walked(
    name: str, made: Site, use: _iterators.Use, more: tuple[Site, ...], iteration: int | None
) -> Finding:
    site = made if made.file else use.site
    line = f" (made once, on line {made.line})" if made.file else ""
    return Finding(
        "O5",
        "error",
        site,
        f"`{name}`{line} is an iterator that has been walked before: the loop on line {use.loop.line} that changes the "
        f"gradients runs zero times, and they stay as they are.",
        "keep the parameters in a list: list(...) or [p for p in model.parameters() if p.requires_grad]",
        related=distinct(site, (use.site, use.loop, *more)),
        evidence={"iterator": name, "made_line": made.line, "loop_line": use.loop.line, "parameters_walked": 0},
        subject=name,
        iteration=iteration,
    )


def not_checked(state: State, world: World) -> str | None:
    return None if state.lines or state.exhausted else "gradients were not clipped"
