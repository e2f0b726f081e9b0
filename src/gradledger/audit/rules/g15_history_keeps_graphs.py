"""# A history keeps the graphs of past steps alive

## What it is
Losses or outputs are appended to a list, summed into a running total or stored in a meter as tensors that still carry
their graph.

## Why it matters
Every kept tensor holds the graph of its step, with all activations that were saved for backward and not freed yet;
memory grows with each step until the process dies, typically hours into a run.

## How it is found
Results of past iterations are followed by weak references.  When the results of one line are still referenced with
their `grad_fn` many optimizer steps later, or when a running tensor adds each step's graph to the one before, the line
that keeps them is reported with the counts.

## Near misses
- Truncated back-propagation through time: the hidden state is detached, only one window stays.
- A running average of `loss.detach()` or `loss.item()`.
- Gradient accumulation and episodes whose losses are walked together at the end.

## Fix
Keep numbers: `losses.append(loss.item())`, `running += loss.item()`; or `loss.detach()` to avoid a device
synchronisation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct
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
    findings = []
    for kept in state.kept.values():
        event = kept.most
        if not event.growing and event.alive < _LEAST:
            continue
        site = event.site if event.site.file else event.made_site
        how = (
            "this running value chains each step's graph to the one before"
            if event.growing
            else f"{event.alive} of the last {event.looked} results still carry their graph"
        )
        findings.append(
            Finding(
                "G15",
                "warning",
                site,
                f"The {event.what} of line {event.made_site.line} is kept with its graph: {how}, {event.age} steps "
                "later, so memory grows with every step.",
                "keep the number: use .item(), or .detach() to avoid a synchronisation, on what is stored",
                related=distinct(site, (event.made_site, kept.first.site)),
                evidence={
                    "alive": event.alive,
                    "looked": event.looked,
                    "oldest_in_steps": event.age,
                    "running": event.growing,
                },
                count=event.alive,
                iteration=kept.first.iteration,
            )
        )
    return findings
