"""# Gradients are cleared more rarely than they are used

## What it is
`zero_grad()` stands outside the loop that calls `backward()` and `step()`: once per epoch, once per rollout, or once
before training.  Inside the loop every step applies the sum of all gradients since that clear.

## Why it matters
The second minibatch of the epoch is applied with the first one's gradient on top, the last with all of them.  The
effective learning rate grows through each epoch and falls back at its end.

## How it is found
As GL-G01: at a step, contributions that an earlier step has used stand together with newer ones.  Here clears of the
same tensors exist; the rule names them, counts steps per clear and gives the largest multiple seen.  Where each step
has its clear in one part of the program and none in another, GL-G01 names the part that has none.

## Near misses
- Accumulation, where steps are as rare as clears: nothing used is left at a step.
- A clear at the end of each iteration instead of its start.

## Fix
Move `optimizer.zero_grad()` into the loop, before the `backward()` of each step.
"""

from __future__ import annotations

from gradledger.audit import _stale
from gradledger.audit._cycle import clear_word, loss_word, of_steps, optimizer_word
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event

RULE = Rule(
    "G3",
    "cleared-too-rarely",
    "gradient lifecycle",
    "Gradients are cleared once per epoch or rollout while every minibatch steps, so used gradients pile up.",
)
LISTENS = _stale.LISTENS


def init() -> _stale.State:
    return _stale.State()


def update(state: _stale.State, event: Event, world: World) -> None:
    _stale.update(state, event, world)


def finish(state: _stale.State, world: World) -> list[Finding]:
    findings = []
    for ident, watched in state.by.items():
        clears = watched.clears_of_stale()
        if not watched.regular or not clears or watched.elsewhere:
            continue
        clear = clears[0]
        word = optimizer_word(watched.step_site, world)
        site = clear.site if clear.site.file else watched.fill_site
        count = sum(c.count for c in clears)
        findings.append(
            Finding(
                "G3",
                "error",
                site,
                f"`{clear_word(clear.site, world)}` ran {times(count, 'time')} for "
                f"{of_steps(watched.steps, ident, world)} of "
                f"`{word}`: {watched.stale} steps applied gradients that an earlier step had applied already, up to "
                f"{watched.multiple} reverse passes at once.",
                f"move {clear_word(clear.site, world)} into the loop, before "
                f"{loss_word(watched.fill_site, world)}.backward()"
                + (f" on line {watched.fill_site.line}" if watched.fill_site.file else ""),
                related=distinct(site, (watched.fill_site, watched.step_site, *(c.site for c in clears[1:4]))),
                evidence={
                    "steps": watched.steps,
                    "clears": count,
                    "stale_steps": watched.stale,
                    "largest_multiple": watched.multiple,
                    "steps_per_clear": round(watched.steps / max(count, 1), 1),
                    "signature": "multiple grows between clears",
                },
                count=watched.stale,
                subject=word,
                iteration=watched.first,
            )
        )
    return findings


def not_checked(state: _stale.State, world: World) -> str | None:
    if not any(watched.steps > 1 for watched in state.by.values()):
        return "no optimizer made two steps"
    return None
