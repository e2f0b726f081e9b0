"""# A loss term is counted twice

## What it is
The same tensor stands more than once among the terms that a loss adds up: a term that is in the list of losses and is
added again, a dictionary whose "total" entry is summed together with its parts, a running total that is added to
itself.

## Why it matters
The term pulls with twice its written weight from the first step to the last.  Nothing grows and nothing fails, so it
looks like a badly chosen coefficient; tuning the other coefficients then hides it.

## How it is found
The loss of a watched reverse pass is unfolded over `+`, `-`, `sum`, stacked scalars and plain factors.  A term is
reported when one and the same tensor, with graph, is met at least twice with the same sign and by way of plain numbers
only; also when it stands, with one weight, in the sums under the means of two terms: `mean(a + b) + mean(b)`.  The
multiple is constant: a multiple that grows is missing clears (GL-G01).

## Near misses
- An explicit weight, `2 * loss`: one term with a factor.
- An interpolation, `a + 0.5 * (b - a)`: the signs differ.
- A term that is computed twice and weighted differently: the stage cost and the terminal cost of the last state.
- A residual connection, or a parameter that two different terms reach: not at the additive level of the loss.

## Fix
Sum every term once; when a weight of 2 is meant, write it: `loss = 2 * bc + effort`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from gradledger.audit import oracle
from gradledger.audit._phrases import distinct, number, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, OracleExplained, Term
from gradledger.core.site import Site

RULE = Rule(
    "G7",
    "term-counted-twice",
    "gradient lifecycle",
    "One tensor stands more than once among the terms of a loss, so it counts a constant multiple of its weight.",
)
LISTENS: tuple[type[Event], ...] = (Backward,)
NEEDS_DETAIL = True

_Place = tuple[str, int]


@dataclass(slots=True)
class _Doubled:
    backward: Backward
    term: Term
    site: Site
    seen: int = 0


@dataclass(slots=True)
class State:
    """`looked`: unfolded passes by line; `found`: doubled terms by (line of the sum, of the term, operation)."""

    looked: dict[_Place, int] = field(default_factory=dict)
    found: dict[tuple[_Place, _Place, str], _Doubled] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, Backward) or not event.terms or event.raised:
        return
    state.looked[event.site.key()] = state.looked.get(event.site.key(), 0) + 1
    for term in event.terms:
        if term.times < 2 or not term.has_graph:
            continue
        site = event.root_site if event.root_site.file else event.site
        doubled = state.found.setdefault((site.key(), term.site.key(), term.op), _Doubled(event, term, site))
        doubled.seen += 1


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for doubled in state.found.values():
        term, event = doubled.term, doubled.backward
        looked = state.looked[event.site.key()]
        what = f"`{term.op}` of line {term.site.line}" if term.site.file else f"a `{term.op}` term"
        finding = Finding(
            "G7",
            "error",
            doubled.site,
            f"The {what} stands {term.times} times in this loss, so its gradient is {term.times}x the written one; "
            f"constant, in {doubled.seen} of {times(looked, 'reverse pass')} looked at.",
            f"sum every term once; if a weight of {term.times} is meant, write it: {term.times} * ...",
            related=distinct(doubled.site, (event.site, term.site)),
            evidence={
                "times": term.times,
                "factor": term.factor,
                "op": term.op,
                "value": number(term.value) if term.value is not None else None,
                "seen": doubled.seen,
                "looked": looked,
                "signature": f"constant {term.times}x",
            },
            count=doubled.seen,
            iteration=event.iteration,
        )
        findings.append(oracle.weigh(finding, world, None, partial(_counts, term)))
    return findings


def _counts(term: Term, event: OracleExplained) -> bool | None:
    """Whether the term's gradient is in the consumed one more than once."""
    shares = [s for s in event.shares if s.kind == "term" and s.op == term.op and s.site.key() == term.site.key()]
    once = [s for s in shares if s.backwards == shares[0].backwards]
    for share in once:  # one tensor that stands there several times
        if abs(share.written) > 1.5 * abs(term.factor):
            return oracle.at_least(share, share.written / term.times, event.scale)
    if len(once) < 2:
        return None
    ties = {share.tied for share in once}  # made several times over: equal gradients, or different ones after all
    if ties == {0}:
        return False if all(share.bound < abs(share.written) / 2 for share in once) else None
    return True if len(ties) == 1 else None
