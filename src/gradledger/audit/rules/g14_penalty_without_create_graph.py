"""# A gradient penalty without create_graph

## What it is
`torch.autograd.grad(...)` is called without `create_graph=True`, and what is computed from its result is added to a
loss.  Autograd sees a constant there.

## Why it matters
The penalty is computed, weighted and logged, but the gradient norm that it should hold down is free to grow: a critic
without Lipschitz bound, a physics residual that is not trained.

## How it is found
A loss is unfolded into its additive terms; a term without graph whose value comes from a result of `autograd.grad` that
was taken without `create_graph` is reported at that call, and so is one that is added to a value with a graph inside a
term, as in the residual of an equation.  When the whole loss is such a term torch raises, and the
report explains that error.

## Near misses
- Gradients that are only logged.
- Adversarial examples and saliency: the gradient moves an input, the loss of the moved input has its own graph.
- A detached ratio of gradient norms as a *weight* of a term (adaptive loss balancing).
- First-order meta-learning, where the inner gradient is a constant on purpose.

## Fix
`grad = torch.autograd.grad(score.sum(), mixed, create_graph=True)[0]`
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct, number, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Cut, Event, Term
from gradledger.core.site import Site

RULE = Rule(
    "G14",
    "penalty-without-create-graph",
    "gradient lifecycle",
    "A penalty on a gradient is a constant, because the gradient was taken without create_graph=True.",
)
LISTENS: tuple[type[Event], ...] = (Backward,)
NEEDS_DETAIL = True

_FIX = "pass create_graph=True to this torch.autograd.grad call"


@dataclass(slots=True)
class _Penalty:
    backward: Backward
    cut: Cut
    term: Term | None
    seen: int = 0
    sites: list[Site] = field(default_factory=list)


@dataclass(slots=True)
class State:
    """`found`: constant penalties by line of the autograd.grad call; `raised`: a backward of nothing but a penalty."""

    found: dict[tuple[str, int], _Penalty] = field(default_factory=dict)
    looked: dict[tuple[str, int], int] = field(default_factory=dict)
    raised: Backward | None = None


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, Backward) or not world.trains(event):
        return
    if event.raised:
        if "does not require grad" in event.raised:
            state.raised = event
        return
    if event.terms:
        state.looked[event.site.key()] = state.looked.get(event.site.key(), 0) + 1
    for term in event.terms:
        if term.penalty_of_grad and not term.has_graph and term.cut is not None and term.factor:
            _note(state, event, term.cut, term)
    if not event.terms or not event.root_has_graph or event.root_is_leaf:
        for cut in event.cuts:
            if cut.how == "autograd_grad":
                _note(state, event, cut, None)


def _note(state: State, event: Backward, cut: Cut, term: Term | None) -> None:
    penalty = state.found.setdefault(cut.site.key(), _Penalty(event, cut, term))
    penalty.seen += 1
    for site in (term.site if term is not None else event.root_site, event.root_site, event.site):
        if site.file and site not in penalty.sites and len(penalty.sites) < 8:
            penalty.sites.append(site)


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for penalty in state.found.values():
        term, event = penalty.term, penalty.backward
        looked = max(state.looked.get(event.site.key(), 0), penalty.seen)
        weight = f" with weight {number(term.factor)}" if term is not None and term.factor != 1 else ""
        findings.append(
            Finding(
                "G14",
                "error",
                penalty.cut.site,
                f"This gradient is taken without create_graph, and what is made of it enters the loss of line "
                f"{event.site.line}{weight} as a constant: it is printed but trains nothing, in {penalty.seen} of "
                f"{times(looked, 'reverse pass')} looked at.",
                _FIX,
                related=distinct(penalty.cut.site, (*_callers(penalty.cut.site), *penalty.sites)),
                evidence={
                    "op": term.op if term is not None else event.root_op,
                    "factor": term.factor if term is not None else 1.0,
                    "value": number(term.value) if term is not None and term.value is not None else None,
                    "seen": penalty.seen,
                    "looked": looked,
                },
                count=penalty.seen,
                iteration=event.iteration,
            )
        )
    loud = _loud(state, world)
    return [*findings, loud] if loud is not None else findings


def _callers(site: Site) -> list[Site]:
    """Who asks a helper for the derivative, in the file of the helper."""
    return [above for above in site.above(1) if above.file == site.file]


def _loud(state: State, world: World) -> Finding | None:
    event, ended = state.raised, world.ended
    if event is None or ended is None or "does not require grad" not in ended.message or not event.cuts:
        return None
    if any(cut.how != "autograd_grad" for cut in event.cuts):
        return None
    site = event.cuts[0].site
    return Finding(
        "G14",
        "error",
        site,
        f"`backward()` at line {event.site.line} raises: all of its loss is computed from this gradient, taken "
        "without create_graph and therefore a constant.",
        _FIX,
        related=distinct(site, (event.root_site, event.site)),
        evidence={"error": ended.message.splitlines()[0]},
        iteration=event.iteration,
    )
