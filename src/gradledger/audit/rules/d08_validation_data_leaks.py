"""# Validation data leaks into training

## What it is
Means, deviations, ranges or principal components are taken over all rows and then used to scale rows trained on and
rows held out alike; or rows held out for validation are among those trained on.

## Why it matters
What should be unseen has shaped the inputs.  The score is better than on new data, most where it matters: when
the new data is shifted against the old.

## How it is found
Rows are followed from the program's tables through indexing and arithmetic.  A reduction over rows is a statistic, and
what is computed with it carries it on; it is reported when inputs that were trained on and inputs held out carry one
statistic that is taken over both.  Tables from arrays are told by their values: all rows together have mean 0 and
deviation 1 (or reach exactly 0 and 1), those trained on alone do not.  Held-out rows that are trained on are told by
their numbers, among them those of a split that is drawn anew for each part.

Transforms of scikit-learn, and the program's own with a `fit` that takes statistics, are read from the text: fitted on
a table that is parted afterwards (also to the one part that an argument names), or whose rows' numbers are parted; or
on training rows and rows called held out, put together.  So are running statistics of the program's own, which a method
takes up unless it is told not to: an evaluation that ran calls it without telling, and training calls it, too.

A column that is the mean target of a category (target encoding, plain or drawn towards a prior) is told by its values:
it gives the sums of the targets of all rows exactly, those held out among them, and not the sums of those trained on.

A loader that is named for validation counts when an optimizer steps through whole passes over it, as over another one,
and nothing is asked there without a graph.

## Near misses
- Statistics of the training rows, used for all; batch statistics; statistics that scale targets or make labels.
- Running statistics that training alone moves (`update=False` in the evaluation).
- Constants that are known beforehand (255, joint limits); truth values, one-hot words, bytes.
- Answers without graph that enter a loss: bootstrap targets and teachers judge nothing.
- A last fit on training and validation rows, where others are kept for a test; encoders of labels and words.
- An evaluation on training rows, called so; graphs and other data that is one input for everything.

## Fix
Split first; then `mean, std = x[train].mean(0), x[train].std(0)`, or `scaler.fit(x_train)` and `transform` the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit import _met, _walked
from gradledger.audit._evaluation import words
from gradledger.audit._fits import fitted_before_split, fitted_on_both
from gradledger.audit._own_statistics import moved_by_evaluation
from gradledger.audit._phrases import distinct
from gradledger.audit._source import source_line
from gradledger.audit._splits import (
    is_held_out,
    lines_that_draw_items,
    lines_that_encode,
    lines_that_fit,
    lines_that_split,
)
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import LoaderInfo, World
from gradledger.core.events import Event, FittedOnAll, LoaderEpoch, ModuleCalled, RowsMet, RowsShared, Step
from gradledger.core.site import Site, is_installed

RULE = Rule(
    "D8",
    "validation-data-leaks",
    "data",
    "Statistics are fitted on training and validation rows together, or validation rows are trained on.",
)
LISTENS: tuple[type[Event], ...] = (FittedOnAll, RowsShared, RowsMet, LoaderEpoch, ModuleCalled, Step)
NEEDS_DETAIL = True
KEPT = 200
_HELD = frozenset({"val", "va", "valid", "validation", "test", "dev", "held", "heldout", "holdout"})
_Place = tuple[tuple[str, int], tuple[str, int]]


@dataclass(slots=True)
class State:
    """The latest of each statistic and part; parts whose rows were trained on."""

    fitted: dict[_Place, FittedOnAll] = field(default_factory=dict)
    same: dict[tuple[tuple[str, int], ...], RowsShared] = field(default_factory=dict)
    met: dict[tuple[str, int], RowsMet] = field(default_factory=dict)
    apart: int = 0
    passes: _walked.Passes = field(default_factory=_walked.Passes)
    asked: set[tuple[str, str]] = field(default_factory=set)  # files and functions that asked a module, without graph


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, FittedOnAll) and len(state.fitted) < KEPT:
        state.fitted[event.site.key(), event.part_site.key()] = event
    elif isinstance(event, RowsShared) and len(state.same) < KEPT:
        if event.how == "same":
            state.same[tuple(frame.key() for frame in _places(event.site))] = event
        else:
            state.apart += 1
    elif isinstance(event, RowsMet) and event.how == "same" and len(state.met) < KEPT:
        state.met[event.site.key()] = event
    elif isinstance(event, (LoaderEpoch, ModuleCalled, Step)):
        _walked.update(state.passes, event)
        if isinstance(event, ModuleCalled) and not event.grad_on and len(state.asked) < KEPT:
            state.asked.add((event.site.file, event.site.function))


def finish(state: State, world: World) -> list[Finding]:
    found = []
    for event in state.fitted.values():
        if event.trained or not is_held_out(event.part_site, event.evaluated):
            continue
        encoded = event.op.startswith("encoded")
        named = lines_that_encode(event.part_site) if encoded else []
        lines = [event.site] if event.site.file else named or lines_that_fit(event.part_site)
        site, *others = lines or [event.part_site]
        by = f"the `{event.op}` is taken over" if event.site.file else f"the inputs are {event.op} over"
        after = (
            "so that they hold the answers that are asked for."
            if encoded
            else "and scales what is trained on and what is validated."
        )
        found.append(
            Finding(
                "D8",
                "error",
                site,
                f"{by} {event.rows} rows, with {event.shared:.0%} of the {event.held} rows that are held out among "
                f"them, {after}",
                "split first, and fit on the training rows only" + ("" if encoded else ": x[train].mean(0)"),
                related=distinct(
                    site, (*others[:3], event.part_site, *site.above(2))
                ),
                evidence={
                    "op": event.op,
                    "rows": event.rows,
                    "held_out": event.held,
                    "held_out_among_them": event.shared,
                },
                iteration=event.iteration,
            )
        )
    found += [_same(event, world) for event in state.same.values() if _is_leak(event, state)]
    found = found or [_met_again(event) for event in state.met.values() if _is_met(event)][:1]
    found = found or [_stepped_through(*one) for one in _walked.trained_on(state.passes, world)]
    return found or _in_the_text(world) or _moved_on(state)


def _moved_on(state: State) -> list[Finding]:
    """Statistics of the program's own that an evaluation moved, in a function that was seen to evaluate."""
    return [
        Finding(
            "D8",
            "error",
            Site(file, one.line, one.function),
            f"`{one.cls}` takes the rows of the evaluation into its statistics here (`{one.switch}` is True unless it "
            f"is given), and training goes on with them on line {one.train_line}.",
            f"{one.switch}=False where nothing is trained",
            related=(Site(file, one.declared, ""), Site(file, one.train_line, "")),
            evidence={"statistics": one.cls, "switch": one.switch, "training_line": one.train_line},
            confidence="likely",
            subject=one.cls,
        )
        for file in dict.fromkeys(file for file, _ in state.asked if file and not is_installed(file))
        for one in moved_by_evaluation(file)
        if (file, one.function) in state.asked
    ]


def _stepped_through(loader: LoaderInfo, one: _walked.Walked) -> Finding:
    site = loader.made.site
    return Finding(
        "D8",
        "error",
        site,
        f"this loader is called validation, and line {one.site.line} makes {one.most} steps in a pass over its "
        f"{loader.made.length} batches, as over those of training: the validation rows are trained on.",
        "no reverse pass and no step over validation batches: torch.no_grad(), and no optimizer for that phase",
        related=distinct(site, (one.site, *one.site.above(3))),
        evidence={"batches": loader.made.length, "steps_in_a_pass": one.most},
        confidence="likely",
    )


def _is_met(event: RowsMet) -> bool:
    return not _met.are_copies(event) and _met.asks_for_held_out(event.site)


def _met_again(event: RowsMet) -> Finding:
    drawn = [Site(event.site.file, line, "__getitem__") for line in lines_that_draw_items(event.site.file)]
    split = [*drawn, *_met.split_lines(event.site)]
    site = split[0] if split else event.site
    cause = "  `__getitem__` draws an item here, whatever number it is asked for." if drawn else ""
    return Finding(
        "D8",
        "error",
        site,
        f"{event.shared:.0%} of the {event.held} rows that line {event.site.line} evaluates had been trained on by "
        f"then (line {event.train_site.line}): the validation asks for what was learned by heart.{cause}",
        "give the item that is asked for" if drawn else "take the validation rows out of the training rows",
        related=distinct(
            site,
            (*split[1:], event.site, *event.site.above(1), event.train_site, *event.train_site.above(1)),
        ),
        evidence={"held_out": event.held, "trained_on": event.shared, "rows_trained_on": event.rows},
        confidence="likely",
        iteration=event.iteration,
    )


def _in_the_text(world: World) -> list[Finding]:
    """Transforms that are fitted before the split, in the files from which optimizers were built."""
    built = [o.site for o in world.optimizers.values() if o.steps]
    files = dict.fromkeys(f for site in built for f in (site.file, *(c.file for c in site.callers)) if f)
    mine = [f for f in files if not is_installed(f)]
    parted = [
        Finding(
            "D8",
            "error",
            fit.site,
            f"`{fit.kind}` is fitted on all of `{fit.table}`, and line {fit.split.line} parts its rows, or what is "
            "made of them, into those trained on and those held out: what is held out has shaped the inputs.",
            "split first, fit on the training rows, and transform the rest",
            related=(fit.split,),
            evidence={"transform": fit.kind, "table": fit.table, "split_line": fit.split.line},
            confidence="likely",
            subject=fit.table,
        )
        for file in mine
        for fit in fitted_before_split(file)
    ]
    return parted or [
        Finding(
            "D8",
            "error",
            fit.site,
            f"this is fitted on `{fit.train}` and `{fit.held}` together, and the latter is held out: it has shaped the "
            "inputs that are trained on.",
            f"fit on `{fit.train}` alone, and transform the rest",
            related=distinct(fit.site, (Site(file, n, "") for n in (fit.joined, fit.told) if n)),
            evidence={"trained_on": fit.train, "held_out": fit.held},
            confidence="likely",
            subject=fit.held,
        )
        for file in mine
        for fit in fitted_on_both(file)
    ]


def _is_leak(event: RowsShared, state: State) -> bool:
    """Rows that are called validation, a part of the table, and trained on; nothing else is evaluated instead."""
    if state.apart or event.shared < 0.1 or event.held >= event.rows:
        return False
    for place in _places(event.site):
        text = source_line(place.file, place.line).strip()
        if text.startswith("return "):
            continue  # the caller gives the name, and may well ask for another draw each time
        targets, equals, _ = text.partition(" = ")
        if not equals and event.evaluated and _met.asks_for_held_out(place):
            return True  # `score(net, x[va], y[va])`
        return bool(words(targets) & _HELD) and "(" not in targets and ":" not in targets
    return False


def _places(site: Site) -> tuple[Site, ...]:
    """A line and the two that led to it."""
    return (site, *site.above(2))


def _same(event: RowsShared, world: World) -> Finding:
    loaders = [info.made.site for info in world.loaders.values() if info.made.shuffled]  # what training reads
    given = _places(event.site)[1:] if source_line(*event.site.key()).strip().startswith("return ") else ()
    return Finding(
        "D8",
        "error",
        event.site,
        f"{event.shared:.0%} of the {event.held} rows held out here are among the {event.rows} rows that are trained "
        "on: the validation asks for what was learned by heart.",
        "take the validation rows out of the training rows",
        related=distinct(event.site, (*lines_that_split(event.site)[:2], event.train_site, *given, *loaders[:3])),
        evidence={"held_out": event.held, "trained_on": event.shared, "rows_trained_on": event.rows},
        confidence="likely",
        iteration=event.iteration,
    )


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    return None if world.detailed else "no reverse pass was watched in detail"
