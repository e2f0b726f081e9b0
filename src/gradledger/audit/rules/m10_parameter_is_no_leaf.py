"""# A "parameter" that is the result of an operation

## What it is
`self.offset = nn.Parameter(x).to(dtype)` or `nn.Parameter(x) * 0.1`: the result of the conversion or of the arithmetic
is an ordinary tensor with a history.  It is not registered, and the Parameter inside it is known to nobody.

## Why it matters
The gradient goes to the hidden Parameter, which no optimizer holds; the value that forward uses was computed once and
never changes.  If the operation kept its inputs, the second backward raises.

## How it is found
A plain attribute of a called module that requires grad, is no leaf, was made from a single Parameter outside of
forward, and stays the same tensor while reverse passes go through it; or from several Parameters, in the constructor,
and forward uses it.  Or a free leaf that reverse passes fill and no optimizer holds was converted on the line that made
it (`w.requires_grad_().to(dtype)`): the program holds the result only.  Or an optimizer refuses a tensor that is no
leaf, and the program made it with `requires_grad` and then went on with it: the line that did is named.

## Near misses
- Values derived in forward, anew for each call; weight_norm and parametrizations do so in a hook.
- Views of a registered parameter, such as its transpose: they follow it.
- What the constructor computed from parameters for a report, and forward does not use.

## Fix
Convert first, wrap last: `nn.Parameter(x.to(dtype))`, `nn.Parameter(x * 0.1)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit import _no_optimizer
from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import assignment_of, calls_at, meanings
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, PlainAttribute, PlainAttributes
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "M10",
    "parameter-is-no-leaf",
    "modules",
    "A Parameter was converted or multiplied before it was assigned: the attribute is a computed tensor.",
)
LISTENS = (PlainAttributes, *_no_optimizer.LISTENS)
KEPT = 4096
HOOKED = ("_orig", "_g", "_v")  # beside these a hook computes the attribute anew in each call

_REFUSED = "can't optimize a non-leaf Tensor"
_WRAPPED = re.compile(r"^(self\.\w+)\s*=\s*(?:torch\.)?nn\.Parameter\((.*)\)(\s*[.*/+-].*)$")


@dataclass(slots=True)
class Kept:
    """One attribute: its first and latest form, how many tensors it held, reverse passes since the first."""

    first: PlainAttribute
    latest: PlainAttribute
    iteration: int
    values: int = 1
    backwards: int = 0
    last_iteration: int = -1


@dataclass(slots=True)
class State:
    leaves: _no_optimizer.State = field(default_factory=_no_optimizer.State)
    kept: dict[tuple[int, str], Kept] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    _no_optimizer.update(state.leaves, event, world)
    if isinstance(event, Backward):
        for kept in state.kept.values():
            kept.backwards += event.weight
            kept.last_iteration = event.iteration
        return
    if not isinstance(event, PlainAttributes):
        return
    for attribute in event.attributes:
        key = (event.module, attribute.name)
        known = state.kept.get(key)
        if known is not None:
            known.values += known.latest.tensors != attribute.tensors
            known.latest = attribute
        elif _suspect(attribute) and len(state.kept) < KEPT:
            state.kept[key] = Kept(attribute, attribute, event.iteration)


def _suspect(attribute: PlainAttribute) -> bool:
    return (
        attribute.kind in ("tensor", "tensors")
        and attribute.made_from_parameter
        and attribute.requires_grad
        and not attribute.is_leaf
        and not attribute.made_in_forward
    )


def finish(state: State, world: World) -> list[Finding]:
    refused = _refused(world)
    if refused is not None:
        return [refused]
    raised = world.ended is not None and "backward through the graph a second time" in world.ended.message
    findings = [*_free(state, world)]
    for (module, name), kept in state.kept.items():
        if kept.values > 1 or kept.latest.made_in_forward or kept.backwards < (1 if raised else 2):
            continue
        if not _used_in_forward(kept.first.made_site, name):
            continue
        registered = world.module(module).tensors
        if any(f"{name}{ending}" in registered for ending in HOOKED):
            continue
        full = f"{world.module_name(module)}.{name}"
        model = world.module(module).site
        written = assignment_of(name, (kept.first.made_site, model))
        site = next((s for s in (kept.first.made_site, written, model) if s is not None and s.file), NOWHERE)
        built = [o for o in world.optimizers.values() if o.steps > 0]
        then = " and the second backward raised" if raised else ", its value never changes"
        findings.append(
            Finding(
                "M10",
                "error",
                site,
                f"`{full}` is the result of an operation on a Parameter, not a Parameter: it is not registered, no "
                f"optimizer holds it{then} ({times(kept.backwards, 'reverse pass')}).",
                _fix(site, name, world),
                related=distinct(site, (written or NOWHERE, built[0].site if built else NOWHERE)),
                evidence={
                    "attribute": full,
                    "shape": list(kept.first.shape),
                    "is_leaf": False,
                    "registered": False,
                    "reverse_passes": kept.backwards,
                },
                count=max(kept.backwards, 1),
                subject=full,
                iteration=kept.iteration,
            )
        )
    return findings


def _free(state: State, world: World) -> Iterator[Finding]:
    """Free leaves that are filled below what was made from them on their own line."""
    leaves = [
        u for u in _no_optimizer.unheld(state.leaves, world, "M10") if _no_optimizer.kept_in(u.tensor, world) is None
    ]
    for site, group in _no_optimizer.by_line(leaves, lambda t: world.tensor(t).site):
        optimizer = _no_optimizer.optimizer_of(group[0].tensor, world)
        built = optimizer.site if optimizer is not None else NOWHERE
        yield Finding(
            "M10",
            "error",
            site,
            f"The tensor made here required grad, and the program went on with a result of it, which is no leaf: "
            f"{times(group[0].fills, 'reverse pass')} wrote the gradient into {times(len(group), 'hidden tensor')} "
            "that no optimizer holds.",
            "convert first, ask for the gradient last: x.to(dtype).requires_grad_()",
            related=distinct(site, (*site.above(1), built)),
            evidence={"leaves": len(group), "reverse_passes": group[0].fills, "in_optimizers": 0},
            count=group[0].fills,
            subject="hidden tensor",
            iteration=min(u.iteration for u in group),
        )


def _used_in_forward(made: Site, name: str) -> bool:
    """Whether the forward of the class around the line reads `self.<name>`; True where the text does not tell."""
    tree = parsed(made.file) if made.file else None
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.lineno <= made.line <= (node.end_lineno or node.lineno):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "forward":
                    return any(isinstance(n, ast.Attribute) and n.attr == name for n in walk(inner))
    return True


def _refused(world: World) -> Finding | None:
    """An optimizer raised at a tensor that is no leaf: where was it made?"""
    ended = world.ended
    if ended is None or _REFUSED not in ended.message or not ended.frames:
        return None
    frame = ended.frames[-1]
    built = Site(frame.file, frame.line, frame.function)
    names = dict.fromkeys(
        last_name(n)
        for call in calls_at(frame.file, frame.line)
        for given in (*call.args, *(k.value for k in call.keywords))
        for n in walk(given)
        if isinstance(n, (ast.Name, ast.Attribute))
    )
    made = [(name, node) for name in names if name for node in meanings(frame.file, name) if _made_on(node)]
    if not made:
        return None
    name, node = made[-1]
    site = Site(frame.file, node.lineno, "")
    return Finding(
        "M10",
        "error",
        site,
        f"`{name}` is the result of an operation on a tensor that requires grad: it is no leaf, and the optimizer on "
        f"line {built.line} refuses it.",
        f"{name} = (...).requires_grad_(): convert first, ask for the gradient last",
        related=distinct(site, (built,)),
        evidence={"error": ended.message.splitlines()[0], "is_leaf": False},
        subject=name,
        iteration=ended.iteration,
    )


def _made_on(node: ast.expr) -> bool:
    """`torch.zeros(3, requires_grad=True).to(device)`, `nn.Parameter(x) * 0.1`: asked for a gradient, and then more."""
    inner = [n for n in walk(node) if n is not node and isinstance(n, ast.Call)]
    return any(
        last_name(c.func) in ("Parameter", "requires_grad_")
        or any(k.arg == "requires_grad" and getattr(k.value, "value", False) is True for k in c.keywords)
        for c in inner
    )


def _fix(site: Site, name: str, world: World) -> str:
    match = _WRAPPED.match(world.source(site).split("  #")[0].rstrip())
    if match is None or match[2].count("(") != match[2].count(")"):
        return f"self.{name} = nn.Parameter(...): convert first, wrap last"
    return f"{match[1]} = nn.Parameter({match[2]}{match[3]})"
