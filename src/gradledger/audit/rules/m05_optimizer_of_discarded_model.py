"""# The optimizer holds the parameters of a discarded model

## What it is
The model is built, copied or loaded anew after the optimizer was built over its predecessor.  The variable points to
the new network, the optimizer still to the old parameters.

## Why it matters
`optimizer.step()` finds no gradient in anything it holds, silently does nothing, and the network that is called keeps
its first values.

## How it is found
An optimizer that steps again and again without finding a single gradient, while reverse passes fill the parameters of
a model that was made later and sits in no optimizer.  The same of a part: the optimizer finds gradients in the trunk,
and none in the head that is gone, while a head of its kind that was made later is filled.

## Near misses
- Free tensors that are optimised on purpose: they belong to no live module, but they do receive gradients.
- An optimizer built again together with the model.

## Fix
Build the optimizer after the last line that makes the model: `optimizer = Adam(model.parameters(), ...)`.
"""

from __future__ import annotations

from gradledger.audit import _no_optimizer, _orphans
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import OptimizerInfo, World
from gradledger.core.events import Event
from gradledger.core.site import Site

RULE = Rule(
    "M5",
    "optimizer-of-discarded-model",
    "modules",
    "The model was rebuilt after the optimizer: the optimizer steps over parameters that no forward uses any more.",
)
LISTENS = _no_optimizer.LISTENS


def init() -> _no_optimizer.State:
    return _no_optimizer.State()


def update(state: _no_optimizer.State, event: Event, world: World) -> None:
    _no_optimizer.update(state, event, world)


def finish(state: _no_optimizer.State, world: World) -> list[Finding]:
    groups: dict[int, tuple[OptimizerInfo, list[_no_optimizer.Unheld]]] = {}
    for leaf in _no_optimizer.unheld(state, world, "M5", together=False):
        optimizer = _orphans.idle_optimizer(leaf.tensor, world)
        if optimizer is not None:
            groups.setdefault(optimizer.ident, (optimizer, []))[1].append(leaf)
    findings = []
    for optimizer, leaves in groups.values():
        first = leaves[0]
        root = min(world.owner_roots(first.tensor), default=0)
        model = world.module(root)
        name = world.module_name(root)
        freed = sum(1 for t in optimizer.tensors if all(world.module(m).freed for m in _ever(t, world)))
        last = optimizer.last_step
        idle = [t for life in last.lives if life.grad in ("none", "zero") for t in life.tensors] if last else []
        found_none = f"none of its {times(optimizer.steps, 'step')} found a gradient"
        if len(idle) < len(optimizer.tensors):
            found_none = "its steps find no gradient there"
        built_again = _frames(model.site)
        line = built_again[-1].line if built_again else 0
        findings.append(
            Finding(
                "M5",
                "error",
                optimizer.site,
                f"{optimizer.short_cls} holds {times(len(idle), 'parameter')} of a model that was built "
                f"before `{name}` (line {line}): {found_none}, and "
                f"the {times(len(leaves), 'parameter')} that the reverse pass fills are in no optimizer.",
                f"build the optimizer after line {line}, over the parameters of `{name}`",
                related=distinct(
                    optimizer.site,
                    (*reversed(built_again), *_frames(optimizer.site), _no_optimizer.step_site(optimizer), first.site),
                ),
                evidence={
                    "held": len(idle),
                    "held_of_freed_modules": freed,
                    "steps_without_gradient": optimizer.steps,
                    "filled_unheld": len(leaves),
                    "reverse_passes": first.fills,
                },
                count=optimizer.steps,
                subject=name,
                iteration=min(leaf.iteration for leaf in leaves),
            )
        )
    return findings


def _ever(tensor: int, world: World) -> list[int]:
    info = world.tensor(tensor)
    return [m for m, _ in (*info.owners, *info.former)]


def _frames(site: Site) -> list[Site]:
    """The line and the lines that called it, innermost first."""
    here = [site] if site.file else []
    return here + [above for above in site.above() if above.file == site.file]
