"""# One graph is walked twice into the same gradient

## What it is
`backward()` runs again over a loss, or over a sum that contains a loss, which was walked already and whose gradient
has not been cleared: `retain_graph=True` makes it possible, and accumulation makes it count double.

## Why it matters
The gradient is a constant multiple of the intended one (2x for the whole loss, or for the part that is walked again).
It looks like a badly chosen learning rate or loss weight.

## How it is found
The root of a reverse pass is the very tensor of an earlier pass, or has it among its additive terms, while the
earlier contribution still stands in `.grad`; and a step then uses both.  The multiple is constant, step after step.

## Near misses
- Two different losses over a shared trunk, each walked once.
- A pass whose gradient is cleared before the second one.
- Rows of a Jacobian: repeated passes from an output that is not a scalar, each with its own weights.

## Fix
Walk the graph once, and read what is to be logged from `.grad` after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import prod

from gradledger.audit import oracle
from gradledger.audit._cycle import loss_word, optimizer_word, path_of
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, OracleExplained, Step
from gradledger.core.site import Site

RULE = Rule(
    "G5",
    "repeated-backward",
    "gradient lifecycle",
    "The same loss is walked more than once into gradients that were not cleared in between.",
)
LISTENS: tuple[type[Event], ...] = (Backward, Step)
PENDING_KEPT = 256


@dataclass(slots=True)
class _Repeat:
    earlier: Site
    later: Backward
    whole: bool
    step: Site
    multiple: int
    optimizer: int
    seen: int = 0


@dataclass(slots=True)
class State:
    """`pending`: repeating passes that no step has used yet, with the passes that they repeat."""

    pending: dict[int, tuple[Backward, int, bool]] = field(default_factory=dict)
    found: dict[tuple[object, ...], _Repeat] = field(default_factory=dict)
    steps: int = 0


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Backward):
        if event.method != "backward" or event.raised or prod(event.root_shape) != 1:
            return
        earlier = event.repeats if event.repeats is not None else (event.covers[-1] if event.covers else None)
        if earlier is not None:
            state.pending[event.backward] = (event, earlier, event.repeats is not None)
            if len(state.pending) > PENDING_KEPT:
                del state.pending[next(iter(state.pending))]
    elif isinstance(event, Step):
        state.steps += 1
        if state.pending:
            _step(state, event, world)


def _step(state: State, event: Step, world: World) -> None:
    together: dict[int, int] = {}
    for life in event.lives:
        standing = {f.backward for f in life.fills}
        for backward in standing & state.pending.keys():
            later, earlier, _ = state.pending[backward]
            if earlier in standing:
                together[backward] = max(together.get(backward, 0), 2 + _chain(state, earlier, standing))
    for backward, multiple in together.items():
        later, earlier, whole = state.pending.pop(backward)
        first = world.backward(earlier)
        if first is None:
            continue
        key = (path_of(first.site), path_of(later.site), event.optimizer)
        repeat = state.found.setdefault(
            key, _Repeat(first.site, later, whole, event.site, multiple, event.optimizer)
        )  # fmt: skip
        repeat.seen += 1
        repeat.multiple = max(repeat.multiple, multiple)


def _chain(state: State, backward: int, standing: set[int]) -> int:
    length = 0
    while backward in state.pending and state.pending[backward][1] in standing:
        backward = state.pending[backward][1]
        length += 1
    return length


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for repeat in state.found.values():
        if repeat.seen < 2 and state.steps > 2:
            continue
        later, site = repeat.later, repeat.later.site
        loss, word = loss_word(repeat.earlier, world), optimizer_word(repeat.step, world)
        same = repeat.earlier.key() == site.key()
        where = (
            "again and again on this line" if same else f"on line {repeat.earlier.line} and again on line {site.line}"
        )
        what = f"`{loss}` is walked {where}" if repeat.whole else f"A term of the loss is walked {where}"
        if same:
            fix = "walk each loss once, or clear before it is walked again"
        elif repeat.whole:
            fix = f"delete {loss}.backward(...) on line {repeat.earlier.line} and read p.grad after line {site.line}"
        else:
            fix = f"walk either the sum or its parts: delete one of lines {repeat.earlier.line} and {site.line}"
        finding = Finding(
            "G5",
            "error",
            site,
            f"{what} without a clear in between, so `{word}` applies it {repeat.multiple}x, at "
            f"{times(repeat.seen, 'step')}.",
            fix,
            related=distinct(site, (repeat.earlier, repeat.step)),
            evidence={
                "steps": repeat.seen,
                "multiple": repeat.multiple,
                "same_root": repeat.whole,
                "signature": f"constant {repeat.multiple}x",
            },
            count=repeat.seen,
            iteration=later.iteration,
        )
        test = partial(_counts, {repeat.earlier.key(), site.key()}, world)
        findings.append(oracle.weigh(finding, world, repeat.optimizer, test))
    return findings


def _counts(lines: set[tuple[str, int]], world: World, event: OracleExplained) -> bool | None:
    """Whether a term that several passes of these lines walked counts more than once."""
    verdict: bool | None = None
    for share in event.shares:
        walked = len(share.backwards)
        known = {one.site.key() for b in share.backwards if (one := world.backward(b)) is not None}
        if share.kind != "term" or walked < 2 or not known <= lines:
            continue
        found = oracle.at_least(share, share.written / walked, event.scale)
        if found:
            return True
        verdict = found if verdict is None else verdict
    return verdict


def not_checked(state: State, world: World) -> str | None:
    return None if state.steps else "no optimizer made a step"
