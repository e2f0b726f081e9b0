"""# A layer is added after the optimizer was built

## What it is
An optimizer keeps the parameters that it was given.  A layer that is attached or replaced afterwards (an adapter, a new
head, GroupNorm for BatchNorm) is part of the model, but not of the optimizer.

## Why it matters
The new layer receives gradients in every iteration and keeps its random first values: the model trains around noise.

## How it is found
Registered parameters that reverse passes fill and no optimizer holds, and that became part of their model after every
optimizer over the rest of that model was built.

## Near misses
- `optimizer.add_param_group` after attaching, a second optimizer over the new layer, or a new tensor put into a group's
  list by hand (models that grow or are pruned).
- New layers that are frozen.
- Target networks and teachers, which are copies and not trained.

## Fix
Attach first and build the optimizer afterwards, or `optimizer.add_param_group({"params": layer.parameters()})`.
"""

from __future__ import annotations

from gradledger.audit import _no_optimizer
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "M4",
    "added-after-optimizer",
    "modules",
    "A layer joined the model after the optimizer was built: it receives gradients and is never updated.",
)
LISTENS = _no_optimizer.LISTENS


def init() -> _no_optimizer.State:
    return _no_optimizer.State()


def update(state: _no_optimizer.State, event: Event, world: World) -> None:
    _no_optimizer.update(state, event, world)


def finish(state: _no_optimizer.State, world: World) -> list[Finding]:
    findings = []
    leaves = _no_optimizer.unheld(state, world, "M4", together=False)
    for site, group in _no_optimizer.by_line(leaves, lambda t: joined_site(t, world)):
        first = group[0]
        optimizer = _no_optimizer.optimizer_of(first.tensor, world)
        built = optimizer.site if optimizer is not None else NOWHERE
        names = world.names(leaf.tensor for leaf in group)
        line = f" on line {built.line}" if built.file else ""
        findings.append(
            Finding(
                "M4",
                "error",
                site,
                f"{names} joined the model after its optimizer was built{line}: {times(first.fills, 'reverse pass')} "
                f"wrote their gradients, no optimizer holds them, so they keep their first values.",
                f"attach the layer before the optimizer is built{line}, or "
                f'optimizer.add_param_group({{"params": [...]}}) after attaching it',
                related=distinct(site, (built, _no_optimizer.step_site(optimizer))),
                evidence={
                    "tensors": len(group),
                    "weights": sum(world.tensor(leaf.tensor).numel for leaf in group),
                    "reverse_passes": first.fills,
                    "optimizer_built_line": built.line,
                    "in_optimizers": 0,
                },
                count=first.fills,
                subject=names,
                iteration=min(leaf.iteration for leaf in group),
            )
        )
    return findings


def joined_site(tensor: int, world: World) -> Site:
    """The line on which the tensor last became part of its model."""
    info = world.tensor(tensor)
    best, site = info.made_seq, info.site
    for owner in world.owners(tensor):
        for module in (owner, *world.ancestors(owner)):
            attached = world.module(module)
            if attached.attached_seq > best and attached.attached_site.file:
                best, site = attached.attached_seq, attached.attached_site
    return site
