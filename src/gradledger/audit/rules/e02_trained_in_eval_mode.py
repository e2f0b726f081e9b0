"""# Training resumed in eval mode

## What it is
`model.eval()` was called for an evaluation, and training went on without `model.train()`.

## Why it matters
From then on dropout is off and BatchNorm normalises with statistics that no longer move: the network overfits, and what
was regularised in the first epoch is not in the others.

## How it is found
A trained module with layers that depend on the mode is called in eval mode in several iterations whose backward and
step follow, although it was trained in train mode before, or an evaluation stands between the switch and the training.
Or it was never trained in train mode: a function that has long returned (`from_pretrained`, a summary of shapes)
switched all of it, or it came in eval mode out of a file or a copy.  Or the flag of the whole is set and those of all
its layers that depend on it are not, which they were before an evaluation, or which the function that evaluates has
switched off.

## Near misses
- A part, or its BatchNorm, kept in eval mode on purpose: only some layers are, or some parameters are frozen, or the
  switch stands right before the training with no evaluation in between, or in a function that speaks of freezing.
- Adversarial examples made in eval mode: the same iteration then trains in train mode.
- Models without layers that depend on the mode.

## Fix
`model.train()` as the first line of the epoch loop, and after every evaluation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gradledger.audit._code import lines_calling
from gradledger.audit._evaluation import flags_set
from gradledger.audit._loops import enclosing_function
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event, ModeSet, ModuleCalled
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "E2",
    "trained-in-eval-mode",
    "mode",
    "Training goes on in eval mode after an evaluation: dropout is off and running statistics stand still.",
)
LISTENS: tuple[type[Event], ...] = (ModuleCalled, ModeSet, Backward)
NEEDS_DETAIL = True
MODULES_KEPT = 2000
ENOUGH = 2  # iterations
ENOUGH_WITHOUT_EVALUATION = 5
_ON_PURPOSE = re.compile(r"freez|frozen|fix|norm|bn|lora|adapter|determin", re.IGNORECASE)


@dataclass(slots=True)
class _Module:
    """One called module.  `evaluated`: called without a graph in eval mode since the switch at `switch`; `open`: the
    walked training call in eval mode of the iteration that runs; `iterations`: those that trained in eval mode only."""

    trained: int = 0
    evaluated: bool = False
    switch: Site = NOWHERE
    open: ModuleCalled | None = None
    first: ModuleCalled | None = None
    first_switch: Site = NOWHERE
    first_evaluated: bool = False
    iterations: int = 0
    good: int = -1


@dataclass(slots=True)
class State:
    """By module."""

    modules: dict[int, _Module] = field(default_factory=dict)
    moody: bool = False


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, ModuleCalled):
        state.moody |= event.moody > 0
        if event.moody and not event.grad_on and not (event.training and event.active):
            _evaluated(state, event, world)
    elif isinstance(event, ModeSet):
        if event.changed:
            _switched(state, event, world)
    elif isinstance(event, Backward) and event.method == "backward" and not event.raised:
        for ref in event.calls:
            call = world.call(ref.call) if ref.graph else None
            if call is not None and call.moody:
                _walked(_module(state, ref.module), call, event)


def _evaluated(state: State, event: ModuleCalled, world: World) -> None:
    """A call without a graph in eval mode: of the whole, or of parts that the function which calls has switched."""
    if not event.training:
        _module(state, event.module).evaluated = True
        return
    here = {(frame.file, frame.function) for frame in (event.site, *event.site.above(1))}  # or a comprehension in it
    parts = (state.modules[i].switch for i in world.descendants(event.module) if i in state.modules)
    switch = next((s for s in parts if (s.file, s.function) in here), None)
    if switch is not None and not _ON_PURPOSE.search(switch.function):
        known = _module(state, event.module)
        known.evaluated, known.switch = True, switch


def _module(state: State, ident: int) -> _Module:
    known = state.modules.get(ident)
    if known is None:
        known = _Module()
        if len(state.modules) < MODULES_KEPT:
            state.modules[ident] = known
    return known


def _switched(state: State, event: ModeSet, world: World) -> None:
    for ident in world.descendants(event.module):
        if ident in state.modules or ident == event.module:
            known = _module(state, ident)
            known.switch = NOWHERE if event.training else event.site
            known.evaluated = False


def _walked(known: _Module, call: ModuleCalled, event: Backward) -> None:
    if known.open is not None and known.open.iteration != event.iteration:
        _settle(known)
    if call.active:
        known.trained += 1
        known.good = event.iteration
    elif event.leaves and not call.training:
        born = not known.trained and (not known.switch.file or _left_behind(known.switch, call.site))
        if born or (known.switch.file and known.evaluated):
            known.open = call
    elif event.leaves and known.evaluated and (known.trained or _left_behind(known.switch, call.site)):
        known.open = call  # the flag of the module is set (back), those of its layers are not


def _left_behind(switch: Site, call: Site) -> bool:
    """Whether a switch to eval mode stands in a function that has returned since, and does not speak of freezing."""
    now = {call.function, *(f.function for f in call.callers), "<module>", ""}
    if not switch.file or switch.function in now:
        return False
    return not any(_ON_PURPOSE.search(name) for name in (switch.function, *(f.function for f in switch.callers)))


def _settle(known: _Module) -> None:
    """The iteration of `open` is over: it counts when nothing in it trained in train mode."""
    call, known.open = known.open, None
    if call is None or known.good == call.iteration:
        return
    known.iterations += 1
    if known.first is None:
        known.first, known.first_switch, known.first_evaluated = call, known.switch, known.evaluated


def finish(state: State, world: World) -> list[Finding]:
    found = []
    for ident, known in state.modules.items():
        if known.open is not None and world.iteration > known.open.iteration:
            _settle(known)
        parameters = world.tensors_of(ident)
        if (
            known.first is None
            or known.iterations < (ENOUGH if known.first_evaluated else ENOUGH_WITHOUT_EVALUATION)
            or not world.trained_module(ident)
            or not all(world.tensor(t).requires_grad for t in parameters)
        ):
            continue
        call, name = known.first, world.module_name(ident)
        before = f" after {times(known.trained, 'watched pass')} in train mode" if known.trained else ""
        found.append(
            Finding(
                "E2",
                "error",
                call.site,
                f"`{name}` is trained here in eval mode{before}: {_how(known)}; "
                f"{times(call.moody, 'mode-dependent layer')} without effect in "
                f"{times(known.iterations, 'watched iteration')}.",
                f"{name}.train()  before the training loop of each epoch",
                related=distinct(call.site, (*_switches(known), *(_flags_set(call.site) if call.training else ()))),
                evidence={
                    "mode_dependent_layers": call.moody,
                    "trained_in_train_mode": known.trained,
                    "iterations_seen": known.iterations,
                },
                count=known.iterations,
                subject=name,
                iteration=call.iteration,
            )
        )
    return found


def _switches(known: _Module) -> list[Site]:
    """The line that switched to eval mode, the lines that led to it, and lines of the training function that switch
    back, though not often enough."""
    if known.first is None:
        return []
    inside = enclosing_function(known.first.site.file, known.first.site.line)
    within = (inside.lineno, inside.end_lineno or inside.lineno) if inside is not None else None
    back = lines_calling(known.first.site.file, frozenset({"train"}), within) if within is not None else []
    return [known.first_switch, *known.first_switch.above(3), *(Site(known.first.site.file, n, "") for n in back[:2])]


def _flags_set(site: Site) -> list[Site]:
    """Lines of the file that set the flag of a module by hand."""
    return [Site(site.file, node.lineno, "") for node in flags_set(site.file)]


def _how(known: _Module) -> str:
    if known.first is not None and known.first.training:
        if known.first_switch.file:
            return f"a part of it was switched at line {known.first_switch.line} to be evaluated and not switched back"
        return "the flags of its layers were cleared to evaluate it, and only that of the whole was set again"
    if not known.first_switch.file:
        return "it came so out of a file or a copy and was not switched"
    why = " to be evaluated" if known.first_evaluated else f" in `{known.first_switch.function}`"
    return f"it was switched at line {known.first_switch.line}{why} and not switched back"


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    if not world.optimizers:
        return "no optimizer was built"
    return None if state.moody else "no model with layers that depend on the mode was called"
