"""# Gradients are cleared between two backwards of one step

## What it is
Two reverse passes feed one step, or several micro-batches do, and a clear between them throws the earlier ones away.
The step uses the last one alone.

## Why it matters
The loss that was walked first never trains anything, although it is computed, logged and may even fall by accident.
In accumulation only the last micro-batch counts, at 1/k of its weight.

## How it is found
A clear throws away contributions that no optimizer has used and the program has not read, another reverse pass fills
the same tensors, and the step uses only that one, in most steps or three times in a row.

## Near misses
- The gradient of the first loss is read before the clear: sharpness-aware steps, gradient surgery, logged norms.
- The first pass was used by another optimizer (a generator's pass through the discriminator).
- A batch that is rejected for its gradient now and then: not finite, or a spike.
- A pass made for the gradient of an input (adversarial examples), whose parameter gradients are cleared.
- An incomplete accumulation window thrown away at the end of an epoch: that is GL-G22.

## Fix
Clear once per step, before the first backward, or after the step.
"""

from __future__ import annotations

from gradledger.audit import _lost
from gradledger.audit._cycle import clear_word, optimizer_word
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event
from gradledger.core.site import NOWHERE

RULE = Rule(
    "G6",
    "cleared-between-backwards",
    "gradient lifecycle",
    "A clear between two backwards of one step throws the first one's gradient away unused.",
)
LISTENS = _lost.LISTENS


def init() -> _lost.State:
    return _lost.State()


def update(state: _lost.State, event: Event, world: World) -> None:
    _lost.update(state, event, world)


def finish(state: _lost.State, world: World) -> list[Finding]:
    findings = []
    for _, watched, case in _lost.cases(state, world):
        if case.empty:
            continue
        word = optimizer_word(case.step.site, world)
        site = case.loss.clear if case.loss.clear.file else case.loss.fill
        used = case.used or NOWHERE
        clear = clear_word(case.loss.clear, world)
        same = used.key() == case.loss.fill.key()
        share = f"{case.lost} of {case.lost + case.seen} reverse passes of line {used.line} were lost" if same else (
            f"the gradient of line {case.loss.fill.line} was lost before {times(case.seen, 'step')}, only that of line "
            f"{used.line} was applied"
        )  # fmt: skip
        findings.append(
            Finding(
                "G6",
                "error",
                site,
                f"`{clear}` runs between two backwards of one step of `{word}`: {share}.",
                f"clear once per step: {word}.zero_grad() right after {word}.step(), and not here",
                related=distinct(site, (case.loss.fill, used, case.step.site)),
                evidence={
                    "steps": watched.steps,
                    "steps_with_a_loss": case.seen,
                    "reverse_passes_lost": case.lost,
                },
                count=case.seen,
                subject=word,
                iteration=case.step.iteration,
            )
        )
    return findings


def not_checked(state: _lost.State, world: World) -> str | None:
    return None if any(w.steps for w in state.optimizers.values()) else "no optimizer made a step"
