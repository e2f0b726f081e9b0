"""# The bootstrap or teacher target is not detached

## What it is
A loss pulls a prediction towards a target that another (delayed, averaged) copy of the network computes, or that the
same network computes for the next state, and the target still carries its graph.

## Why it matters
On a separate copy that no optimizer holds, every reverse pass walks the copy too and adds to its `.grad`: time and
memory for nothing (warning).  Where the gradient reaches weights that an optimizer moves, the target is dragged towards
the prediction as well: the update is no longer the one of TD learning, BYOL or a mean teacher (error).

## How it is found
A reverse pass fills, together with a network, the tensors of a module that is written from this network while training
goes on; or one side of a comparison has the form `something + discount * output`, carries a graph into that output, and
the other side is a prediction of the same network or of the network it is a copy of.

## Near misses
- A frozen copy (`requires_grad_(False)`) without detach: no gradient can flow.
- Semi-gradient learning: `value(s2).detach()`, or the target computed under `no_grad`.
- Siamese and contrastive networks: two outputs of one network that are compared as equals.
- The residual of an equation: one network at t and at t + dt, or on a grid, both ends of each step learn.
- Local workers that are written from a global network but never meet it in a loss.

## Fix
Compute the target without graph: `with torch.no_grad(): y = r + gamma * target(s2)`, or `y = (r + gamma *
v2).detach()`."""

from __future__ import annotations

from gradledger.audit import _code
from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import LISTENS as LISTENS
from gradledger.audit._targets import (
    Link,
    Meeting,
    Watch,
    call_into,
    filled_together,
    frozen,
    kin,
    links,
    made_at,
    tree,
)
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event
from gradledger.core.site import Site

RULE = Rule(
    "T1",
    "target-not-detached",
    "target networks",
    "The loss's gradient flows into the network that computes its bootstrap or teacher target.",
)


def init() -> Watch:
    return Watch()


def update(state: Watch, event: Event, world: World) -> None:
    state.take(event)


def not_checked(state: Watch, world: World) -> str | None:
    """Without a copy or a bootstrapped comparison there is no target."""
    if any(m.bootstrap for m in state.meetings.values()) or links(world):
        return None
    return "no module was copied into another and no loss bootstraps"


def finish(state: Watch, world: World) -> list[Finding]:
    known = links(world)
    found: list[Finding] = []
    told: set[int] = set()
    for met in state.meetings.values():
        if not (met.bootstrap and met.target_graph) or met.symmetric or frozen(met.target, world):
            continue
        if met.one_call and met.count < 2:
            continue  # in the first iteration a grid that stands looks like any other input
        parameters = tree(met.target, world)
        if met.target == met.learner or parameters == tree(met.learner, world):
            if met.selection and met.sole and not _holds_both(parameters, known):
                found.append(_shared(met, world))
                told |= parameters
        elif kin(met.target, met.learner, world, known):
            found.append(_separate(met, parameters, world))
            told |= parameters
    for link in known:
        if link.repeated:
            found += _through_graph(link, told, state, world)
    return found


def _holds_both(parameters: set[int], known: list[Link]) -> bool:
    """One module object that holds network and target: its calls do not tell which of them ran."""
    return any(s in parameters and t in parameters for link in known for s, t in link.pairs)


def _shared(met: Meeting, world: World) -> Finding:
    name = world.module_name(met.target)
    # the arithmetic that makes the target, or (when that was gathered, stacked, ...) the call it starts from
    arithmetic = met.operand_site.file and met.operand_op in ("add", "sub", "rsub", "mul", "where")
    site = met.operand_site if arithmetic else _call_in(met.operand_site.function, met.target_site)
    return Finding(
        "T1",
        "error",
        site,
        f"The bootstrap target comes from `{name}`, the network being trained, and keeps its graph: {_seen(met)} the "
        "update also moved the target towards the prediction (residual gradient).",
        _fix_shared(met, world),
        related=distinct(
            site, (met.operand_site, met.target_site, *met.target_site.above(1), met.site, met.learner_site)
        ),
        evidence={
            "grade": "shared network",
            "network": name,
            "discount": met.discount,
            "comparison": met.op,
            "seen": met.count,
        },
        count=met.count,
        subject=name,
        iteration=met.first_iteration,
    )


def _call_in(function: str, call: Site) -> Site:
    """The line of a call as seen from `function`: the call itself, or the line there that led to it."""
    for frame in call.callers if call.function != function else ():
        if frame.function == function:
            return Site(frame.file, frame.line, frame.function)
    return call


def _separate(met: Meeting, parameters: set[int], world: World) -> Finding:
    trained = any(world.trained(t) for t in parameters)
    name = world.module_name(met.target)
    takes = [t for t in parameters if world.tensor(t).requires_grad]
    return Finding(
        "T1",
        "error" if trained else "warning",
        met.target_site if met.target_site.file else met.site,
        f"The bootstrap target keeps its graph through `{name}`: {_seen(met)} the reverse pass also wrote the "
        ".grad of its "
        f"{times(len(takes), 'parameter')}, " + _consequence(trained),
        _fix(met.target_site, world),
        related=distinct(met.target_site, (met.operand_site, *met.target_site.above(1), met.site, met.learner_site)),
        evidence={
            "grade": "target in an optimizer" if trained else "separate target",
            "target": name,
            "network": world.module_name(met.learner),
            "discount": met.discount,
            "parameters_reached": len(takes),
            "seen": met.count,
        },
        count=met.count,
        subject=name,
        iteration=met.first_iteration,
    )


def _through_graph(link: Link, told: set[int], state: Watch, world: World) -> list[Finding]:
    """A copy that is written again and again, filled by the same reverse passes as its source."""
    count, reached = 0, set[int]()
    best = None
    for seen, both in filled_together(link, state):
        if seen.first.method != "backward":
            continue  # asked for by name and handed to the program: nothing came to stand in .grad
        count += seen.count
        reached |= both
        if best is None or (best.detailed is None and seen.detailed is not None):
            best = seen
    if best is None or reached & told or state.alone(reached, {s for s, _ in link.pairs}):
        return []
    told |= reached
    backward = best.detailed or best.first
    call = call_into(backward, reached, world)
    site = call.site if call is not None else backward.root_site if backward.root_site.file else backward.site
    trained = any(world.trained(t) for t in reached)
    name = world.module_name(link.target)
    return [
        Finding(
            "T1",
            "error" if trained else "warning",
            site,
            f"`{name}` is written from `{world.module_name(link.source)}` "
            f"({times(link.count, 'time')}) "
            f"and yet {times(count, 'reverse pass')} of a loss over both also wrote the .grad of "
            f"{world.names(reached, 2)}, " + _consequence(trained),
            _fix(site, world),
            related=distinct(
                site, (*site.above(1), backward.root_site, backward.site, link.site, made_at(link.target, world))
            ),
            evidence={
                "grade": "target in an optimizer" if trained else "separate target",
                "target": name,
                "network": world.module_name(link.source),
                "copies": link.count,
                "parameters_reached": len(reached),
                "seen": count,
            },
            count=count,
            subject=name,
            iteration=best.first.iteration,
        )
    ]


def _seen(met: Meeting) -> str:
    return f"in {times(met.count, 'watched loss')}"


def _consequence(trained: bool) -> str:
    if trained:
        return "and its optimizer applies them: the target moves to meet the prediction."
    return "which no optimizer uses: time and memory for nothing."


def _fix(call: Site, world: World) -> str:
    line = world.source(call)
    plain = _code.assigned_to(line)
    if plain is not None:
        return f"with torch.no_grad(): {plain[0]} = {plain[1]}"
    return "compute the target under `with torch.no_grad():`, or detach it before the loss"


def _fix_shared(met: Meeting, world: World) -> str:
    """Detach where the target gets its name, unless the prediction stands in the same expression."""
    plain = _code.assigned_to(world.source(met.operand_site))
    if plain is not None and met.operand_site.key() not in (met.site.key(), met.learner_site.key()):
        return f"{plain[0]} = ({plain[1]}).detach()"
    return "detach what comes from the next state: gamma * value(s2).detach()"
