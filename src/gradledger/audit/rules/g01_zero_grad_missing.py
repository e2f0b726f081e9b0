"""# Gradients are never cleared

## What it is
`loss.backward()` adds to `.grad`.  Nothing empties it between one optimizer step and the next, so each step applies
the sum of every gradient since the start.

## Why it matters
The update direction is that of all past batches together, at ever larger scale.  Adam hides the scale and the loss
may still fall, to a worse place; SGD diverges or needs a learning rate that is far too small.

## How it is found
At each optimizer step the ledger knows which reverse passes stand in each gradient and how many steps have used each
of them.  The rule fires when contributions that a step has used already stand there together with newer ones, step
after step, and nothing ever clears these tensors.  The multiple grows with the step count; where clears exist but are
rarer than steps, GL-G03 says so.  A program of two phases whose first one clears at each step, and whose second one
does not, is told here too: the line to edit is in the second.

## Near misses
- Accumulation: several backwards, one step, then a clear.  Nothing used is left when the next window begins.
- Clearing at the end of the iteration, `model.zero_grad()`, `p.grad = None` or `p.grad.zero_()` by hand.
- A GAN or an actor-critic pass that leaves gradients on the other network, cleared before that network's own
  backward.
- Momentum kept in `.grad` by hand: what the step used is decayed in place before the next backward.
- Functional updates with `torch.autograd.grad`, which fill no `.grad`.

## Fix
Clear before the backward of each step: `optimizer.zero_grad()`.
"""

from __future__ import annotations

from gradledger.audit import _stale, oracle
from gradledger.audit._cycle import loss_word, of_steps, optimizer_word
from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, OracleExplained
from gradledger.core.site import NOWHERE

RULE = Rule(
    "G1",
    "zero-grad-missing",
    "gradient lifecycle",
    "Gradients that a step has used are still in .grad at the next step, and nothing clears them.",
)
LISTENS = _stale.LISTENS


def init() -> _stale.State:
    return {}


def update(state: _stale.State, event: Event, world: World) -> None:
    _stale.update(state, event, world)


def finish(state: _stale.State, world: World) -> list[Finding]:
    findings = []
    for ident, watched in state.items():
        elsewhere = watched.elsewhere
        if not watched.regular or (watched.clears_of_stale() and not elsewhere):
            continue
        optimizer = world.optimizer(ident)
        word = optimizer_word(watched.step_site, world)
        site = watched.fill_site if watched.fill_site.file else watched.step_site
        whole = len(watched.tensors) >= len(optimizer.tensors)
        scope = "" if whole else f" ({world.names(sorted(watched.tensors))})"
        clear = elsewhere[0].site if elsewhere else NOWHERE
        only = f" here (line {clear.line} does it for another part)" if clear.file else ""
        finding = Finding(
            "G1",
            "error",
            site,
            f"Nothing clears the gradients of `{word}`{scope}{only}: {watched.stale} of "
            f"{of_steps(watched.steps, ident, world)} applied gradients that an earlier step had applied already, "
            f"up to {watched.multiple} reverse passes at once.",
            f"{word}.zero_grad()  # before {loss_word(site, world)}.backward()",
            related=distinct(site, (watched.step_site, optimizer.site)),
            evidence={
                "steps": watched.steps,
                "stale_steps": watched.stale,
                "largest_multiple": watched.multiple,
                "tensors": len(watched.tensors),
                "signature": "growing multiple",
            },
            count=watched.stale,
            subject=word,
            iteration=watched.first,
        )
        findings.append(oracle.weigh(finding, world, ident, _stands))
    return findings


def _stands(event: OracleExplained) -> bool | None:
    """Whether what an earlier step had used is in the consumed gradient."""
    verdicts = [oracle.there(share) for share in event.shares if share.kind == "earlier"]
    if True in verdicts:
        return True
    return False if verdicts and None not in verdicts else None


def not_checked(state: _stale.State, world: World) -> str | None:
    if not any(watched.steps > 1 for watched in state.values()):
        return "no optimizer made two steps"
    return None
