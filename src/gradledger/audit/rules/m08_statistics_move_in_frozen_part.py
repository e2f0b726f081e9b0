"""# Batch statistics move inside a frozen part

## What it is
The parameters of a part are frozen, but a normalisation layer in it runs in train mode: its running mean and variance
follow the new data.  `requires_grad=False` says nothing about buffers, and `model.train()` switches the whole tree.

## Why it matters
The frozen part is not the pretrained one any more.  In train mode its outputs depend on the batch, in eval mode on
statistics that have drifted; the two differ from each other and from what the rest was trained against.

## How it is found
A normalisation layer whose parameters are frozen moves its statistics in several iterations, with optimizer steps in
between and after.  A layer without parameters is frozen when its parent is, or when it stands in a sequence between
two frozen layers.

## Near misses
- Statistics set from data before training, with no step in between.
- A discriminator that is frozen only during the generator's pass.
- A teacher or target that is copied from a trained network.
- A layer without parameters at the border, between a frozen network and the new head.
- Adapting statistics on purpose is still reported, as a warning: accept it with an allow comment.

## Fix
`model.backbone.eval()` after every `model.train()`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from gradledger.audit._code import last_name, walk
from gradledger.audit._loops import enclosing_function
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, StatisticsMoved
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "M8",
    "statistics-move-in-frozen-part",
    "modules",
    "A frozen part is called in train mode, so the running statistics of its normalisation layers drift.",
    "warning",
)
LISTENS = (StatisticsMoved,)
ENOUGH = 2  # iterations
KEPT = 4096
TOGGLES = 3  # frozen, trained, frozen, trained: a part that is frozen for the time of a pass


@dataclass(slots=True)
class Layer:
    """One normalisation layer.  `iterations`: those in which it moved while frozen; `toggles`: changes between frozen
    and not; `mode`: the line of the latest mode switch that reached it; `calls`: lines that called it."""

    root: int
    frozen: bool
    iterations: int = 0
    last_iteration: int = -1
    first_iteration: int = -1
    moves: int = 0
    toggles: int = 0
    mode: Site = NOWHERE
    calls: dict[tuple[str, int], Site] = field(default_factory=dict)


def init() -> dict[int, Layer]:
    return {}


def update(state: dict[int, Layer], event: Event, world: World) -> None:
    if not isinstance(event, StatisticsMoved):
        return
    layer = state.get(event.module)
    if layer is None:
        if len(state) >= KEPT:
            return
        layer = state[event.module] = Layer(event.root, event.frozen)
    if layer.frozen != event.frozen:
        layer.frozen = event.frozen
        layer.toggles += 1
    if not event.frozen:
        return
    layer.moves += 1
    layer.root = event.root
    if event.mode_site.file:
        layer.mode = event.mode_site
    if len(layer.calls) < 4:
        layer.calls.setdefault(event.site.key(), event.site)
    if event.iteration != layer.last_iteration:
        layer.iterations += 1
        layer.last_iteration = event.iteration
        if layer.first_iteration < 0:
            layer.first_iteration = event.iteration


def finish(state: dict[int, Layer], world: World) -> list[Finding]:
    groups: dict[tuple[tuple[str, int], int], list[tuple[int, Layer]]] = {}
    for module, layer in state.items():
        if layer.iterations < ENOUGH or layer.toggles >= TOGGLES or _is_copy(module, world):
            continue
        if not any(
            o.last_step is not None and o.last_step.iteration >= layer.last_iteration for o in world.optimizers.values()
        ):
            continue
        site = layer.mode if layer.mode.file else next(iter(layer.calls.values()), NOWHERE)
        groups.setdefault((site.key(), layer.root), []).append((module, layer))
    findings = []
    for (_, root), layers in groups.items():
        module, layer = layers[0]
        site = layer.mode if layer.mode.file else next(iter(layer.calls.values()), NOWHERE)
        part = _frozen_part(module, world)
        names = ", ".join(f"`{world.module_name(m)}`" for m, _ in layers[:3])
        more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
        frozen = world.module_name(part)
        bare = not world.tensors_of(part)
        around = "the layers before and after are frozen" if bare else "every parameter there is frozen"
        findings.append(
            Finding(
                "M8",
                "warning",
                site,
                f"{names}{more} in the frozen part `{frozen}` run in train mode: their running statistics moved in "
                f"{times(layer.iterations, 'watched iteration')} of training although {around}.",
                f"{frozen}.eval()  after every {world.module_name(root)}.train()",
                related=distinct(
                    site,
                    (
                        *site.above(1),
                        *_switched_off(site),
                        *_frozen_at(root, world),
                        *layer.calls.values(),
                        *(s for _, other in layers[1:4] for s in other.calls.values()),
                    ),
                ),
                evidence={
                    "layers": len(layers),
                    "frozen_part": frozen,
                    "moves_seen": sum(other.moves for _, other in layers),
                    "iterations_seen": layer.iterations,
                    "first_iteration": layer.first_iteration,
                },
                count=layer.moves,
                subject=frozen,
                iteration=layer.first_iteration,
            )
        )
    return findings


def _switched_off(mode: Site) -> list[Site]:
    """Lines beside the switch to train mode that put parts back into eval mode, and that ask which: these missed the
    layer."""
    function = enclosing_function(mode.file, mode.line) if mode.file else None
    nodes = list(walk(function)) if function is not None else []
    lines = [n.lineno for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "eval"][:2]
    asked = [n.lineno for n in nodes if isinstance(n, ast.If) and any(b.lineno in lines for b in n.body)]
    return [Site(mode.file, line, mode.function) for line in (*lines, *asked)]


def _frozen_at(root: int, world: World) -> list[Site]:
    """Where parameters of the model were frozen."""
    sites = {s.key(): s for t in world.tensors_of(root) if (s := world.tensor(t).flag_site).file}
    return list(sites.values())[:2]


def _is_copy(module: int, world: World) -> bool:
    """Whether the layer belongs to a network that is written from another one while it is used."""
    mine = set(world.tensors_of(module, role=""))
    for link in world.copy_links(module):
        if link.first.source == link.first.target or link.first.KIND == "deep_copied":
            continue
        if link.count >= 2 and mine.intersection(target for _, target in link.last.pairs):
            return True
    return False


def _frozen_part(module: int, world: World) -> int:
    """The outermost module around the layer whose parameters are all frozen."""
    part = module
    for above in world.ancestors(module):
        parameters = world.tensors_of(above)
        if not parameters or any(world.tensor(t).requires_grad for t in parameters):
            break
        part = above
    return part


def not_checked(state: dict[int, Layer], world: World) -> str | None:
    return None
