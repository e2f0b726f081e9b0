"""# One term of the loss carries no graph

## What it is
A loss adds two or more terms; one of them is computed from the output or the weights of a trained module, but by way of
`.detach()`, `.item()`, numpy or `no_grad`, so it is a constant for autograd.

## Why it matters
The printed loss contains the term and may even fall, yet the term never moves a weight: the regulariser, the penalty or
the auxiliary task is switched off while the log says that it is on.

## How it is found
The loss of a watched reverse pass is unfolded into its additive terms.  A term without graph is reported when its value
depends, through a cut that the trace saw, on tensors of the very optimizer that consumes this reverse pass, each time
the line was looked at.  A Python number counts only when it changes from step to step.

## Near misses
- Constants, margins and offsets; a term that is only logged and not added.
- Targets, frozen teachers, the other player's score in an adversarial game: not held by the optimizer that steps.
- `aux - aux.detach()`: the value is zero on purpose, the gradient is not.
- A comparison that gives the same number each time, such as the log density of a point mass at its own point.
- A result of `autograd.grad` without `create_graph` (GL-G14).

## Fix
Compute the term with torch operations on the tensor itself: `smooth = torch.diff(pred, n=2, dim=1).pow(2).mean()`;
detach only the copy that is logged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from gradledger.audit import oracle
from gradledger.audit._phrases import distinct, number, times, way_out
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, OracleExplained, Step, Term
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "G11",
    "term-without-graph",
    "gradient lifecycle",
    "One term of the loss is computed from trained weights but is a constant for autograd, so it trains nothing.",
)
LISTENS: tuple[type[Event], ...] = (Backward, Step)
NEEDS_DETAIL = True

BY_HAND = 3  # passes of a program without an optimizer, which updates its leaves itself
_WAITING = 64
_VALUES = 16
_Key = tuple[tuple[str, int], tuple[str, int], str, int]


@dataclass(slots=True)
class _Constant:
    """A graph-free term: the first time, how often, how often an optimizer that holds its source consumed the pass."""

    backward: Backward
    term: Term
    seen: int = 0
    consumed: int = 0
    optimizer: int = 0
    values: set[float] = field(default_factory=set)


@dataclass(slots=True)
class State:
    """`alive`: terms that had a graph at some step; `waiting`: passes whose consumer is not known yet."""

    found: dict[_Key, _Constant] = field(default_factory=dict)
    alive: set[_Key] = field(default_factory=set)
    looked: dict[tuple[str, int], int] = field(default_factory=dict)
    waiting: list[tuple[Backward, _Key, frozenset[int]]] = field(default_factory=list)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Step):
        if state.waiting:
            _consumed(state, event, world)
        return
    if not isinstance(event, Backward) or not event.terms or event.raised or not event.root_has_graph:
        return
    state.looked[event.site.key()] = state.looked.get(event.site.key(), 0) + 1
    places: Counter[tuple[object, ...]] = Counter()
    for term in event.terms:
        place = (event.site.key(), term.site.key(), term.op)
        key = (*place, places[place])  # the first, second, ... term of this kind on its line
        places[place] += 1
        if term.has_graph:
            state.alive.add(key)
        elif term.depends and not term.penalty_of_grad and term.factor and term.cut is not None:
            constant = state.found.setdefault(key, _Constant(event, term))
            constant.seen += 1
            if term.value is not None and len(constant.values) < _VALUES:
                constant.values.add(term.value)
            state.waiting.append((event, key, frozenset(term.depends)))
    del state.waiting[:-_WAITING]


def _consumed(state: State, step: Step, world: World) -> None:
    used = {fill.backward for life in step.lives for fill in life.fills[-8:]}
    assigned = {tensor for life in step.lives if life.grad == "assigned" for tensor in life.tensors}
    held = world.optimizer(step.optimizer).tensors
    left = []
    for item in state.waiting:
        backward, key, depends = item
        # what autograd.grad gave was put into `.grad` by the program itself
        taken = backward.backward in used or (backward.method == "grad" and not assigned.isdisjoint(backward.leaves))
        if taken and any(tensor in held for tensor in depends):
            state.found[key].consumed += 1
            state.found[key].optimizer = step.optimizer
        else:
            left.append(item)
    state.waiting = left


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    by_hand = not any(o.steps for o in world.optimizers.values())
    for key, constant in state.found.items():
        if key in state.alive or not (constant.consumed or (by_hand and constant.seen >= BY_HAND)):
            continue
        if len(constant.values) < 2 and (constant.term.kind == "number" or _never_changes(constant)):
            continue
        finding = _finding(constant, state.looked[key[0]], world)
        findings.append(oracle.weigh(finding, world, constant.optimizer, partial(_without, constant.term)))
    return findings


def _never_changes(constant: _Constant) -> bool:
    """A count or a comparison that gives one and the same number each time (the log density of a point at itself)."""
    cut = constant.term.cut
    return cut is not None and cut.how == "integer" and len(constant.values) == 1 and constant.seen > 1


def _without(term: Term, event: OracleExplained) -> bool | None:
    """Whether the other terms make up the whole consumed gradient, so that this one adds nothing."""
    constants = (s for s in event.shares if s.kind == "constant")
    return True if any(s.op == term.op and s.site.key() == term.site.key() for s in constants) else None


def _finding(constant: _Constant, looked: int, world: World) -> Finding:
    term, event = constant.term, constant.backward
    cut = term.cut.site if term.cut is not None else NOWHERE
    root = event.root_site if event.root_site.file else event.site
    site: Site = cut if cut.file else term.site if term.site.file else root
    what = "A Python number in this loss" if term.kind == "number" else f"The term `{term.op}` (line {term.site.line})"
    weight = f", weight {number(term.factor)}," if term.factor != 1 else ""
    held = [t for t in term.depends if t in world.optimizer(constant.optimizer).tensors] or list(term.depends)
    return Finding(
        "G11",
        "error",
        site,
        f"{what}{weight} depends on {world.names(held, 2)} but left the graph by {way_out(term.cut)}: it changes the "
        f"printed loss and trains nothing, in {constant.seen} of {times(looked, 'reverse pass')} looked at.",
        "compute the term with torch operations on the tensor itself; detach only the copy that is logged",
        related=distinct(site, (term.site, root, event.site)),
        evidence={
            "op": term.op,
            "kind": term.kind,
            "factor": term.factor,
            "left_by": term.cut.how if term.cut is not None else "",
            "values": [number(v) for v in sorted(constant.values)[:4]],
            "depends_on": len(term.depends),
            "seen": constant.seen,
            "looked": looked,
            "consumed_by_its_optimizer": constant.consumed,
        },
        count=constant.seen,
        confidence="certain" if term.kind == "tensor" else "likely",
        iteration=event.iteration,
    )
