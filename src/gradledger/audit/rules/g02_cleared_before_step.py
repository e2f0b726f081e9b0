"""# Gradients are cleared between backward and step

## What it is
`zero_grad()` stands after `loss.backward()` and before `optimizer.step()`.  The step finds no gradient, or zeros.

## Why it matters
Nothing is learned from the loss.  Without weight decay or momentum the parameters do not move at all and the loss
stays flat; nothing raises.

## How it is found
A clear throws away contributions of a reverse pass that no optimizer has used and the program has not read, and the
next step of that optimizer then finds nothing in any of its tensors, in most steps, three times in a row, or again and
again after the same number of steps.

## Near misses
- Clearing after the step, or before the backward.
- A generator's pass leaves gradients on the discriminator, which are cleared before its own backward: the pass was
  used by the generator's optimizer.
- Steps withheld by a GradScaler, or by the program, after a non-finite loss.
- Programs that read the gradient before they clear it, and move a parameter then, by the step or by hand.

## Fix
Order: `optimizer.zero_grad()`, `loss.backward()`, `optimizer.step()`.
"""

from __future__ import annotations

from gradledger.audit import _lost
from gradledger.audit._cycle import clear_word, loss_word, of_steps, optimizer_word
from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event
from gradledger.core.site import Site

RULE = Rule(
    "G2",
    "cleared-before-step",
    "gradient lifecycle",
    "Gradients are cleared after backward and before the step, which then finds nothing.",
)
LISTENS = _lost.LISTENS
NO_GRADIENT = "No inf checks were recorded"


def init() -> _lost.State:
    return _lost.State()


def update(state: _lost.State, event: Event, world: World) -> None:
    _lost.update(state, event, world)


def finish(state: _lost.State, world: World) -> list[Finding]:
    findings = _unscaled_nothing(state, world)
    for ident, watched, case in _lost.cases(state, world):
        if not case.empty or _lost.step_comes_first(watched, case):
            continue
        word = optimizer_word(case.step.site, world)
        site = case.loss.clear if case.loss.clear.file else case.step.site
        clear = clear_word(case.loss.clear, world)
        findings.append(
            Finding(
                "G2",
                "error",
                site,
                f"`{clear}` throws the gradient of line {case.loss.fill.line} away before `{word}` uses it: "
                f"{case.seen} of {of_steps(watched.steps, ident, world)} found no gradient at all.",
                f"move {clear} before {loss_word(case.loss.fill, world)}.backward()",
                related=distinct(site, (case.loss.fill, case.step.site)),
                evidence={
                    "steps": watched.steps,
                    "empty_steps": case.seen,
                    "reverse_passes_lost": case.lost,
                    "signature": "no update at all",
                },
                count=case.seen,
                subject=word,
                iteration=case.step.iteration,
            )
        )
    return findings


def _unscaled_nothing(state: _lost.State, world: World) -> list[Finding]:
    """A GradScaler finds no gradient to unscale and raises: the clear before it is the cause."""
    ended = world.ended
    if ended is None or NO_GRADIENT not in ended.message:
        return []
    findings = []
    step = [Site(f.file, f.line, f.function) for f in ended.frames[-1:]]
    for watched in state.optimizers.values():
        for loss in list(watched.losses.values())[-1:]:
            clear = clear_word(loss.clear, world)
            findings.append(
                Finding(
                    "G2",
                    "error",
                    loss.clear if loss.clear.file else loss.fill,
                    f"The scaler raises because `{clear}` threw the gradient of line {loss.fill.line} away before "
                    "the step: no parameter has one.",
                    f"move {clear} before the backward on line {loss.fill.line}",
                    related=distinct(loss.clear, (loss.fill, *step)),
                    evidence={"error": ended.message[:200]},
                    iteration=ended.iteration,
                )
            )
    return findings


def not_checked(state: _lost.State, world: World) -> str | None:
    return None if any(w.steps for w in state.optimizers.values()) else "no optimizer made a step"
