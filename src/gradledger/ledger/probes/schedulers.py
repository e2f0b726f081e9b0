"""Learning-rate schedulers: made over which optimizer with which lengths, and each step that the program makes."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradledger.core.events import SchedulerMade, SchedulerStep
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._patch import Nest, Undo, observe, together
from gradledger.ledger._session import Session

# Numbers on a scheduler that say where it stands, not how long it runs.
_POSITION = frozenset(
    {"last_epoch", "_step_count", "T_cur", "num_bad_epochs", "cooldown_counter", "best", "mode_worse", "verbose"}
)
MANY = 24  # lengths that are told of one scheduler


class _Schedulers:
    """Calls so far of each scheduler, and steps so far of each optimizer."""

    def __init__(self) -> None:
        self.calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.steps: dict[int, int] = {}  # by number of the optimizer


def horizon(scheduler: Any) -> tuple[tuple[str, float], ...]:
    """The lengths that a scheduler was given, by name: `T_max`, `step_size`, `milestones` (the last), ...

    Numbers that a function of LambdaLR uses are named `lambda.NAME`, those of the last scheduler in a sequence
    `inner.NAME`.
    """
    found: dict[str, float] = {}
    for name, value in scheduler.__dict__.items():
        if name in _POSITION:
            continue
        if _is_number(value):
            found[name] = float(value)
        elif name.strip("_") == "milestones":
            points = [p for p in (value.keys() if isinstance(value, Counter) else value) if _is_number(p)]
            if points:
                found["milestones"] = float(max(points))
        elif name == "lr_lambdas":
            for function in value:
                found |= {f"lambda.{key}": number for key, number in _numbers_used(function).items()}
        elif name.strip("_") == "schedulers" and isinstance(value, (list, tuple)) and value:
            found |= {f"inner.{key}": number for key, number in horizon(value[-1])}
    return tuple(list(found.items())[:MANY])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _numbers_used(function: Any) -> dict[str, float]:
    """Plain numbers that a schedule function closes over, by name: what its author calls total, warmup, ..."""
    found: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        found |= function.keywords
        function = function.func
    code = getattr(function, "__code__", None)
    if code is not None:
        cells = getattr(function, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars, cells, strict=False):
            try:
                found.setdefault(name, cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        names = getattr(function, "__globals__", {})
        found = {name: names[name] for name in code.co_names if name in names} | found
    return {name: float(value) for name, value in found.items() if _is_number(value)}


def _rates(optimizer: Any) -> tuple[float, ...]:
    rates = [group.get("lr", 0.0) for group in optimizer.param_groups]
    return tuple(float(r.detach()) if isinstance(r, torch.Tensor) else float(r) for r in rates)


def install(session: Session) -> Undo:
    """Watch every scheduler of torch and all that derive from them; inner schedulers are not stepped by the program."""
    recorder = session.recorder
    state = recorder.part(_Schedulers)
    nest = Nest()

    def tell_made(scheduler: Any, site: Site) -> None:
        optimizer = scheduler.optimizer
        recorder.emit(
            SchedulerMade,
            site,
            scheduler=recorder.objects.number(scheduler),
            optimizer=session.know_optimizer(optimizer, NOWHERE),
            cls=type(scheduler).__name__,
            horizon=horizon(scheduler),
            lrs=_rates(optimizer),
        )

    def made(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scheduler, site = args[0], _site.built_at(args[0])
        if recorder.objects.find(scheduler) is None:
            # a derived class may set its lengths after the base class is done: told right before the next event
            number = recorder.objects.number(scheduler)
            recorder.defer(f"scheduler {number}", lambda: tell_made(scheduler, site))

    def stepped(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scheduler = args[0]
        optimizer = scheduler.optimizer
        if recorder.objects.find(scheduler) is None:  # made before the watch
            tell_made(scheduler, _site.here(1))
        index = state.calls[scheduler] = state.calls.get(scheduler, -1) + 1
        number = session.know_optimizer(optimizer, NOWHERE)
        values = {
            "scheduler": recorder.objects.number(scheduler),
            "optimizer": number,
            "index": index,
            "optimizer_steps": state.steps.get(number, 0),
            "lrs": _rates(optimizer),
            "metric": isinstance(scheduler, lr_scheduler.ReduceLROnPlateau),
        }
        recorder.note(SchedulerStep, _site.here(1), (values["scheduler"], values["optimizer"]), values)

    def optimizer_stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        number = recorder.optimizers.find(optimizer)
        if number is None:
            with recorder.guard("scheduler"):
                number = session.know_optimizer(optimizer, NOWHERE)
        if number is not None:  # every step of every program comes here: no guard around a look into a table
            state.steps[number] = state.steps.get(number, 0) + 1

    classes = [c for c in vars(lr_scheduler).values() if isinstance(c, type) and issubclass(c, LRScheduler)]
    builders = [c for c in classes if c in (LRScheduler, *_BUILT_APART)]
    steppers = [c for c in classes if "step" in vars(c)]
    return together(
        register_optimizer_step_post_hook(optimizer_stepped).remove,
        *(observe(recorder, c, "__init__", after=made, nest=nest) for c in dict.fromkeys(builders)),
        *(observe(recorder, c, "step", after=stepped, nest=nest) for c in dict.fromkeys(steppers)),
    )


# Their `__init__` does not call that of the base class (in some versions of torch).
_BUILT_APART = (lr_scheduler.ReduceLROnPlateau, lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler)
