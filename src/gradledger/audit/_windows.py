"""Accumulation windows: the reverse passes of one line that stand together in a gradient at a step (G8, G22)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gradledger.audit._cycle import Path, fresh, path_of
from gradledger.audit.world import World
from gradledger.core import events as ev


@dataclass(frozen=True, slots=True)
class Window:
    """`passes`: the reverse passes of one window, oldest first, as far as they are remembered; `size`: how many.
    `rescaled`: the program has changed the gradients since; `scaled`: by this factor, when that is known."""

    path: Path
    passes: tuple[ev.Backward, ...]
    size: int
    rescaled: bool
    scaled: float | None = None


@dataclass(frozen=True, slots=True)
class Weight:
    """How one watched pass is scaled: `factor`: the largest plain number on the way to a mean; `elements` of that mean;
    `op`; `divided`: a graph-free tensor (a count) also scales it; `own_count`: of a sum divided by its own count, that
    count (0: a mean as written)."""

    factor: float
    elements: int
    batch: int
    op: str
    divided: bool
    own_count: int = 0


def window_of(step: ev.Step, world: World) -> Window | None:
    """The window that a step uses: the passes of the most frequent line among its unused contributions, if every one of
    them fills the same tensors that optimizers hold.  None when the step uses nothing, or old gradients too."""
    if step.closure:
        return None
    widest: ev.Life | None = None
    for life in step.lives:
        if life.frozen or life.grad != "filled":
            continue
        if widest is None or (len(life.fills), len(life.tensors)) > (len(widest.fills), len(widest.tensors)):
            widest = life
    if widest is None or any(f.consumed for f in widest.fills):
        return None
    known = [b for b in (world.backward(i) for i in fresh(widest.fills)) if b is not None]
    if not known:
        return None
    paths = [path_of(b.site) for b in known]
    path, mine = paths[0], tuple(known)
    if len(known) > 1:
        path, _ = Counter(paths).most_common(1)[0]
        mine = tuple(b for b, p in zip(known, paths, strict=True) if p == path)
        filled = [frozenset(t for t in b.leaves if world.holders(t)) for b in mine]
        if any(f != filled[0] for f in filled):
            return None  # several heads or experts: different losses that share a line
    size = len(mine) + (widest.omitted if len(mine) == len(known) else 0)
    return Window(path, mine, size, any(life.rescaled for life in step.lives), widest.scaled)


MOST_PASSES = 64  # that a sum is divided by, beside its own count


def weight_of(backward: ev.Backward) -> Weight | None:
    """How the mean terms of a watched pass are weighted; None when it has none, or was not unfolded.  A sum divided by
    its own number of rows or elements is a mean."""
    means = [(t, f) for t in backward.terms if (f := _mean_factor(t)) is not None]
    if not backward.detailed or not means:
        return None
    largest, factor = max(means, key=lambda pair: pair[1])
    divided = all(t.divided and not t.own_count for t, _ in means)
    own = round(1 / abs(largest.factor)) if largest.reduction == "sum" and not largest.own_count else 0
    elements = largest.own_count or largest.elements
    return Weight(factor, elements, largest.batch, largest.op, divided and not backward.scaled, own)


def _mean_factor(term: ev.Term) -> float | None:
    if not term.has_graph or term.kind != "tensor" or term.elements < 2:
        return None
    factor = abs(term.factor)
    if term.reduction in ("mean", "batchmean") or term.own_count:
        return factor
    if term.reduction != "sum" or not factor:
        return None
    if any(n > 1 and abs(n * factor - 1) < 1e-6 for n in (term.batch, term.elements)):
        return 1.0
    passes = round(1 / (term.elements * factor))  # divided by its own count and once more
    once_more = 1 < passes <= MOST_PASSES and abs(term.elements * factor * passes - 1) < 1e-6
    return 1 / passes if once_more else None
