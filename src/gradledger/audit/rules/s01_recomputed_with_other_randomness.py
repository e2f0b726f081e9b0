"""# Recomputed with other random numbers

## What it is
Activation checkpointing runs a part of the forward again in the reverse pass.  With `preserve_rng_state=False` a
dropout (or any draw) in that part gets new random numbers the second time: another mask than the one that made the
loss.  The same happens with a generator of the program's own, which nobody puts back, in a Function of the program
whose backward runs the forward again, and with a setting (an adapter, a scale, a mode) that has changed in between.

## Why it matters
The gradient belongs to a function that was never evaluated.  It is not merely noisy: loss and gradient are of two
different samples, and training with recompute ends visibly worse than without.

## How it is found
In watched iterations, operations that draw random numbers inside `torch.utils.checkpoint` are seen, and the setting of
the call above them is read.  And what each operation of the second run makes is compared with what the first run made:
the first that differs is named.

## Near misses
- `preserve_rng_state=True`, the default.
- `preserve_rng_state=False` around a part that draws nothing, or whose dropout is off.
- A part that reads what it writes itself, and so differs the second time: GL-S02 speaks of the write.

## Fix
Leave `preserve_rng_state` at its default, or move the dropout out of the recomputed part.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from gradledger.audit._code import last_name, lines_calling, parsed, walk
from gradledger.audit._phrases import distinct
from gradledger.audit._recomputes import follows
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, Recomputed
from gradledger.core.site import Site

RULE = Rule(
    "S1",
    "recomputed-with-other-randomness",
    "recompute",
    "A recomputed part of the forward draws other random numbers than the first time: the gradient is of another loss.",
)
LISTENS = (Recomputed,)
NEEDS_DETAIL = True
KEPT = 256
_RESTORING = frozenset({"get_rng_state", "set_rng_state", "fork_rng", "get_state", "set_state", "enable_grad"})


@dataclass(slots=True)
class State:
    """Draws inside a recomputed part, by the line of the recompute."""

    draws: dict[tuple[str, int], list[Recomputed]] = field(default_factory=dict)
    writes: dict[tuple[str, int], list[Recomputed]] = field(default_factory=dict)  # that both runs make (GL-S02)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, Recomputed) and event.what in ("random", "state"):
        key = event.site.key()
        if key in state.draws or len(state.draws) < KEPT:
            events = state.draws.setdefault(key, [])
            if len(events) < 16:
                events.append(event)
    elif isinstance(event, Recomputed) and event.what == "statistics" and len(state.writes) < KEPT:
        state.writes.setdefault(event.site.key(), []).append(event)


def finish(state: State, world: World) -> list[Finding]:
    return [
        _finding(events)
        for key, events in state.draws.items()
        if not any(follows(events[0], write) for write in state.writes.get(key, ()))  # GL-S02 says so
    ]


def _restores(site: Site) -> list[Site]:
    """Lines that keep a random state and put it back, or that run the part again, in the Function's class that led to
    the line."""
    for place in (site, *site.above()):
        tree = parsed(place.file) if place.file else None
        for node in walk(tree) if tree is not None else ():
            if not isinstance(node, ast.ClassDef) or not any(last_name(base) == "Function" for base in node.bases):
                continue
            within = node.lineno, node.end_lineno or node.lineno
            if within[0] <= place.line <= within[1]:
                return [Site(place.file, line, "") for line in lines_calling(place.file, _RESTORING, within)[:6]]
    return []


def _finding(events: list[Recomputed]) -> Finding:
    first = events[0]
    names = list(dict.fromkeys(e.op for e in events))
    lines = distinct(first.site, (e.op_site for e in events))
    where = f" (line {lines[0].line})" if lines else ""
    compared = all(e.compared for e in events)
    restoring = [line for e in events[:1] if compared for line in _restores(e.site) or _restores(e.op_site)]
    if first.what == "state":
        message = (
            f"`{names[0]}`{where} makes something else when the reverse pass runs this part again: a setting, a mode "
            "or a parameter has changed since the forward, and the gradient is not that of the loss."
        )
        fix = "pass what changes as an argument, or change it after the reverse pass"
    else:
        message = (
            f"`{names[0]}`{where} runs inside this recompute, which does not keep the random state: the reverse pass "
            "draws other numbers than the forward, and the gradient is not that of the loss."
        )
        fix = "leave preserve_rng_state at True, its default"
        if compared:
            fix = "draw outside of the recomputed part, or put the generator's state back before the second run"
    return Finding(
        "S1",
        "error",
        first.site,
        message,
        fix,
        related=distinct(first.site, (*lines, *(e.asked_site for e in events), *restoring)),
        evidence={"operations": names, "compared": compared, "preserve_rng_state": None if compared else False},
        iteration=first.iteration,
    )
