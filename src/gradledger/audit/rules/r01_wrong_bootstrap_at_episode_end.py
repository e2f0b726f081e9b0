"""# Bootstrapping at the end of an episode

## What it is
A TD target adds the discounted value of the next state.  After a terminal state there is no next state: the value must
be masked out.  When a time limit merely interrupts an episode, there is one: the value must stay in.

## Why it matters
Without the mask, the values of terminal states, which nothing ever corrects, leak into all others.  With time limits
taken for ends, a state is worth what is left of the clock, and values are biased downward.

## How it is found
In watched iterations, the target of a loss is read as `reward + discount * value of a module`.  It is reported

- when no mask multiplies that value, although the code around the target is given a flag of terminal states that it
  never reads;
- when the target comes from a loop that runs back through time and carries a discounted sum (advantages, returns), and
  this loop is given such a flag and never reads it;
- when a mask does, and the flag is `terminated or truncated`, kept in the memory, where neither of the two is used for
  anything else.

## Near misses
- Continuing tasks: no flag at all, or environments known never to end.
- `terminated or truncated` that decides about the reset only, with `terminated` in the memory.
- Truncated episodes whose last value is added by hand.

## Fix
`y = r + gamma * (1 - terminated) * value(next_state)`, with `terminated` (not `done`) in the memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gradledger.audit import _terminals
from gradledger.audit._phrases import distinct, number
from gradledger.audit._source import source_lines
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Comparison, Event, Operand
from gradledger.core.site import Site

RULE = Rule(
    "R1",
    "wrong-bootstrap-at-episode-end",
    "rl",
    "A TD target bootstraps through terminal states, or takes a time limit for the end of an episode.",
)
LISTENS = (Comparison,)
NEEDS_DETAIL = True
KEPT = 128
_ENDLESS = re.compile(r"Pendulum-v|HalfCheetah|Swimmer|Reacher|Pusher")


@dataclass(slots=True)
class State:
    """Bootstrap targets by line: the first comparison and the operand.  `fixed`: all targets without a graph
    and without a mask."""

    targets: dict[tuple[str, int], tuple[Comparison, Operand]] = field(default_factory=dict)
    fixed: dict[tuple[str, int], tuple[Comparison, Operand]] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, Comparison):
        return
    for operand in (event.left, event.right):
        if operand.bootstrap and operand.site.file and len(state.targets) < KEPT:
            state.targets.setdefault(operand.site.key(), (event, operand))
        if not operand.has_graph and not operand.masked and operand.site.file and len(state.fixed) < KEPT:
            state.fixed.setdefault(operand.site.key(), (event, operand))


def finish(state: State, world: World) -> list[Finding]:
    found: list[Finding] = []
    for event, operand in state.targets.values():
        finding = _limit(event, operand) if operand.masked else _unmasked(event, operand)
        if finding is not None:
            found.append(finding)
    if not found:
        carried = (_carried(event, operand) for event, operand in state.fixed.values())
        found += [finding for finding in carried if finding is not None][:1]
    return found


def _carried(event: Comparison, operand: Operand) -> Finding | None:
    site = operand.site
    if _ENDLESS.search("\n".join(source_lines(site.file))):
        return None
    loop = _terminals.carried_through(site.file, site.line)
    if loop is None:
        return None
    at = Site(site.file, loop.line, "")
    return Finding(
        "R1",
        "error",
        at,
        f"the sum that line {site.line} learns from is carried back here from step to step, also from a new episode "
        f"into the one before it: `{loop.flag}` (line {loop.flag_line}) is given and never read.",
        f"multiply what is carried, and the bootstrapped value, by (1 - {loop.flag})",
        related=distinct(at, (Site(site.file, loop.loop, ""), Site(site.file, loop.flag_line, ""), site, event.site)),
        evidence={"flag": loop.flag, "masked": False},
        confidence="likely",
        iteration=event.iteration,
    )


def _unmasked(event: Comparison, operand: Operand) -> Finding | None:
    site = operand.site
    if operand.discount is None or not 0 < operand.discount < 1 or _ENDLESS.search("\n".join(source_lines(site.file))):
        return None
    flag = _terminals.unused_flag(site.file, site.line)
    if flag is None:
        return None
    name, line = flag
    return Finding(
        "R1",
        "error",
        site,
        f"the target adds {number(operand.discount)} times the value of the next state for every transition, also "
        f"after a terminal one: `{name}` (line {line}) is given and never used.",
        f"multiply the bootstrapped value by (1 - {name})",
        related=distinct(site, (event.site, Site(site.file, line, site.function))),
        evidence={"discount": operand.discount, "flag": name, "masked": False},
        confidence="likely",
        iteration=event.iteration,
    )


def _limit(event: Comparison, operand: Operand) -> Finding | None:
    site = operand.site
    for limit in _terminals.limits_as_ends(site.file):
        at = Site(site.file, limit.line, "")
        return Finding(
            "R1",
            "error",
            at,
            f"a time limit counts as an end here: the flag is kept on line {limit.kept} and masks the bootstrapped "
            f"value on line {site.line}, so that an interrupted episode is taken for a finished one.",
            "keep `terminated` for the target; use `terminated or truncated` for the reset only",
            related=distinct(at, (site, event.site, Site(site.file, limit.kept, ""))),
            evidence={"discount": operand.discount, "masked": True},
            confidence="likely",
            iteration=event.iteration,
        )
    return None


def not_checked(state: State, world: World) -> str | None:
    return None if state.targets or state.fixed else "no loss had a bootstrapped target"
