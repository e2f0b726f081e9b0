"""# Evaluation or rollout builds graphs that nobody walks

## What it is
Forward calls for evaluation, for acting in an environment or for collecting predictions run with grad mode on; their
graphs are thrown away by `.detach()`, `.item()`, `argmax` or simply by going out of scope.

## Why it matters
The numbers are right, but every such call stores activations for a backward that never comes: time and memory for
nothing, and memory that grows when the outputs are collected first and detached at the end.

## How it is found
The outputs of forward calls that the program itself makes are followed until their graph is freed.  A line is reported
when none of its calls was ever walked and at least 8 were thrown away.  When their values went into a loss all the same
(a target, a critic's input), or left as a number within a training step, several in a row without a reverse pass in
between are asked for: a phase of the program, not a step of training.  One call a step is enough where the output is
detached at once and no optimizer moves the network meanwhile: a teacher, a backbone under a probe.  Inputs that carry a
graph themselves are no excuse where `torch.no_grad()` stands on a line of its own, which switches nothing off.

## Near misses
- A target computed with grad and detached inside the training step, `y = r + gamma * value(s2).detach()`.
- The generator's sample for the critic, `critic(fake.detach())`.
- First calls (shape inference, warm-up), unused auxiliary outputs, inputs that carry a graph themselves.
- A module that hands out its weights, or a view of them, under no_grad: they require a gradient but have no graph.
- Episodes whose log-probabilities are walked together at the end.
- A forward that takes a derivative itself, as forces from an energy: it needs its graph in an evaluation, too.

## Fix
`with torch.no_grad():` around the loop, or `@torch.no_grad()` on the function; keep `model.eval()` as well, it does
something else.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from gradledger.audit._code import last_name, walk
from gradledger.audit._loops import enclosing_function
from gradledger.audit._phrases import distinct
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, GraphDiscarded
from gradledger.core.site import Frame, Site

RULE = Rule(
    "G16",
    "forward-graph-never-walked",
    "gradient lifecycle",
    "Evaluation or rollout forwards record graphs that are thrown away: no_grad is missing.",
    "warning",
)
LISTENS: tuple[type[Event], ...] = (GraphDiscarded, Backward)

_LEAST = 8  # calls
_CUT_OFF = 20  # iterations in which all of a network whose output is detached at once is thrown away
_IN_A_ROW = 4  # calls without a reverse pass between them, when a loss was computed from their values ...
_IN_A_ROW_UNUSED = 2  # ... and when none was, in train mode
_CHOICES = frozenset(
    {"argmax", "argmin", "max", "topk", "multinomial", "sample", "sort", "gt", "lt", "ge", "le", "round"}
)
_WALKED_LINES = 4000
_MODES = frozenset({"no_grad", "inference_mode"})

_Chain = tuple[tuple[str, int], ...]


@dataclass(slots=True)
class State:
    """`latest`: account of each calling line (innermost frames); `walked`: lines whose calls some pass walked;
    `reached`: tensors that some pass gave a gradient; `lost`: some pass reached no optimizer's tensor."""

    latest: dict[_Chain, GraphDiscarded] = field(default_factory=dict)
    first: dict[_Chain, int] = field(default_factory=dict)
    walked: set[tuple[str, int]] = field(default_factory=set)
    reached: set[int] = field(default_factory=set)
    lost: bool = False


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Backward):
        for call in event.calls:
            if len(state.walked) < _WALKED_LINES:
                state.walked.add(call.site.key())
        if event.method == "backward":
            state.lost |= not any(world.holders(tensor) for tensor in event.leaves)
            state.reached.update(event.leaves)
    elif isinstance(event, GraphDiscarded):
        chain = _chain(event.site)
        state.latest[chain] = event
        state.first.setdefault(chain, event.iteration if event.since is None else event.since)


def _chain(site: Site) -> _Chain:
    return (site.key(), *((f.file, f.line) for f in site.callers[:1]))


def finish(state: State, world: World) -> list[Finding]:
    places: dict[tuple[str, str, str], list[tuple[Site, GraphDiscarded, int]]] = {}
    for chain, event in state.latest.items():
        if event.walked or event.calls < _LEAST:
            continue
        if event.inputs_need_grad and not _switched_in_vain(event.site):
            continue
        if event.in_a_row < _least_in_a_row(event) and not _cut_off(event, state.first[chain], world):
            continue
        if state.lost and not state.reached.intersection(world.tensors_of(event.module)):
            continue  # a training step whose loss lost its graph (GL-G10)
        site = _line_to_edit(event.site, state.walked)
        place = (site.file, site.function, "eval" if not event.training else "train")
        places.setdefault(place, []).append((site, event, state.first[chain]))
    return [_finding(group, world) for group in places.values()]


def _least_in_a_row(event: GraphDiscarded) -> int:
    if event.used:
        return _IN_A_ROW
    if event.training and event.then not in _CHOICES:
        return _IN_A_ROW_UNUSED  # `gamma * value(s2).item()` within a training step is a target all the same
    return 1


def _cut_off(event: GraphDiscarded, first: int, world: World) -> bool:
    """`t = teacher(x).detach()`: all of a network that is neither trained meanwhile nor follows one that is."""
    tensors = world.tensors_of(event.module)
    if event.iteration - first < _CUT_OFF:
        return False
    if event.then not in ("detach", "detach_", "data") or world.copies_into(event.module):
        return False
    steps = [world.optimizer(o).last_step for t in tensors for o in world.holders(t)]
    return bool(tensors) and not any(step is not None and step.iteration >= first for step in steps)


def _switched_in_vain(site: Site) -> list[Site]:
    """`torch.no_grad()` on a line of its own, in the function of a call or the one above it: it switches nothing."""
    found = []
    for place in (Frame(site.file, site.line, site.function), *site.callers[:1]):
        inside = enclosing_function(place.file, place.line)
        for node in walk(inside) if inside is not None else ():
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and last_name(node.value.func) in _MODES:
                found.append(Site(place.file, node.lineno, place.function))
    return found


def _line_to_edit(site: Site, walked: set[tuple[str, int]]) -> Site:
    """The call's own line, or that of the nearest caller when training goes through the same line."""
    if site.key() not in walked or not site.callers:
        return site
    frame: Frame = site.callers[0]
    return Site(frame.file, frame.line, frame.function, callers=site.callers[1:])


def _finding(group: list[tuple[Site, GraphDiscarded, int]], world: World) -> Finding:
    """One finding a function: its lines belong under one `no_grad`."""
    site, event, _ = group[0]
    calls = sum(e.calls for _, e, _ in group)
    in_a_row = max(e.in_a_row for _, e, _ in group)
    mode = "in train mode" if event.training else "in eval mode"
    after = f", then `{event.then}` at line {event.then_site.line}" if event.then and event.then_site.file else ""
    callers = [above for _, event, _ in group for above in event.site.above(2)]
    thens = [e.then_site for _, e, _ in group]
    return Finding(
        "G16",
        "warning",
        site,
        f"{calls} forward calls of {world.module_name(event.module)} {mode} recorded a graph nobody walked{after}; "
        f"up to {in_a_row} in a row without a backward.",
        f"put these forwards under `with torch.no_grad():` (or decorate `{site.function}` with @torch.no_grad())"
        if site.function and not site.function.startswith("<")
        else "put these forwards under `with torch.no_grad():`",
        related=distinct(site, (*_switched_in_vain(event.site), *(s for s, _, _ in group), *thens, *callers)),
        evidence={
            "calls": calls,
            "walked": 0,
            "in_a_row": in_a_row,
            "training_mode": event.training,
            "then": event.then,
            "output_elements": max(e.elements for _, e, _ in group),
        },
        count=calls,
        subject=world.module_name(event.module),
        iteration=min(f for _, _, f in group),
    )
