"""# Means are accumulated without dividing by their number

## What it is
k micro-batches are walked before each step, each loss is a mean, and nothing divides by k; or something divides by
another number; or the means are over clearly unequal numbers of elements and still get equal weight.

## Why it matters
The gradient is k times that of the large batch it stands for: an unannounced k-fold learning rate.  With unequal
counts (tokens of short and long sequences) elements in small micro-batches weigh more than those in large ones, and
the run does not reproduce the one without accumulation.

## How it is found
At each step the reverse passes that stand unused in the gradient are counted by line.  k of one line, over the same
tensors, each with a mean as largest term, and the product of plain numbers on the way to it is 1; or it is 1/n for a
known count n other than k (batches of the loader, rows of the batch); or it is 1/k while element counts in a window
differ by half or more, window after window.  Targets that the loss ignores do not count, and a masked sum that is
divided by the sum of its own mask is a mean over what the mask leaves.  The multiple equals a known count.

## Near misses
- Division by k anywhere on the way: `(loss / k).backward()`, a factor in the sum, gradients divided before the step.
- Sum reductions that are normalised by a count of the whole window.
- Different losses on different lines, or one line that trains several heads.
- The tasks of meta-learning: each pass goes through an inner loop of its own (`autograd.grad` of weights with
  `create_graph`), and the outer loss is their sum.
- The smaller last batch of an epoch.

## Fix
`(loss / k).backward()`; with unequal counts: sum the element losses and divide by the count of the whole window.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from gradledger.audit import oracle
from gradledger.audit._cycle import Path, loss_word, optimizer_word
from gradledger.audit._phrases import distinct, number
from gradledger.audit._windows import Weight, Window, weight_of, window_of
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, LoaderEpoch, OracleExplained, Step
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "G8",
    "accumulated-means-not-divided",
    "gradient lifecycle",
    "k means are accumulated for one step and not divided by k, or by the wrong number.",
)
LISTENS: tuple[type[Event], ...] = (Step, LoaderEpoch, Backward)
PATHS_KEPT = 256
UNEQUAL = 1.5
WEIGHTS = 2  # tensors that an inner loop asks gradients of; a penalty asks for that of its one input


@dataclass(slots=True)
class _Line:
    """Windows of one line for one optimizer.  `sizes`: how many windows of each size; `factors`: of watched passes;
    `unequal`: watched windows whose element counts differ by half or more; `watched`: windows watched as a whole;
    `unlike`: watched passes without a mean; `own_counts`: what sums were divided by, as many as their own elements."""

    site: Site
    step: Site
    first: int
    sizes: Counter[int] = field(default_factory=Counter)
    factors: Counter[float] = field(default_factory=Counter)
    counted: int = 0
    unlike: int = 0
    own_counts: Counter[int] = field(default_factory=Counter)
    rescaled: int = 0
    watched: int = 0
    unequal: int = 0
    example: Weight | None = None
    spread: tuple[int, int] = (0, 0)
    term: Site = NOWHERE


@dataclass(slots=True)
class State:
    """`cut`: passes that stood unused when an epoch began; their windows are judged by GL-G22.  `inner`: passes that
    asked for gradients of weights, to go on with them in the graph; `tasks`: lines behind such inner loops."""

    steps: Counter[int] = field(default_factory=Counter)
    cut: deque[int] = field(default_factory=lambda: deque(maxlen=256))
    inner: deque[int] = field(default_factory=lambda: deque(maxlen=1024))
    tasks: set[Path] = field(default_factory=set)
    lines: dict[tuple[int, Path], _Line] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, LoaderEpoch):
        state.cut.extend(event.pending)
        return
    if isinstance(event, Backward):
        if event.create_graph and event.method == "grad" and len(event.leaves) >= WEIGHTS:
            state.inner.append(event.backward)
        return
    if not isinstance(event, Step):
        return
    window = window_of(event, world)
    if window is not None and _another_case(window, state):
        return
    state.steps[event.optimizer] += 1
    if window is None:
        return
    key = (event.optimizer, window.path)
    line = state.lines.get(key)
    if line is None:
        if len(state.lines) >= PATHS_KEPT:
            return
        line = state.lines[key] = _Line(window.passes[0].site, event.site, event.iteration)
    line.sizes[window.size] += 1
    if window.size < 2:
        return
    line.rescaled += window.rescaled
    _weigh(line, window)


def _another_case(window: Window, state: State) -> bool:
    """Windows cut by an epoch (GL-G22), repeated graphs (GL-G05), steps of one sequence that share a graph, and tasks
    with an inner loop each."""
    if window.path not in state.tasks and _inner_loops(window, state):
        state.tasks.add(window.path)
    return window.path in state.tasks or any(
        b.backward in state.cut or b.retain_graph or b.repeats is not None or b.covers for b in window.passes
    )


def _inner_loops(window: Window, state: State) -> bool:
    """Whether an inner loop lies between any two neighbours of the window's passes."""
    numbers = [b.backward for b in window.passes]
    return len(numbers) > 1 and all(
        any(before < inner < after for inner in state.inner) for before, after in pairwise(numbers)
    )


def _weigh(line: _Line, window: Window) -> None:
    weights = [(b, w) for b in window.passes if (w := weight_of(b)) is not None]
    line.unlike += sum(b.detailed for b in window.passes) - len(weights)
    line.own_counts.update(w.own_count for _, w in weights)
    for backward, weight in weights:
        line.counted += weight.divided
        if not weight.divided:
            line.factors[round(weight.factor, 9)] += 1
            line.example = line.example or weight
            line.term = line.term if line.term.file else _mean_site(backward)
    if len(weights) == window.size and not any(w.divided for _, w in weights):
        line.watched += 1
        elements = [w.elements for _, w in weights]
        if max(elements) >= UNEQUAL * min(elements):
            line.unequal += 1
            line.spread = line.spread if line.spread[1] else (min(elements), max(elements))


def _mean_site(backward: Backward) -> Site:
    means = [t for t in backward.terms if t.has_graph and t.reduction in ("mean", "batchmean", "sum")]
    return max(means, key=lambda t: abs(t.factor)).site if means else NOWHERE


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for (optimizer, _), line in state.lines.items():
        windows = sum(line.sizes.values())
        k, regular = line.sizes.most_common(1)[0]
        if k < 2 or regular < 2 or 10 * regular < 6 * windows or 2 * windows < state.steps[optimizer]:
            continue
        if 2 * line.rescaled > windows or line.counted > sum(line.factors.values()) or not line.factors:
            continue
        if 10 * line.unlike > sum(line.factors.values()) or line.own_counts[k]:
            continue  # sums, some of which happen to have as many elements as they are divided by
        finding = _judge(line, k, windows, world)
        if finding is not None:
            findings.append(oracle.weigh(finding, world, optimizer, partial(_undivided, line, k)))
    return findings


def _undivided(line: _Line, k: int, event: OracleExplained) -> bool | None:
    """Whether the means of several passes are in the consumed gradient with the weights written in their losses."""
    shares = [s for s in event.shares if s.kind == "term" and s.site.key() == line.term.key()]
    if len({s.backwards for s in shares}) < 2 or any(s.bound >= abs(s.written) / 2 for s in shares):
        return None
    if event.fit == "written":
        return True
    return False if event.fit == "scaled" and abs(event.scale * k - 1) < 1e-3 else None


def _judge(line: _Line, k: int, windows: int, world: World) -> Finding | None:
    factor = line.factors.most_common(1)[0][0]
    loss, word = loss_word(line.site, world), optimizer_word(line.step, world)
    evidence: dict[str, int | float | str] = {"accumulated": k, "windows": windows, "factor": factor}
    if factor == 1.0:
        evidence["signature"] = f"constant {k}x: the number of accumulated passes"
        message = (
            f"Each step of `{word}` adds up {k} means from this line and nothing divides by {k}: the gradient is "
            f"{k}x that of the batch it stands for, in {windows} windows."
        )
        fix = f"({loss} / {k}).backward()"
    elif (wrong := _wrong_count(factor, k, line.example, world)) is not None:
        multiple = k * factor
        evidence["signature"] = f"constant {number(multiple)}x"
        message = (
            f"Each step of `{word}` adds up {k} means from this line, each divided by {wrong[0]} ({wrong[1]}) "
            f"instead of {k}: the gradient is {number(multiple)}x the mean, in {windows} windows."
        )
        fix = f"divide by the number of accumulated passes: ({loss} / {k}).backward() on the undivided loss"
    elif abs(k * factor - 1) < 0.05 and line.watched >= 2 and 2 * line.unequal > line.watched:
        low, high = line.spread
        evidence |= {"unequal_windows": line.unequal, "watched_windows": line.watched, "smallest": low, "largest": high}
        message = (
            f"The {k} means of a window get equal weight although they are over {low} to {high} elements: elements "
            "of small "
            f"micro-batches weigh up to {number(high / low)}x more, in {line.unequal} of {line.watched} windows "
            "looked at."
        )
        fix = "sum the element losses (reduction='sum') and divide by the number of elements in the whole window"
    else:
        return None
    return Finding(
        "G8",
        "error",
        line.site,
        message,
        fix,
        related=distinct(line.site, (line.term, line.step, *line.term.above(1))),
        evidence=evidence,
        count=windows,
        subject=word,
        iteration=line.first,
    )


def _wrong_count(factor: float, k: int, example: Weight | None, world: World) -> tuple[int, str] | None:
    if not 0 < factor < 1:
        return None
    count = round(1 / factor)
    if count < 2 or abs(count * factor - 1) > 1e-6 or count == k:
        return None
    for loader in world.loaders.values():
        if count == loader.made.length:
            return count, "the batches of an epoch"
    rows = {loader.made.batch_size for loader in world.loaders.values()} | ({example.batch} if example else set())
    return (count, "the rows of a batch") if count in rows else None


def not_checked(state: State, world: World) -> str | None:
    if any(size > 1 for line in state.lines.values() for size in line.sizes):
        return None
    return "no step used more than one reverse pass"
