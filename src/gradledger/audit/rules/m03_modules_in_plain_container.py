"""# Modules or parameters are kept in a plain list or dict

## What it is
`self.blocks = [nn.Linear(...), ...]`: a Python list or dict hides the modules inside it.  They are not registered, so
`model.parameters()`, `model.to()`, `model.train()` and `model.state_dict()` do not reach them.

## Why it matters
The hidden layers take part in every forward and receive gradients, but keep their random first values.  The model
trains with what is left, and a checkpoint does not even contain them.

## How it is found
Parameters that reverse passes fill, that no optimizer holds, and whose module is reached only through a plain
attribute of a module whose other parameters an optimizer trains: a list, a dict, or an object of a class of the
program's own (a dataclass of layers) that is no module.

## Near misses
- Modules in a list that are registered under another name as well.
- Modules in a list whose parameters are passed to an optimizer explicitly.
- A frozen module put into a list on purpose, to keep it out of the state.

## Fix
`self.blocks = nn.ModuleList([...])`, or `nn.ModuleDict`, `nn.ParameterList`, before the optimizer is built.
"""

from __future__ import annotations

from gradledger.audit import _no_optimizer, _orphans
from gradledger.audit._loops import assignment_of
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import OptimizerInfo, World
from gradledger.core.events import Event, PlainAttribute
from gradledger.core.site import Site

RULE = Rule(
    "M3",
    "modules-in-plain-container",
    "modules",
    "Modules kept in a Python list or dict are not registered: they receive gradients and are never trained or saved.",
)
LISTENS = _no_optimizer.LISTENS


def init() -> _no_optimizer.State:
    return _no_optimizer.State()


def update(state: _no_optimizer.State, event: Event, world: World) -> None:
    _no_optimizer.update(state, event, world)


def finish(state: _no_optimizer.State, world: World) -> list[Finding]:
    groups: dict[tuple[int, str], tuple[PlainAttribute, list[_no_optimizer.Unheld]]] = {}
    for leaf in _no_optimizer.unheld(state, world, "M3"):
        place = _orphans.hidden_in(leaf.tensor, world) or _no_optimizer.kept_in(leaf.tensor, world)
        if place is not None and world.trained_module(world.root(place[0])):
            groups.setdefault((place[0], place[1].name), (place[1], []))[1].append(leaf)
    findings = []
    for (owner, name), (attribute, leaves) in groups.items():
        first = leaves[0]
        full = f"{world.module_name(owner)}.{name}"
        modules = attribute.kind in ("module", "modules")
        made = _made(first.tensor, attribute, world)
        site = assignment_of(name, (world.module(owner).site, made)) or made
        optimizer = _no_optimizer.optimizer_of(first.tensor, world)
        rest = _optimizer_over(owner, world)
        built = [o.site for o in (*rest, *([optimizer] if optimizer is not None else []))]
        size = sum(world.tensor(leaf.tensor).numel for leaf in leaves)
        what = times(len(attribute.modules), "module") if modules else times(len(attribute.tensors), "parameter")
        findings.append(
            Finding(
                "M3",
                "error",
                site,
                f"`{full}` keeps {what} in a plain Python container, so they are not registered: {size} weights get a "
                f"gradient in {times(first.fills, 'reverse pass')} and no optimizer holds them.",
                _fix(name, attribute, site, world),
                related=distinct(site, (made, *built, first.site)),
                evidence={
                    "attribute": full,
                    "tensors": len(leaves),
                    "weights": size,
                    "reverse_passes": first.fills,
                    "in_optimizers": 0,
                },
                count=first.fills,
                subject=full,
                iteration=min(leaf.iteration for leaf in leaves),
            )
        )
    return findings


def _made(tensor: int, attribute: PlainAttribute, world: World) -> Site:
    """Where the hidden things were made."""
    if attribute.made_site.file:
        return attribute.made_site
    owners = world.owners(tensor)
    if owners:
        return world.module(owners[0]).site
    return world.tensor(tensor).site


def _optimizer_over(owner: int, world: World) -> list[OptimizerInfo]:
    found = {h: world.optimizer(h) for t in world.tensors_of(world.root(owner)) for h in world.holders(t)}
    return [o for o in found.values() if o.steps > 0]


def _fix(name: str, attribute: PlainAttribute, site: Site, world: World) -> str:
    source = world.source(site)
    left, equals, right = source.partition("=")
    as_dict = right.strip().startswith(("{", "dict("))
    if attribute.kind in ("tensor", "tensors"):
        kind = "nn.ParameterDict" if as_dict else "nn.ParameterList"
    else:
        kind = "nn.ModuleDict" if as_dict else "nn.ModuleList"
    right = right.split("  #")[0].strip()
    if equals and left.strip().endswith(f".{name}") and right and right.count("(") == right.count(")"):
        closed = right.count("[") == right.count("]") and right.count("{") == right.count("}")
        if closed:
            return f"{left.strip()} = {kind}({right})"
    return f"self.{name} = {kind}(...)"
