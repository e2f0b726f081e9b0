"""# A history keeps the graphs of past steps alive

## What it is
Losses or outputs are appended to a list, summed into a running total or stored in a meter as tensors that still carry
their graph.

## Why it matters
Every kept tensor holds the graph of its step, with all activations that were saved for backward and not freed yet;
memory grows with each step until the process dies, typically hours into a run.

## How it is found
Results of past iterations are followed by weak references.  When the results of one line are still referenced with
their graph several optimizer steps later, or when a running tensor adds each step's graph to the one before, the line
that keeps them is reported with the counts; it is read off the source of the function.  So are forwards that no
reverse pass comes to, iteration after iteration, and whose graphs stay all the same: a replay of what was played.

## Near misses
- Truncated back-propagation through time: the hidden state is detached, only one window stays.
- A running average of `loss.detach()` or `loss.item()`.
- Gradient accumulation and episodes whose losses are walked together at the end.

## Fix
Keep numbers: `losses.append(loss.item())`, `running += loss.item()`; or `loss.detach()` to avoid a device
synchronisation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradledger.audit._phrases import distinct
from gradledger.audit._stores import stores
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, GraphsAlive

RULE = Rule(
    "G15",
    "history-keeps-graphs",
    "gradient lifecycle",
    "Tensors of past steps are kept with their graphs, so memory grows with every step.",
    "warning",
)
LISTENS: tuple[type[Event], ...] = (GraphsAlive,)

_LEAST = 8  # results that must be alive: fewer may be a window


@dataclass(slots=True)
class _Kept:
    first: GraphsAlive
    last: GraphsAlive
    most: GraphsAlive


@dataclass(slots=True)
class State:
    """Kept results by the line that made them."""

    kept: dict[tuple[str, int], _Kept] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, GraphsAlive):
        return
    kept = state.kept.setdefault(event.made_site.key(), _Kept(event, event, event))
    kept.last = event
    if event.alive >= kept.most.alive:
        kept.most = event


def finish(state: State, world: World) -> list[Finding]:
    told = [k for k in state.kept.values() if k.most.growing or k.most.alive >= _LEAST]
    # a kept loss keeps the outputs below it: they are told only when they are all there is
    first_hand = [k for k in told if k.most.what != "output"] or told
    return _joined([_finding(kept) for kept in first_hand])


def _finding(kept: _Kept) -> Finding:
    event = kept.most
    keeping = (event.site,) if event.growing else stores(event.made_site, derived=event.what == "output")
    site = keeping[0] if keeping else event.made_site
    how = (
        f"it has chained each step's graph to the one before for at least {event.alive} steps"
        if event.growing
        else f"{event.alive} of {event.looked} results looked at still have their graph {event.age} or more steps later"
    )
    what = "This running value" if event.growing else f"The {event.what} of line {event.made_site.line}"
    return Finding(
        "G15",
        "warning",
        site,
        f"{what} is kept with its graph: {how}, so memory grows with every step.",
        "keep the number: use .item(), or .detach() to avoid a synchronisation, on what is stored",
        related=distinct(site, (*keeping, event.made_site, *(event.made_site.above(3) if not event.growing else ()))),
        evidence={"alive": event.alive, "looked": event.looked, "steps_later": event.age, "running": event.growing},
        count=event.alive,
        iteration=kept.first.iteration,
    )


def _joined(findings: list[Finding]) -> list[Finding]:
    """A running sum and a list that keep the same loss are one fault: findings that share a line become one."""
    kept: list[Finding] = []
    for finding in findings:
        for index, other in enumerate(kept):
            if {s.key() for s in (finding.site, *finding.related)} & {s.key() for s in (other.site, *other.related)}:
                lines = distinct(other.site, (*other.related, finding.site, *finding.related))
                kept[index] = replace(other, related=lines)
                break
        else:
            kept.append(finding)
    return kept
