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
does not, is told here too: the line to edit is in the second.  A program without an optimizer is judged by its own
reads of `.grad`: used after each reverse pass, and never cleared or changed.  Where a program hands gradients from one
network to another (`theirs.grad = mine.grad`, a worker and a shared network), a clear on either side that only lets go
of the tensor leaves what stands in it on the other.

## Near misses
- Accumulation: several backwards, one step, then a clear.  Nothing used is left when the next window begins.
- Clearing at the end of the iteration, `model.zero_grad()`, `p.grad = None` or `p.grad.zero_()` by hand.
- A GAN or an actor-critic pass that leaves gradients on the other network, cleared before that network's own
  backward.
- Momentum kept in `.grad` by hand: what the step used is decayed in place before the next backward.
- A worker's gradients handed to a shared network, cleared in the worker's, or made zero in place.
- Functional updates with `torch.autograd.grad`, which fill no `.grad`.

## Fix
Clear before the backward of each step: `optimizer.zero_grad()`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from gradledger.audit import _by_hand, _iterators, _stale, oracle
from gradledger.audit._code import parsed, walk
from gradledger.audit._cycle import loss_word, of_steps, optimizer_word
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, ExhaustedIterator, OracleExplained
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "G1",
    "zero-grad-missing",
    "gradient lifecycle",
    "Gradients that a step has used are still in .grad at the next step, and nothing clears them.",
)
LISTENS = tuple(dict.fromkeys((*_stale.LISTENS, *_by_hand.LISTENS, ExhaustedIterator)))


KEPT = 64  # functions with an iterator that is used up


@dataclass(slots=True)
class State:
    """`watched`: by optimizer; `by_hand`: of a program that has none; `exhausted`: where iterators were made that are
    used up, by function: a clear that walks one walks nothing."""

    watched: _stale.State = field(default_factory=_stale.State)
    by_hand: _by_hand.State = field(default_factory=_by_hand.State)
    exhausted: dict[tuple[str, str], Site] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, ExhaustedIterator):
        if len(state.exhausted) < KEPT and event.made_site.file:
            state.exhausted.setdefault((event.site.file, event.function), event.made_site)
        return
    _stale.update(state.watched, event, world)
    _by_hand.update(state.by_hand, event, world)


def finish(state: State, world: World) -> list[Finding]:
    findings = [_without_optimizer(one, world) for one in _by_hand.never_cleared(state.by_hand, world)]
    stale = [
        (ident, watched, elsewhere)
        for ident, watched in state.watched.by.items()
        if watched.regular and ((elsewhere := watched.elsewhere) or not watched.clears_of_stale())
    ]
    walked = _iterators.used_up(world) if stale else []
    for ident, watched, elsewhere in stale:
        optimizer = world.optimizer(ident)
        word = optimizer_word(watched.step_site, world)
        site = watched.fill_site if watched.fill_site.file else watched.step_site
        owner = _owner(watched, word, world)
        whole = len(watched.tensors) >= len(optimizer.tensors) and not watched.lent
        scope = "" if whole else f" ({world.names(sorted(watched.tensors))})"
        clear = elsewhere[0].site if elsewhere else NOWHERE
        here = (site.file, site.function)
        exhausted = [state.exhausted[here]] if here in state.exhausted else []
        lines = [s for u in walked if (u.use.site.file, u.use.site.function) == here for s in (u.made, u.use.site)]
        lines += _own_clear(optimizer.short_cls, watched.step_site)
        only = f" here (line {clear.line} does it for another part)" if clear.file else ""
        finding = Finding(
            "G1",
            "error",
            site,
            f"{_what(watched, word)}{scope}{only}: {watched.stale} of "
            f"{of_steps(watched.steps, ident, world)} applied gradients that an earlier step had applied already, "
            f"up to {watched.multiple} reverse passes at once.",
            f"{owner}.zero_grad()  # before {loss_word(site, world)}.backward()",
            related=distinct(
                site, (watched.step_site, optimizer.site, *exhausted, *lines[:4], *state.watched.beside(watched))
            ),
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


def _what(watched: _stale.Watched, word: str) -> str:
    if watched.lent:
        return f"`{word}` applies gradients that were put there from other parameters, and nothing clears them there"
    return f"Nothing clears the gradients of `{word}`"


def _owner(watched: _stale.Watched, word: str, world: World) -> str:
    """Whose `zero_grad` would clear what is stale."""
    roots = {root for tensor in watched.tensors for root in world.owner_roots(tensor)} if watched.lent else set()
    return world.module_name(min(roots)) if len(roots) == 1 else word


def _own_clear(kind: str, step: Site) -> list[Site]:
    """What the program's own optimizer, or its own class around the step, does when it is told to clear, line by
    line."""
    classes = [n for n in walk(tree) if isinstance(n, ast.ClassDef)] if (tree := parsed(step.file)) else []
    own = [c for c in classes if c.name == kind or c.lineno <= step.line <= (c.end_lineno or 0)]
    clears = [n for c in own for n in c.body if isinstance(n, ast.FunctionDef) and n.name == "zero_grad"]
    return [Site(step.file, n.lineno, clears[0].name) for n in clears[0].body[:3]] if clears else []


def _without_optimizer(one: _by_hand.Filled, world: World) -> Finding:
    return Finding(
        "G1",
        "error",
        one.site,
        f"Nothing clears these gradients: line {one.read.line} uses them after each reverse pass, and {one.stale} of "
        f"{times(one.passes, 'pass')} added to what had been used already, up to {one.passes} at once.",
        "p.grad = None  # for each parameter, after its update",
        related=distinct(one.site, (one.read,)),
        evidence={
            "reverse_passes": one.passes,
            "stale_passes": one.stale,
            "tensors": len(one.leaves),
            "signature": "growing multiple",
        },
        count=one.stale,
        subject=world.names(sorted(one.leaves), 2),
        iteration=one.iteration,
    )


def _stands(event: OracleExplained) -> bool | None:
    """Whether what an earlier step had used is in the consumed gradient."""
    verdicts = [oracle.there(share) for share in event.shares if share.kind == "earlier"]
    if True in verdicts:
        return True
    return False if verdicts and None not in verdicts else None


def not_checked(state: State, world: World) -> str | None:
    by_hand = any(one.passes > 1 for one in state.by_hand.filled.values())
    if not by_hand and not any(watched.steps > 1 for watched in state.watched.by.values()):
        return "no optimizer made two steps"
    return None
