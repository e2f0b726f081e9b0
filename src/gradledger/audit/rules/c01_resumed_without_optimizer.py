"""# Resumed without the optimizer

## What it is
A run is stopped and resumed from a checkpoint that brings back the weights, but not what the optimizer had gathered
(Adam's moments and step count, momentum), or not the position of the schedule.

## Why it matters
The first steps after the resume are those of a beginner: bias-corrected moments of one batch, the full learning rate.
The loss jumps, and the resumed run is another one than the uninterrupted run.

## How it is found
A module is filled from a file (of `torch.save`, safetensors, numpy or pickle), by `load_state_dict` or by hand, when
its values at the first step are those that were read.  An optimizer that keeps state makes its first step over those
parameters afterwards, and its state was never loaded, nor put there by hand.  It counts when the program means to go
on: the file, or one read with it, holds a counter or an optimizer's state, or the program speaks of a checkpoint; and
the optimizer is made just like the one before (or the file has its state, or a loop begins at a count that the file
holds).  One of several optimizers counts when it is made like one that had stepped before, and only the states of the
others come back.  A network counts that goes on from the weights of its average, with the state of its own optimizer.
An average (EMA) of the loaded module
counts when the run before had one, this one was made before the load, and nothing was loaded or copied into it since
but its own small updates.  And it counts when the program reads how far the run was from the file, the optimizer's
state comes back, and the next file that is written says less, or just as many as the steps made since: the loop counts
from the start.  Or when the file holds a count that the program computes with, and nowhere says its name again.  And
(warning) when all comes back but where a generator of the program's own stood: made anew with its seed, it gives the
batches and the noise of the first steps once more.

## Near misses
- Fine-tuning from pretrained weights: a new optimizer is right.
- Loading for evaluation only; plain SGD, which keeps nothing.
- Moments that the program puts into `optimizer.state` itself.
- A generator that is seeded anew for each epoch, or whose state comes back; torch's own global one.
- A stage of its own that counts from the start, and asks no file how far the one before was.
- An average that is made anew, or overwritten, after the load.
- Going back to the best epoch within one run, with the optimizer that is there.

## Fix
Save `optimizer.state_dict()` (and the scheduler's, the counters, the random state) beside the weights, and load all of
them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from gradledger.audit import _carried_on, _resumes
from gradledger.audit._code import walk
from gradledger.audit._counted_on import counts_on
from gradledger.audit._loops import enclosing_function, loops_around
from gradledger.audit._phrases import distinct
from gradledger.audit._records import CopyLink, OptimizerInfo
from gradledger.audit._resumes import Load, Resumes
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, FileTouched, NotPutBack
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "C1",
    "resumed-without-optimizer",
    "checkpoint",
    "A resumed run restores the weights but not the optimizer's state, and goes on as a beginner.",
)
LISTENS: tuple[type[Event], ...] = (*_resumes.LISTENS, NotPutBack)
KEPT = 64


@dataclass(slots=True)
class State:
    """The resumes, and generators that were made anew."""

    resumes: Resumes = field(default_factory=Resumes)
    drawing: list[NotPutBack] = field(default_factory=list)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, NotPutBack):
        _resumes.update(state.resumes, event, world)
    elif event.generators and len(state.drawing) < KEPT:
        state.drawing.append(event)


def finish(state: State, world: World) -> list[Finding]:
    return _begun(state.resumes, world) or [f for one in state.drawing for f in _drawn_anew(state.resumes, one, world)]


def _drawn_anew(state: Resumes, event: NotPutBack, world: World) -> list[Finding]:
    """A run that goes on with everything but its own random numbers, which begin again."""
    load = state.loads.get(event.module)
    if load is None or "optimizer" not in load.held or not _resumes.means_to_resume(load, world):
        return []
    found = []
    for name in event.generators:
        drawn = _carried_on.draws_anew(event, name)
        if drawn is not None:
            made, lines = drawn
            file, cls = event.cls_site.file, event.cls.rpartition(".")[2]
            site = Site(file, made, "__init__")
            found.append(
                Finding(
                    "C1",
                    "warning",
                    site,
                    f"`{name}` of `{cls}` is made with its seed again, and the state that line {event.taken_site.line} "
                    f"saves does not say where it stood: after the load on line {event.site.line} it draws the numbers "
                    "of the first steps once more.",
                    f"save {name}.get_state() beside the weights, and {name}.set_state(...) after the load",
                    related=distinct(
                        site, (event.taken_site, event.site, *(Site(file, line, "") for line in lines[:3]))
                    ),
                    evidence={"generator": name, "file_holds": sorted(load.held)},
                    confidence="likely",
                    subject=name,
                    iteration=event.iteration,
                )
            )
    return found[:1]


def _begun(state: Resumes, world: World) -> list[Finding]:
    found: list[Finding] = []
    for load, optimizer in _resumes.begun_anew(state, world):
        before = _resumes.twin(optimizer, load, world)
        in_file = "optimizer" in load.held
        counted = counts_on(load.read_at.file, load.counts) if before is None and not in_file else None
        if not (before is not None or in_file or counted) or not _resumes.means_to_resume(load, world):
            continue
        name = world.module_name(load.event.ident)
        if ("optimizer", optimizer.ident) not in state.restored:
            if not _resumes.has_state(optimizer, world):
                continue
            other = _resumes.put_into_another(state, load, optimizer, world)
            if other is not None:
                found.append(_replaced(load, other, optimizer, world))
                continue
            steps = f" after {before.steps} steps" if before is not None else ""
            if counted is not None:
                steps = f" at {counted[0]} {load.counts[counted[0]]} (line {counted[1]} counts on from there)"
            lost = "the file holds it, and nothing loads it" if in_file else "the file does not hold it"
            found.append(
                _finding(
                    state,
                    load,
                    world,
                    f"`{name}` goes on from a file{steps}, but its {optimizer.short_cls} begins anew: {lost}.  Moments "
                    f"and step count start from zero, and the first updates are those of a new run.",
                    "save optimizer.state_dict() beside the model, and optimizer.load_state_dict(...) after the load",
                    optimizer.short_cls,
                )
            )
            continue
        found += [_left(load, count, number, world) for count, number in _resumes.left_in_file(load)][:1]
        if "scheduler" not in load.held:
            for scheduler in _resumes.schedulers_begun(state, load, optimizer, world):
                if _resumes.scheduler_twin(scheduler, load, world) is not None:
                    found.append(
                        _finding(
                            state,
                            load,
                            world,
                            f"`{name}` and its optimizer go on from a file, but {scheduler.made.cls} begins anew: the "
                            f"file does not hold its state, and the learning rate starts over.",
                            "save scheduler.state_dict() beside the model, and load it after the optimizer's",
                            scheduler.made.cls,
                            scheduler.made.site,
                        )
                    )
    for load in state.loads.values():
        if _resumes.means_to_resume(load, world):
            found += [_average(load, link, world) for link in _resumes.averages_begun(state, load, world)]
            averaged = _resumes.from_average(state, load, world)
            found += [_averaged(state, load, averaged, world)] if averaged is not None else []
            behind = _resumes.left_behind(state, load, world) if not found else []
            found += [_one_of_several(state, load, one, before, world) for one, before in behind[:1]]
    return found + [_counted(*one, world) for one in _resumes.counted_anew(state)]


def _averaged(state: Resumes, load: Load, link: CopyLink, world: World) -> Finding:
    name, average = world.module_name(load.event.ident), world.module_name(link.first.target)
    return _finding(
        state,
        load,
        world,
        f"`{name}` goes on from the weights of `{average}`, the average that line {link.first.site.line} updates, with "
        "the optimizer's state of the network itself: the file holds the average alone, and the network that was "
        "trained is lost.",
        f"save the state_dict() of both, and load each into its own: the trained network's into {name}",
        name,
        link.first.site,
    )


def _one_of_several(
    state: Resumes, load: Load, optimizer: OptimizerInfo, before: OptimizerInfo, world: World
) -> Finding:
    name, own = world.module_name(load.event.ident), world.names(sorted(optimizer.tensors), 2)
    return _finding(
        state,
        load,
        world,
        f"`{name}` goes on from a file after {before.steps} steps with the state of other optimizers, but the "
        f"{optimizer.short_cls} of line {optimizer.site.line} ({own}) begins anew: its moments and step count start "
        "from zero.",
        "save and load the state_dict() of this optimizer, and of its scheduler, beside the others'",
        optimizer.short_cls,
        optimizer.site,
    )


def _left(load: Load, count: str, number: int, world: World) -> Finding:
    name = world.module_name(load.event.ident)
    return Finding(
        "C1",
        "error",
        load.event.site,
        f"`{name}` and its optimizer go on from a file, which holds {count} {number}, too, and nothing reads it there: "
        f"what the program computes with `{count}` begins anew.",
        f"restore it beside the others: ... = checkpoint[{count!r}]",
        related=distinct(load.event.site, (load.read_at,)),
        evidence={"file_holds": sorted(load.held), "count": count, "number": number},
        confidence="likely",
        subject=name,
        iteration=load.event.iteration,
    )


def _counted(load: Load, count: str, written: FileTouched, site: Site, world: World) -> Finding:
    name, before, after = world.module_name(load.event.ident), load.counts[count], dict(written.counts)[count]
    loops = [Site(loop.file, loop.line, "") for loop in loops_around(written.site)[:2]]
    return Finding(
        "C1",
        "error",
        site,
        f"`{name}` and its optimizer go on from {count} {before}, which is read here, but the next file (line "
        f"{written.site.line}) says {count} {after}"
        f"{f' after {load.went} more' if after >= before else ''}: training counts from the start again, and so does "
        "what follows the count (learning rate, warm-up).",
        f"begin the loop at the {count} that was restored: range(start, total)",
        related=distinct(site, (*loops, load.event.site, written.site)),
        evidence={"count": count, "loaded": before, "written": after},
        confidence="likely",
        subject=name,
        iteration=load.event.iteration,
    )


def _average(load: Load, link: CopyLink, world: World) -> Finding:
    name, source = world.module_name(link.first.target), world.module_name(load.event.ident)
    return Finding(
        "C1",
        "error",
        load.event.site,
        f"`{source}` goes on from a file, but `{name}`, its average (line {link.first.site.line}), begins from the "
        "weights that it was made with before the load: the file's network is mixed into a fresh one.",
        "save and load the average's state_dict() too, or make the average after the load",
        related=distinct(load.event.site, (load.read_at, world.module(link.first.target).site, link.first.site)),
        evidence={"file_holds": sorted(load.held), "updates_since": link.count},
        confidence="likely",
        subject=name,
        iteration=load.event.iteration,
    )


def _replaced(load: Load, other: OptimizerInfo, optimizer: OptimizerInfo, world: World) -> Finding:
    name = world.module_name(load.event.ident)
    return Finding(
        "C1",
        "error",
        optimizer.site,
        f"the state in the file is loaded into the {other.short_cls} of line {other.site.line}, and this one then "
        f"takes its place: `{name}` goes on with moments and a step count that start from zero.",
        "make the optimizer first, and load its state into the one that steps",
        related=distinct(optimizer.site, (*optimizer.site.above(1), other.site, load.event.site, load.read_at)),
        evidence={"file_holds": sorted(load.held), "restored_and_left": other.short_cls},
        confidence="likely",
        subject=optimizer.short_cls,
        iteration=load.event.iteration,
    )


def _finding(
    state: Resumes, load: Load, world: World, message: str, fix: str, subject: str, made: Site = NOWHERE
) -> Finding:
    saved = next((s.site for s in reversed(state.saved) if s.seq < load.event.seq and "module" in s.what), NOWHERE)
    return Finding(
        "C1",
        "error",
        load.event.site,
        message,
        fix,
        related=distinct(load.event.site, (saved, load.read_at, made, *_asked_first(load.event.site))),
        evidence={"file_holds": sorted(load.held)},
        confidence="likely",
        subject=subject,
        iteration=load.event.iteration,
    )


def _asked_first(site: Site) -> list[Site]:
    """Lines of the function that loads on which it asks whether the file holds something: `if name in checkpoint:`."""
    function = enclosing_function(site.file, site.line)
    nodes = walk(function) if function is not None else ()
    tests = [n.test for n in nodes if isinstance(n, ast.If)]
    asked = [t for t in tests if any(isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.In) for n in walk(t))]
    return [Site(site.file, test.lineno, site.function) for test in asked[:3]]


def not_checked(state: State, world: World) -> str | None:
    return None if state.resumes.loads else "no module was filled from a file"
