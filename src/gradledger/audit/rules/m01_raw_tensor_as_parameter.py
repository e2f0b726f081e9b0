"""# A raw tensor is kept where a parameter is meant

## What it is
A module keeps a tensor with `requires_grad=True` as an ordinary attribute.  Only an `nn.Parameter` is registered, so
`model.parameters()` never yields it: the optimizer does not hold it, `.to()` does not move it, `state_dict()` does not
save it.

## Why it matters
Gradients reach the tensor in every reverse pass, and nothing ever uses them: it keeps its first value for the whole
run while the rest of the model trains around it.

## How it is found
A leaf that requires grad, is a plain attribute of a module whose other parameters an optimizer trains, is filled by
reverse passes in at least two iterations, and sits in no optimizer.  The module may have no parameters at all (a loss
with learned weights): then the program must not touch the gradient.  Or the leaf was registered as a buffer while it
required grad already: it is saved and moved, and still no parameter.

## Near misses
- The tensor is handed to an optimizer explicitly.
- The program updates it by hand: its gradient is read and cleared.
- Tensors without gradient: constants, caches, ordinary buffers; a buffer whose flag is switched on later (GL-G12).

## Fix
`self.scale = nn.Parameter(torch.ones(3))`, before the optimizer is built.
"""

from __future__ import annotations

import re

from gradledger.audit import _no_optimizer
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "M1",
    "raw-tensor-as-parameter",
    "modules",
    "A module attribute that is meant to be learned is a plain tensor, not an nn.Parameter, so no optimizer holds it.",
)
LISTENS = _no_optimizer.LISTENS

_ASSIGNED = re.compile(r"^(self\.\w+)\s*(?::[^=]+)?=\s*(.+)$")


def init() -> _no_optimizer.State:
    return _no_optimizer.State()


def update(state: _no_optimizer.State, event: Event, world: World) -> None:
    _no_optimizer.update(state, event, world)


def finish(state: _no_optimizer.State, world: World) -> list[Finding]:
    findings = []
    for leaf in _no_optimizer.unheld(state, world, "M1"):
        name = world.name(leaf.tensor)
        info = world.tensor(leaf.tensor)
        kept = _no_optimizer.kept_in(leaf.tensor, world)
        if info.owners:
            owner, word = info.owners[0]
            made = NOWHERE
        elif kept is not None and _trained(kept[0], leaf.tensor, state, world):
            owner, word, made = kept[0], kept[1].name, kept[1].made_site
        else:
            continue
        site = next((s for s in (made, info.site, world.module(owner).site) if s.file), NOWHERE)
        what = "buffer" if info.owners else "plain tensor"
        optimizer = _no_optimizer.optimizer_of(leaf.tensor, world)
        built = optimizer.site if optimizer is not None else NOWHERE
        findings.append(
            Finding(
                "M1",
                "error",
                site,
                f"`{name}` is a {what} with requires_grad, not an nn.Parameter: its gradient was written by "
                f"{times(leaf.fills, 'reverse pass')} and no optimizer holds it, so its value never changes.",
                _fix(site, word, world),
                related=distinct(site, (info.site, built, _no_optimizer.step_site(optimizer))),
                evidence={
                    "tensor": name,
                    "shape": list(info.shape or (kept[1].shape if kept is not None else ())),
                    "reverse_passes": leaf.fills,
                    "in_optimizers": 0,
                    "signature": "filled in every iteration, never consumed",
                },
                count=leaf.fills,
                subject=name,
                iteration=leaf.iteration,
            )
        )
    return findings


def _trained(owner: int, tensor: int, state: _no_optimizer.State, world: World) -> bool:
    """Whether a module is trained; or has nothing that could be, beside a tensor whose gradient the program leaves
    alone (who optimizes such a tensor by himself reads or clears it)."""
    root = world.root(owner)
    bare = not world.tensors_of(root) and tensor not in state.cleared and tensor not in state.read
    return bare or world.trained_module(root)


def _fix(site: Site, name: str, world: World) -> str:
    match = _ASSIGNED.match(world.source(site))
    if match is None or match[2].count("(") != match[2].count(")"):
        return f"self.{name} = nn.Parameter(...)"
    value = re.sub(r",\s*requires_grad\s*=\s*True", "", match[2].split("  #")[0])
    value = re.sub(r"\.requires_grad_\((True)?\)$", "", value)
    return f"{match[1]} = nn.Parameter({value})"
