"""# An incomplete accumulation window at the end of an epoch

## What it is
Gradients are accumulated over k micro-batches and the number of micro-batches of an epoch is no multiple of k.  What
is left over is thrown away, leaks into the first step of the next epoch, or is applied with the divisor of a full
window.

## Why it matters
Thrown away: some data of every epoch never trains.  Leaked: one step of every epoch is made of more micro-batches
than the others, the first of them taken at older weights.  Wrong divisor: the last step of every epoch is too small.

## How it is found
The size of a window is counted at each step.  When a pass over the training loader begins while reverse passes stand
unused, the step that finally uses them has another size than regular windows; or a clear throws fewer than k of them
away, epoch after epoch; or a smaller window carries the constant factor 1/k of full ones.  A factor is one of the loss,
or one that the program multiplies the gradients by, in place, before the step.

## Near misses
- Windows that divide evenly, and a last window that is stepped and divided by its own size.
- A validation pass in the middle of a window.
- Windows that are counted across epochs and keep their size.

## Fix
Step on the last micro-batch of the epoch too, and divide by the number of micro-batches that the window really has.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from gradledger.audit._cycle import Path, loss_word, optimizer_word, path_of
from gradledger.audit._loops import conditions_around
from gradledger.audit._phrases import distinct, number, times
from gradledger.audit._windows import Window, weight_of, window_of
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Clear, Event, LoaderEpoch, ModuleCalled, Step
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "G22",
    "partial-window",
    "gradient lifecycle",
    "The incomplete accumulation window at the end of an epoch is dropped, leaks on, or has a wrong divisor.",
    "warning",
)
LISTENS: tuple[type[Event], ...] = (Step, Clear, LoaderEpoch, ModuleCalled)
PATHS_KEPT = 256
IDS_KEPT = 512


@dataclass(slots=True)
class _Line:
    """Windows of one line.  `whole`: sizes of windows inside one pass over the data; `crossing`: of those that hold
    passes of the epoch before; `thrown`: sizes of what clears threw away; `factors`: by size, of watched windows."""

    site: Site
    step: Site
    first: int
    whole: Counter[int] = field(default_factory=Counter)
    crossing: Counter[int] = field(default_factory=Counter)
    leftovers: Counter[int] = field(default_factory=Counter)
    thrown: Counter[int] = field(default_factory=Counter)
    clear: Site = NOWHERE
    factors: dict[int, Counter[float]] = field(default_factory=dict)
    rescaled: int = 0


@dataclass(slots=True)
class State:
    """`pending`: passes that stood unused when a pass over a training loader began; `asked`: the same, until the first
    forward call shows whether that pass trains."""

    lines: dict[tuple[int, Path], _Line] = field(default_factory=dict)
    pending: deque[int] = field(default_factory=lambda: deque(maxlen=IDS_KEPT))
    asked: tuple[int, ...] = ()
    thrown: deque[int] = field(default_factory=lambda: deque(maxlen=IDS_KEPT))


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, LoaderEpoch):
        _settle(state, True)
        state.asked = event.pending
    elif isinstance(event, ModuleCalled):
        if state.asked:
            _settle(state, event.grad_on and event.output_has_graph)
    elif isinstance(event, Step):
        _settle(state, True)
        _step(state, event, world)
    elif isinstance(event, Clear):
        _settle(state, True)
        _clear(state, event, world)


def _settle(state: State, trains: bool) -> None:
    if trains:
        state.pending.extend(state.asked)
    state.asked = ()


def _step(state: State, event: Step, world: World) -> None:
    window = window_of(event, world)
    if window is None:
        return
    key = (event.optimizer, window.path)
    line = state.lines.get(key)
    if line is None:
        if len(state.lines) >= PATHS_KEPT:
            return
        line = state.lines[key] = _Line(window.passes[0].site, event.site, event.iteration)
    left = sum(b.backward in state.pending for b in window.passes)
    line.rescaled += window.rescaled and window.scaled is None and all(b.detailed for b in window.passes)
    if left:
        line.crossing[window.size] += 1
        line.leftovers[left] += 1
    else:
        line.whole[window.size] += 1
        _weigh(line, window)


def _weigh(line: _Line, window: Window) -> None:
    if window.rescaled and window.scaled is None:
        return
    own = window.scaled or 1.0
    factors = [own * w.factor for b in window.passes if (w := weight_of(b)) is not None and not w.divided]
    if factors and len(set(factors)) == 1:
        line.factors.setdefault(window.size, Counter())[round(factors[0], 9)] += 1


def _clear(state: State, event: Clear, world: World) -> None:
    for (optimizer, path), line in state.lines.items():
        held = world.optimizer(optimizer).tensors
        gone = set()
        for dropped in event.dropped:
            if dropped.consumed or dropped.read or dropped.backward in state.thrown:
                continue
            backward = world.backward(dropped.backward)
            if backward is None or path_of(backward.site) != path or world.consumers(dropped.backward):
                continue
            if any(t in held for t in dropped.tensors):
                gone.add(dropped.backward)
        if gone:
            line.thrown[len(gone)] += 1
            line.clear = event.site
            state.thrown.extend(gone)


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for line in state.lines.values():
        finding = _judge(line, world)
        if finding is not None:
            findings.append(finding)
    return findings


def _judge(line: _Line, world: World) -> Finding | None:
    if not line.whole:
        return None
    k = line.whole.most_common(1)[0][0]
    if k < 2:
        return None
    word, loss = optimizer_word(line.step, world), loss_word(line.site, world)
    fix = f"step on the last micro-batch of the epoch too, and divide {loss} by the size that its window really has"
    leaked = {size: n for size, n in line.crossing.items() if size != k}
    thrown = {size: n for size, n in line.thrown.items() if size < k}
    steps = sum(line.whole.values()) + sum(line.crossing.values())
    evidence: dict[str, int | float] = {"window": k, "steps": steps}
    if leaked:
        size, left = max(leaked), line.leftovers.most_common(1)[0][0]
        evidence |= {"leaks": sum(leaked.values()), "left_over": left, "largest_window": size}
        return Finding(
            "G22", "error", line.step,
            f"{left} of every {k} micro-batches are left over at the end of an epoch and leak into the first step of "
            f"the next: {times(sum(leaked.values()), 'step')} of `{word}` used {size} instead of {k}.",
            fix, related=distinct(line.step, (line.site, *conditions_around(line.step))), evidence=evidence,
            count=sum(leaked.values()), subject=word, iteration=line.first,
        )  # fmt: skip
    if sum(thrown.values()) >= 2 and 2 * sum(thrown.values()) <= 2 * steps:
        size = max(thrown)
        evidence |= {"windows_lost": sum(thrown.values()), "left_over": size}
        site = line.clear if line.clear.file else line.step
        return Finding(
            "G22", "warning", site,
            f"An incomplete window of {size} micro-batches (full ones have {k}) is thrown away here, "
            f"{times(sum(thrown.values()), 'time')}: its data never trains.",
            fix, related=distinct(site, (line.step, line.site)), evidence=evidence, count=sum(thrown.values()),
            subject=word, iteration=line.first,
        )  # fmt: skip
    return _leaks_unseen(line, word, fix, evidence) or _wrong_divisor(line, k, word, fix, evidence)


def _leaks_unseen(line: _Line, word: str, fix: str, evidence: dict[str, int | float]) -> Finding | None:
    """Epochs that no loader tells of: windows of k passes, each divided by k, and now and then a longer one of less
    than 2k, divided by k as well, which holds what the epoch before had left."""
    for k in sorted(size for size in line.whole if size >= 2):
        factor = line.factors[k].most_common(1)[0][0] if k in line.factors else 0.0
        longer = [s for s in line.whole if k < s < 2 * k and factor in line.factors.get(s, ())]
        count = sum(line.whole[s] for s in longer)
        if line.rescaled or abs(factor * k - 1) > 0.01 or count < 2 or len(longer) > 1:
            continue
        size = longer[0]
        evidence |= {"window": k, "leaks": count, "left_over": size - k, "largest_window": size}
        return Finding(
            "G22", "error", line.step,
            f"{times(count, 'step')} of `{word}` used {size} micro-batches that were each divided by {k}: {size - k} "
            "of them were left over when the epoch before ended.",
            fix, related=distinct(line.step, (line.site, *conditions_around(line.step))), evidence=evidence,
            count=count, subject=word, iteration=line.first,
        )  # fmt: skip
    return None


def _wrong_divisor(line: _Line, k: int, word: str, fix: str, evidence: dict[str, int | float]) -> Finding | None:
    full = line.factors.get(k)
    if full is None or line.rescaled:
        return None
    factor = full.most_common(1)[0][0]
    small = [
        s for s in line.whole if s < k and (seen := line.factors.get(s)) and seen.most_common(1)[0][0] == factor
    ]  # fmt: skip
    if not small or abs(factor * k - 1) > 0.01 or sum(line.whole[s] for s in small) > line.whole[k]:
        return None
    size, count = max(small), sum(line.whole[s] for s in small)
    evidence |= {"short_windows": count, "left_over": size, "factor": factor}
    return Finding(
        "G22", "warning", line.site,
        f"The last window of an epoch has {size} micro-batches but is divided by {k} like full ones, so `{word}` "
        f"applies {number(size / k)}x of its mean, {times(count, 'time')}.",
        fix, related=distinct(line.site, (line.step,)), evidence=evidence, count=count, subject=word,
        iteration=line.first,
    )  # fmt: skip


def not_checked(state: State, world: World) -> str | None:
    if any(size > 1 for line in state.lines.values() for size in (*line.whole, *line.crossing)):
        return None
    return "no step used more than one reverse pass"
