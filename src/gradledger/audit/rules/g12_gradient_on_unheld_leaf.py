"""# A gradient grows on a leaf that no optimizer holds

## What it is
A parameter or a free tensor that requires grad takes part in the loss: every backward adds to its `.grad`.  No
optimizer holds it, so nothing applies the gradient and nothing clears it.

## Why it matters
If it was meant to be trained, it never moves.  If it was not (a target network, a frozen feature extractor), each
iteration pays for a backward through it and for the memory of its gradients.

## How it is found
A leaf is filled by reverse passes time after time, never cleared, hardly ever read by the program, and held by no
optimizer until the end, or by one alone that is gone: a local variable of a function that has returned.  Where another
rule explains why (GL-M01, GL-M03, GL-M04, GL-M05, GL-M07, GL-G17) that one speaks.

## Near misses
- Inputs that need gradients on purpose: penalties, adversarial examples, saliency.  The program reads or clears them.
- Parameters updated by hand from `.grad`.
- Parts of a flat parameter: their gradients are views of memory that is cleared and stepped under another name, and
  their values change.
- Gradients that the program hands to another network, whose optimizer applies them.
- Optimizers of an earlier stage that are kept, and networks that are frozen after it.
- Networks cleared by `model.zero_grad()`, and parameters that an optimizer built later holds.

## Fix
Meant to be trained: add it to the optimizer.  Not meant: `requires_grad_(False)`, or evaluate under
`torch.no_grad()`.
"""

from __future__ import annotations

from collections import defaultdict

from gradledger.audit import _growing, _left_behind
from gradledger.audit._cycle import assigned_word
from gradledger.audit._orphans import is_copy
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule, Severity
from gradledger.audit.world import World
from gradledger.core.events import Event
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "G12",
    "gradient-on-unheld-leaf",
    "gradient lifecycle",
    "Every backward adds to the gradient of a leaf that no optimizer holds and nothing clears.",
)
LISTENS = _growing.LISTENS


def init() -> _growing.State:
    return _growing.State()


def update(state: _growing.State, event: Event, world: World) -> None:
    _growing.update(state, event, world)


def finish(state: _growing.State, world: World) -> list[Finding]:
    groups: defaultdict[tuple[int, ...], list[tuple[int, _growing.Filled]]] = defaultdict(list)
    for tensor, filled in _growing.accumulating(state, world, "G12"):
        roots = world.owner_roots(tensor)
        groups[tuple(sorted(roots)) or (-tensor,)].append((tensor, filled))
    found = [_finding(key, group, world) for key, group in groups.items()]
    return found or [_left(one, world) for one in _left_behind.left_behind(state, world)]


def _left(one: _left_behind.Left, world: World) -> Finding:
    roots = {root for t in one.tensors for root in world.owner_roots(t)}
    name = world.module_name(min(roots)) if len(roots) == 1 else world.names(list(one.tensors))
    calls = [c.site for c in one.filled.calls if set(world.tensors_of(c.module)) & set(one.tensors)]
    return Finding(
        "G12",
        "warning",
        one.later.site,
        f"{times(one.filled.fills, 'backward')} added to the gradient of `{name}`, which the optimizer of line "
        f"{one.gone.site.line} held: that one is gone, this one does not hold it, and nothing applies or clears it.",
        f"hand {name} to this optimizer, too, if it is to be trained on, else give it requires_grad_(False)",
        related=distinct(one.later.site, (*calls[:2], one.filled.backward, one.gone.site)),
        evidence={"tensors": len(one.tensors), "fills": one.filled.fills, "steps_of_the_one_gone": one.gone.steps},
        count=one.filled.fills,
        subject=name,
        iteration=one.filled.first,
    )


def _finding(key: tuple[int, ...], group: list[tuple[int, _growing.Filled]], world: World) -> Finding:
    tensors = [t for t, _ in group]
    filled = max((f for _, f in group), key=lambda f: f.fills)
    free = key[0] < 0
    calls = [c.site for c in filled.calls if set(world.tensors_of(c.module)) & set(tensors)]
    made = world.tensor(tensors[0]).site if free else world.module(key[0]).site
    optimizer = _busiest_optimizer(world)
    copied = not free and is_copy(tensors[0], world)
    buffers = not copied and all(world.tensor(t).role == "buffer" for t in tensors)
    severity: Severity = "warning" if copied or buffers else "error"
    if free:
        word = assigned_word(made, world)
        shape = list(world.tensor(tensors[0]).shape)
        what = f"`{word}`" if word else f"a free parameter of shape {shape}"
        site = optimizer if optimizer.file else made if made.file else filled.backward
    else:
        whole = len(tensors) == len(world.tensors_of(key[0]))
        what = f"`{world.module_name(key[0])}`" if whole else f"`{world.names(tensors)}`"
        site = calls[0] if calls else made if made.file else filled.backward
    if copied:
        fix = f"evaluate {what.strip('`')} under torch.no_grad(), or call requires_grad_(False) on it once"
        tail = "it is written by copies only, so this costs memory and time and changes nothing else"
    elif buffers:
        made = world.tensor(tensors[0]).unfrozen_site
        site = made if made.file else site
        fix = f"leave the flag of a buffer alone: requires_grad_() on {what.strip('`')}.clone() instead"
        tail = "it is a buffer, so nothing applies or clears it, and it grows for as long as the program runs"
    else:
        fix = (
            f"hand {what.strip('`')} to the optimizer on line {optimizer.line} if it is to be trained, else give it "
            "requires_grad_(False)"
        )
        tail = "nothing ever applies or clears it"
    return Finding(
        "G12",
        severity,
        site,
        f"{times(filled.fills, 'backward')} added to the gradient of {what}, which no optimizer holds: {tail}.",
        fix,
        related=distinct(site, (made, *calls[:2], filled.backward, optimizer, *made.above(1))),
        evidence={
            "tensors": len(tensors),
            "elements": sum(world.tensor(t).numel for t in tensors),
            "fills": filled.fills,
            "clears": filled.clears,
            "reads": filled.reads,
            "copied_from_another_module": copied,
        },
        count=filled.fills,
        subject=what.strip("`"),
        iteration=filled.first,
    )


def _busiest_optimizer(world: World) -> Site:
    stepped = [o for o in world.optimizers.values() if o.steps]
    return max(stepped, key=lambda o: o.steps).site if stepped else NOWHERE


def not_checked(state: _growing.State, world: World) -> str | None:
    if not any(o.steps >= _growing.FEW for o in world.optimizers.values()):
        return f"no optimizer made {_growing.FEW} steps"
    return None
