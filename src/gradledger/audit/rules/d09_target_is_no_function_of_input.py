"""# The target is no function of the input

## What it is
A regression is asked for something that its input does not determine: joint angles from a pose that many joint angles
reach, the elbow up and the elbow down for one point, an angle from its cosine, the action of an expert who goes left
or right at the same sight.

## Why it matters
The loss has a floor that no training can pass, and the model learns the mean of the possible answers, which is often
none of them: the mean of "left" and "right" is straight ahead.

## How it is found
The rows that were trained on are collected for small tables (up to 12 columns).  It is reported when the input leaves
much of a target column unexplained, both between nearest rows and by a smooth function on held-out rows, and that is no
noise: the input follows exactly from the target, and does not without those columns; or nearest rows either agree or
lie far apart.

Of inputs of any width: rows that come again in each pass with the target of another row (two loaders that shuffle on
their own).  Of images: maps of labels come again as they were, with the very pixels of the image in other places.  Of
noise: the target is drawn for itself, and another draw of its shape is what went into the input.

## Near misses
- Noisy targets with one value for each input, however noisy: the input cannot be computed from the noise.
- Steep or wrapped functions, inputs of many columns whose nearest rows are far apart, targets of a few distinct values.
- Flips of image and map together; images that are changed but for the places of their pixels.
- Targets made by a network (bootstraps, teachers), generative models that are given noise.
- Values regressed on returns of a program that acts in an environment: what comes after a state is drawn, and rows
  that follow each other agree.
- A policy that is held to others' actions while a critic judges it in the same loss.

## Fix
Regress what the input determines (the sum, sine and cosine, one branch), give the model the missing input, or predict a
distribution (a mixture, bins) in place of a mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._acting import acts
from gradledger.audit._made_at import made_at
from gradledger.audit._phrases import distinct, number
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import (
    Backward,
    Comparison,
    Event,
    PixelsMoved,
    TargetDrawn,
    TargetExplained,
    TargetsExchanged,
)

RULE = Rule(
    "D9",
    "target-is-no-function-of-input",
    "data",
    "The input of a regression does not determine its target: a floor that no training can pass.",
)
LISTENS: tuple[type[Event], ...] = (TargetExplained, TargetsExchanged, TargetDrawn, PixelsMoved, Comparison, Backward)
NEEDS_DETAIL = True
KEPT = 200
EXPLAINED = 0.85  # of a column that the input does not determine
APART = 0.1  # of its variance stands between nearest rows
STRANGERS = 0.5  # of the distance between the targets of any two rows
EXACT = 0.99  # of every input column follows from the target
OFTEN = 0.2  # of the maps that came again with another image, that had the same pixels in other places
NEEDED = 0.9  # and less than this without the columns in question


@dataclass(slots=True)
class State:
    """Regressions that were looked at, and the lines at which a walked loss compares."""

    seen: list[TargetExplained] = field(default_factory=list)
    exchanged: list[TargetsExchanged] = field(default_factory=list)
    drawn: list[TargetDrawn] = field(default_factory=list)
    moved: list[PixelsMoved] = field(default_factory=list)
    walked: set[tuple[str, int]] = field(default_factory=set)
    walk: Backward | None = None  # the last one, whose comparisons come after it
    compared: set[int] = field(default_factory=set)  # modules whose outputs it compared
    judged: set[int] = field(default_factory=set)  # modules whose output another network judges in the same loss


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, TargetExplained) and len(state.seen) < KEPT:
        state.seen.append(event)
    elif isinstance(event, TargetsExchanged) and len(state.exchanged) < KEPT:
        state.exchanged.append(event)
    elif isinstance(event, TargetDrawn) and len(state.drawn) < KEPT:
        state.drawn.append(event)
    elif isinstance(event, PixelsMoved) and len(state.moved) < KEPT:
        state.moved.append(event)
    elif isinstance(event, Comparison) and len(state.walked) < KEPT:
        state.walked.add(event.site.key())
    if isinstance(event, Backward):
        _decide(state)
        state.walk, state.compared = event, set()
    elif isinstance(event, Comparison) and state.walk is not None and event.backward == state.walk.backward:
        state.compared.update(c.module for side in (event.left, event.right) for c in side.calls if c.graph)


def _decide(state: State) -> None:
    """Of the last reverse pass: the modules that it compared, and whose output went on into others that it did not."""
    calls = state.walk.calls if state.walk is not None else ()
    last = max((call.call for call in calls if call.module not in state.compared), default=0)
    if len(state.judged) < KEPT:
        state.judged.update(c.module for c in calls if c.module in state.compared and c.call < last)


def finish(state: State, world: World) -> list[Finding]:
    _decide(state)
    found = [_exchanged(e, world) for e in state.exchanged if e.apart >= STRANGERS and e.site.key() in state.walked]
    found += [_moved(e, world) for e in state.moved if e.moved >= OFTEN * e.again and e.site.key() in state.walked]
    found += [_drawn(e, world) for e in state.drawn if e.site.key() in state.walked]
    for event in state.seen if not found else ():
        open_ = [
            i
            for i, (share, apart) in enumerate(zip(event.explained, event.apart, strict=True))
            if share < EXPLAINED and apart >= APART
        ]
        many = event.inverse >= EXACT and event.without < NEEDED
        branches = [i for i in open_ if event.branches[i]]
        if event.module in state.judged or (event.targets == 1 and acts(event.site)):
            branches = []  # what others did is a guide beside a critic; returns differ from state to state
        if event.site.key() not in state.walked or not open_ or not (many or branches):
            continue
        columns = open_ if many else branches
        least = min(event.explained[i] for i in columns)
        which = f"column {columns[0]}" if len(columns) == 1 else f"columns {', '.join(map(str, columns[:6]))}"
        why = (
            "the input follows from the target exactly, so this is no noise: many targets share one input"
            if many
            else "rows with nearly the same input either agree or lie far apart: the target has several branches"
        )
        found.append(
            Finding(
                "D9",
                "error",
                event.site,
                f"the input ({event.inputs} columns) explains {least:.0%} of the target's {which} of {event.targets}, "
                f"and {why}. A mean squared error of about {number(event.floor)} remains, whatever the training.",
                "regress what the input determines, add the input that is missing, or predict a distribution",
                related=distinct(event.site, (*made_at(event.site), world.module(event.module).site)),
                evidence={
                    "rows": event.rows,
                    "explained": [round(v, 3) for v in event.explained],
                    "between_nearest_rows": [round(v, 3) for v in event.apart],
                    "input_from_target": round(event.inverse, 4),
                    "without_these_columns": round(event.without, 4),
                    "floor": event.floor,
                },
                subject=world.module_name(event.module),
                iteration=event.iteration,
            )
        )
    return found


def _exchanged(event: TargetsExchanged, world: World) -> Finding:
    return Finding(
        "D9",
        "error",
        event.site,
        f"{event.again} of {event.rows} rows came again with another target, one that other rows have had, and the two "
        f"lie {event.apart:.0%} as far apart as those of any two rows: inputs and targets are put together anew in "
        "each pass, and nothing can be learned.",
        "take inputs and targets by the same numbers: x[rows], y[rows]",
        related=distinct(event.site, made_at(event.site)),
        evidence={"rows": event.rows, "came_again": event.again, "apart": event.apart},
        subject=world.module_name(event.module),
        iteration=event.iteration,
    )


def _moved(event: PixelsMoved, world: World) -> Finding:
    made = [s for site in event.made_sites for s in (site, *site.above())]
    shown = [s for s in made if s.function != "<module>"]
    return Finding(
        "D9",
        "error",
        event.site,
        f"{event.moved} maps of labels came again as they were, while the very pixels of their images were in other "
        "places: flips or shifts are made to the image alone, and the map no longer says what is where.",
        "change image and map by one draw: augment(image=x, mask=y)",
        related=distinct(event.site, (*shown[:6], *made_at(event.site)[:2])),
        evidence={"came_again": event.again, "with_pixels_moved": event.moved},
        subject=world.module_name(event.module),
        iteration=event.iteration,
    )


def _drawn(event: TargetDrawn, world: World) -> Finding:
    lines = (*event.drawn_site.above(2), event.mixed_site)
    return Finding(
        "D9",
        "error",
        event.site,
        f"the target is noise drawn at line {event.drawn_site.line} for it alone; what was mixed into the input is "
        "another draw. Nothing in the input tells of the target, and the model learns its mean, 0.",
        "keep the noise that goes into the input, and take it as the target",
        related=distinct(event.site, (event.drawn_site, *lines)),
        evidence={"mixed_in_line": event.mixed_site.line, "drawn_line": event.drawn_site.line},
        subject=world.module_name(event.module),
        iteration=event.iteration,
    )


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    return None if state.walked else "no comparison of a prediction with a target was seen"
