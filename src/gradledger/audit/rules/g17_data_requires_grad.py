"""# Data requires grad and collects gradients

## What it is
An input or a target was created with `requires_grad=True` although it is data.  Each backward computes a gradient for
it and adds to its `.grad`, which nobody reads or clears.

## Why it matters
Every backward does more work than it needs, a gradient as large as the data stays in memory, and operations that
avoid gradients on purpose (in-place edits, `.numpy()`) fail on it.

## How it is found
A leaf that is no parameter goes into a module or straight into a loss and is filled by reverse passes time after
time; the program neither reads nor clears its gradient.  Leaves that one line makes anew for each batch count together.

## Near misses
- The gradient is read: penalties, adversarial examples, saliency, input optimisation.
- Inputs whose gradient is asked for by `torch.autograd.grad`, such as the collocation points of a physics loss.
- A latent code that an optimizer holds.
- A flag that lets the loss of a detached prediction go through: the missing graph is the fault (G10).

## Fix
Create the data without `requires_grad=True`.
"""

from __future__ import annotations

from gradledger.audit import _growing
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event

RULE = Rule(
    "G17",
    "data-requires-grad",
    "gradient lifecycle",
    "An input or target requires grad, and every backward adds to a gradient that nobody reads or clears.",
    "warning",
)
LISTENS = _growing.LISTENS


def init() -> _growing.State:
    return _growing.State()


def update(state: _growing.State, event: Event, world: World) -> None:
    _growing.update(state, event, world)


def finish(state: _growing.State, world: World) -> list[Finding]:
    findings = []
    for tensor, filled in _growing.accumulating(state, world, "G17"):
        info = world.tensor(tensor)
        leaf = info.leaf
        site = _growing.made_at(tensor, world)
        site = site if site.file else filled.backward
        into = [world.module_name(m) for m in leaf.fed_to] if leaf is not None else []
        where = f"goes into `{into[0]}`" if into else "is an operand of the loss"
        findings.append(
            Finding(
                "G17",
                "warning",
                site,
                f"The tensor {list(info.shape)} made here requires grad and {where}: "
                f"{times(filled.fills, 'backward')} added to its gradient, which nobody reads or clears.",
                "drop requires_grad=True here; data needs no gradient",
                related=distinct(site, (filled.backward,)),
                evidence={
                    "fills": filled.fills,
                    "elements": info.numel,
                    "reads": filled.reads,
                    "clears": filled.clears,
                },
                count=filled.fills,
                subject=f"tensor {list(info.shape)}",
                iteration=filled.first,
            )
        )
    return findings


def not_checked(state: _growing.State, world: World) -> str | None:
    if not any(o.steps >= _growing.FEW for o in world.optimizers.values()):
        return f"no optimizer made {_growing.FEW} steps"
    return None
