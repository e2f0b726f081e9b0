"""# The loss is as large as the batch makes it

## What it is
One term of the loss is averaged over all its elements, another is summed over the batch and more: a reconstruction by
`mse_loss` (a mean over B x D) beside a KL term with `.sum()` (over B x Z).  Or padded positions are set to zero and the
mean is then taken over all positions: `(loss * mask).mean()`.  Or the whole loss is a sum over a batch of n elements,
and the learning rate is one for their mean: steps are n times as large as it says.

## Why it matters
The weight of one against the other is B x D, and nobody chose it.  In a VAE the KL wins and the posterior collapses;
and each change of the batch size is a change of the objective, which the learning rate does not know.  A mean that
counts padding is too small by the share of padding: a batch with long sequences teaches more a step than one with
short ones, and every step is smaller than the learning rate says.  Steps that are n times too large diverge.

## How it is found
In watched iterations, the terms of each loss are unfolded with their reductions.  It is reported when a mean over
elements and a sum over rows *and* further axes of the same batch are added, with no factor and no division between.
A mask [B, T] with rows of different lengths is followed from where it is laid on a comparison to the mean (or the
division by the number of all positions) that counts what it removed; it is reported when the share of valid positions
differs between batches.  A plain sum alone is reported when the run blows up by it: all terms are sums over the rows
with no factor, SGD takes them as they are, its steps are longer than the weights they change, and its gradients grow
until they overflow, at a rate r a step that steps n times smaller would not have (2n > 1 + r).

## Near misses
- A sum with a learning rate that is made for it.  Nothing but a run that diverges tells it from one that is not: a sum
  that trains, however slowly or noisily, is no alarm.  With Adam a constant factor of the loss changes nothing; in a
  smaller last batch a sum gives each row the weight that it has in the others, which a mean does not.  So batches of
  several sizes under SGD are worth a note (info, which fails no run), and the rest is not reported.  So is a sum
  over the steps of a sequence or a rollout whose length changes: one mean a step, and no division by how many; or
  a mean of sums along an axis that does.
- Both divided by the number of rows, or both averaged; a masked sum divided by the number of valid positions.
- An explicit weight on one of them: somebody chose it.
- A sum over parameters (weight decay by hand, the KL of a Bayesian layer), whatever their shape.
- A sum over time and a mean over sequences; masks that are drawn at random; causal masks and label matrices.

## Fix
Sum over the features and average over the batch in every term: `mse_loss(..., reduction="sum") / len(x)` and
`kl.sum(1).mean()`.  Divide a masked sum by what the mask keeps: `(loss * mask).sum() / mask.sum()`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from gradledger.audit._blown_up import Growth
from gradledger.audit._phrases import distinct, number, times
from gradledger.audit.rule import Finding, Rule, Severity
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, PaddingAveraged, StepMeasured, Term

RULE = Rule(
    "L2",
    "scale-follows-batch",
    "loss conventions",
    "The scale of the loss follows the batch: a mean beside a sum, a masked mean over padding, a sum that diverges.",
)
LISTENS: tuple[type[Event], ...] = (Backward, PaddingAveraged, StepMeasured)
NEEDS_DETAIL = True
KEPT = 256
LEAST_STEPS, LENGTHS = 4, 3  # of the longest sequence, how many lengths: few terms are tasks, two are a remainder
SUMS = 0.9  # of the passes
_Key = tuple[tuple[str, int], tuple[str, int]]


_Kind = Literal["rows", "steps", "shares", "each"]


@dataclass(slots=True)
class _Sum:
    """Passes whose loss is a sum, by the line of that sum: the first, how many, and how much they add up.  `kind`:
    a plain sum over rows; one mean a step; a sum that is divided by a number other than its own, of which a share
    of so many elements comes to each; or a mean of sums over so many each."""

    event: Backward
    term: Term
    kind: _Kind
    count: int = 0
    fewest: int = 0
    most: int = 0
    sizes: set[int] = field(default_factory=set)

    def add(self, n: int) -> None:
        """One more pass, which adds up `n`."""
        self.fewest = min(self.fewest, n) if self.count else n
        self.most = max(self.most, n)
        self.count += 1
        if len(self.sizes) < LENGTHS:
            self.sizes.add(n)

    def varies(self) -> bool:
        """Whether passes differ in how much they add up; a last part of a sequence that is shorter does not count."""
        if self.kind != "rows":
            return self.most >= LEAST_STEPS and len(self.sizes) >= LENGTHS and self.most > 1.5 * self.fewest
        return self.fewest < self.most


@dataclass(slots=True)
class State:
    """Pairs of terms by their lines: the first reverse pass, and how many had them.  Masked averages by line: the
    first, and the shares of valid positions that were seen.  How the gradients of each optimizer grow."""

    pairs: dict[_Key, tuple[Backward, Term, Term]] = field(default_factory=dict)
    seen: dict[_Key, int] = field(default_factory=dict)
    walked: int = 0
    averages: dict[tuple[str, int], tuple[PaddingAveraged, set[float]]] = field(default_factory=dict)
    sums: dict[tuple[str, int], _Sum] = field(default_factory=dict)
    growths: dict[int, Growth] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, PaddingAveraged):
        if len(state.averages) < KEPT:
            _, shares = state.averages.setdefault(event.site.key(), (event, set()))
            if len(shares) < KEPT:
                shares.add(event.kept)
        return
    if isinstance(event, StepMeasured):
        if event.optimizer in state.growths or len(state.growths) < KEPT:
            state.growths.setdefault(event.optimizer, Growth()).take(event)
        return
    if not isinstance(event, Backward) or event.method != "backward" or not event.detailed:
        return
    state.walked += 1
    summed = _summed_in(event, world)
    if summed is not None:
        term, n, kind = summed
        if term.site.key() in state.sums or len(state.sums) < KEPT:
            state.sums.setdefault(term.site.key(), _Sum(event, term, kind)).add(n)
    means = [t for t in event.terms if t.has_graph and t.reduction == "mean" and _bare(t) and t.elements > t.batch > 1]
    for mean in means:
        for total in event.terms:
            if _is_total(total, mean.batch, world):
                key = (mean.site.key(), total.site.key())
                if key in state.pairs or len(state.pairs) < KEPT:
                    state.pairs.setdefault(key, (event, mean, total))
                    state.seen[key] = state.seen.get(key, 0) + 1


def _all_summed(event: Backward, world: World) -> Term | None:
    """The largest term, when every term with a graph is a plain sum over rows (or a penalty on parameters), or a mean
    that is multiplied by the number of its rows, which is one."""
    terms = [t for t in event.terms if t.has_graph and not (t.reduction == "sum" and _over_parameters(t, world))]
    totals = [t for t in terms if t.batch > 1 and t.site.line and (_is_sum(t) or _is_mean_by_rows(t))]
    return max(totals, key=lambda t: t.elements) if totals and len(totals) == len(terms) and not event.scaled else None


def _summed_in(event: Backward, world: World) -> tuple[Term, int, _Kind] | None:
    """The sum that a loss is, over how many, and of which kind."""
    whole = _all_summed(event, world)
    if whole is not None:
        return whole, whole.batch, "rows"
    graphs = [t for t in event.terms if t.has_graph]
    if event.scaled or not graphs or not graphs[0].site.line:
        return None
    term = graphs[0]
    if len(graphs) == 1 and (seeded := _seeded(event, term)) is not None:
        return seeded, seeded.batch, "rows"
    if len(graphs) == 1 and _over_a_number(term):
        return term, round(term.elements * abs(term.factor)), "shares"
    if len(graphs) == 1 and term.reduction == "mean" and term.each > 1 and _bare(term):
        return term, term.each, "each"
    if all(t.reduction == "mean" and _bare(t) and t.site.key() == term.site.key() for t in graphs):
        return term, len(graphs), "steps"
    return None


def _seeded(event: Backward, term: Term) -> Term | None:
    """A loss with one value a row whose reverse pass was handed ones: the gradient is that of their sum."""
    n = prod(event.root_shape)
    if event.seed is None or abs(event.seed) != 1 or n < 2 or not _bare(term) or term.reduction not in ("", "none"):
        return None
    return replace(term, site=event.site, reduction="sum", elements=n, batch=event.root_shape[0])


def _over_a_number(term: Term) -> bool:
    """Whether a sum over elements is divided by a plain number, smaller than they are many."""
    divided = term.reduction == "sum" and 0 < abs(term.factor) < 1 and term.times == 1 and not term.divided
    return divided and term.elements * abs(term.factor) > 1.5


def _over_parameters(term: Term, world: World) -> bool:
    return bool(term.leaves) and all(world.tensor(leaf).numel == term.elements for leaf in term.leaves)


def _bare(term: Term) -> bool:
    """Whether nothing weighs the term: no number, no count, no tensor."""
    return abs(term.factor) == 1 and term.times == 1 and not term.divided


def _is_sum(term: Term) -> bool:
    return _bare(term) and term.reduction == "sum"


def _is_mean_by_rows(term: Term) -> bool:
    return term.reduction == "mean" and abs(term.factor) == term.batch and term.times == 1 and not term.divided


def _is_total(term: Term, batch: int, world: World) -> bool:
    if not term.has_graph or not _is_sum(term):
        return False
    if term.batch != batch or term.elements <= term.batch or not term.site.line:
        return False
    if term.elements == term.batch**2:
        return False  # a matrix over pairs of rows (a transport plan, a kernel) has its own measure
    return not _over_parameters(term, world)  # (which has nothing to do with the batch)


def finish(state: State, world: World) -> list[Finding]:
    found = []
    for key, (event, mean, total) in state.pairs.items():
        found.append(
            Finding(
                "L2",
                "error",
                total.site,
                f"this term is a sum over {total.elements} elements ({total.batch} rows), and the one on line "
                f"{mean.site.line} is a mean over {mean.elements}: this one weighs {mean.elements}x as much as with "
                f"sums alone, a weight that grows with the batch.",
                "one convention for all terms: sum over features, mean over the batch",
                related=distinct(total.site, (mean.site, event.root_site, event.site)),
                evidence={"rows": total.batch, "summed": total.elements, "averaged": mean.elements},
                count=state.seen[key],
                confidence="likely",
                iteration=event.iteration,
            )
        )
    found += [_average(*pair) for pair in state.averages.values() if len(pair[1]) > 1]
    for one in state.sums.values():
        if one.count >= SUMS * state.walked:
            found += _summed(one, state, world)
    return found


def _summed(one: _Sum, state: State, world: World) -> list[Finding]:
    """A plain sum that SGD takes as it is: the run blows up by it (error), or the batches differ in size (a note)."""
    total, n = one.term, one.term.elements
    for ident, growth in state.growths.items():
        optimizer, rate = world.optimizer(ident), growth.rate
        rates = [g.lr for g in optimizer.groups if g.lr is not None]
        if optimizer.short_cls != "SGD" or not rates or not any(t in optimizer.tensors for t in one.event.leaves):
            continue
        severity: Severity = "info"
        evidence: dict[str, int | float] = {"rows": total.batch, "summed": n} if one.kind == "rows" else {}
        evidence["lr"] = rates[0]
        if one.kind == "rows" and rate is not None and 2 * n > 1 + rate:
            severity = "error"
            evidence |= {"growth": rate, "steps": growth.steps}
            message = (
                f"the loss is a sum over {n} elements ({total.batch} rows), so steps are {n}x those of their mean at "
                f"the learning rate {number(rates[0])}, and the run diverges: gradients grew {number(rate)}x a step, "
                f"from {number(growth.first)} to {number(growth.last)} in {times(growth.steps, 'step')}."
            )
        elif one.varies() and (one.kind in ("shares", "each") or not growth.over):
            evidence |= {"fewest": one.fewest, "most": one.most}
            message = _note(one, number(rates[0]))
        else:
            continue
        return [
            Finding(
                "L2",
                severity,
                total.site,
                message,
                _FIXES.get(one.kind)
                or f"take the mean (reduction='mean'), or a learning rate for the sum ({number(rates[0])} / {n})",
                related=distinct(total.site, (one.event.root_site, one.event.site, optimizer.site)),
                evidence=evidence,
                count=one.count,
                confidence="likely",
                iteration=one.event.iteration,
            )
        ]
    return []


_ADDED = "divide by how many elements are added up"
_FIXES = {"steps": "divide by the number of steps", "shares": _ADDED, "each": _ADDED + ": a mean over that axis, too"}


def _note(one: _Sum, lr: str) -> str:
    """What a sum whose size changes does to the steps."""
    further = number(one.most / one.fewest) if one.fewest else ""
    match one.kind:
        case "steps":
            what = (
                f"the loss adds up one mean a step, over {one.fewest} to {one.most} steps, and nothing divides by how "
                f"many: at the learning rate {lr} long sequences move the weights {further}x as far as short ones."
            )
        case "shares":
            what = (
                f"the loss is a sum over a number that is not how many it adds up: {one.fewest} to {one.most} elements "
                f"come to each of them, so at the learning rate {lr} batches with many elements move the weights "
                f"{further}x as far as those with few."
            )
        case "each":
            what = (
                f"the loss is a mean of sums over {one.fewest} to {one.most} elements each: at the learning rate {lr} "
                f"long ones move the weights {further}x as far as short ones."
            )
        case "rows":
            what = (
                f"the loss is a sum over rows, {one.fewest} to {one.most} of them: steps follow the size of the batch, "
                f"and at the learning rate {lr} they are up to {one.term.elements * one.most // one.term.batch}x those "
                "of the mean."
            )
    each = {"steps": "step", "shares": "element", "each": "element", "rows": "row"}[one.kind]
    return f"{what}  That is right where each {each} is to weigh the same and the learning rate is made for it."


def _average(event: PaddingAveraged, shares: set[float]) -> Finding:
    least, most = min(shares), max(shares)
    return Finding(
        "L2",
        "error",
        event.site,
        f"padded positions are zero here, and the `{event.op}` counts them: only {least:.0%} to {most:.0%} of the "
        f"{event.rows} x {event.steps} positions are valid, so the loss and its gradient are {1 / most:.3g} to "
        f"{1 / least:.3g} times too small, as the padding of each batch happens to be.",
        "divide by what the mask keeps: (loss * mask).sum() / mask.sum()",
        related=distinct(event.site, (event.mask_site,)),
        evidence={"rows": event.rows, "steps": event.steps, "valid_least": least, "valid_most": most},
        count=len(shares),
        iteration=event.iteration,
    )


def not_checked(state: State, world: World) -> str | None:
    return None if state.walked else "no reverse pass was watched in detail"
