"""# Evaluated in train mode

## What it is
A model with dropout or running statistics is evaluated while it is in train mode: `.eval()` was not called.  Or it is
in eval mode, but a function in it draws at random whatever the mode: `F.dropout(x, p)` without `training=`,
`scaled_dot_product_attention(..., dropout_p=p)`.

## Why it matters
The figures are those of a network with units switched off, and differ from call to call.  BatchNorm uses the statistics
of the validation batch and mixes them into the running ones, so validation data leaks into the model.

## How it is found
A trained module that has mode-dependent layers in train mode is called without recording a graph (or with one that no
backward walks), its values reach no loss, and the line evaluates: by the name of its function, of the data it walks
over or of what it computes.  A function that acts as well, such as a policy, is judged by each way into it, and the
line is the one where the evaluation enters.  A function that asks for eval mode, makes a `map` or a generator of calls
and asks for train mode again evaluates, too: the calls run when its caller walks them.  `model.training = False` is
no eval mode: the layers do not hear of it.  A switch to train mode above the call is meant (dropout kept on purpose),
but for one in a function that trains and evaluates, by phase, under `torch.set_grad_enabled(...)`.  For random
functions: their call inside a module that is in eval mode.

## Near misses
- Dropout kept on purpose (MC dropout): `.train()` right there, or one input passed many times.
- Models without layers that depend on the mode; layers that are in eval mode themselves.
- Acting with dropout: exploration may be meant.
- Targets, fakes and pseudo-labels computed under no_grad, statistics recalibrated in train mode.
- `F.dropout(x, p, training=True)`: written on purpose.

## Fix
`model.eval()` before the evaluation and `model.train()` after it; `dropout_p=p if self.training else 0.0`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._evaluation import evaluates, flags_set_alone, repeats_one_input, switched_by_phase
from gradledger.audit._lazily import promised
from gradledger.audit._loops import argument, calls_at
from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Comparison, Event, ModeSet, ModuleCalled, RandomInEval
from gradledger.core.site import Frame, Site

RULE = Rule(
    "E1",
    "evaluated-in-train-mode",
    "mode",
    "A model is evaluated with dropout active, or with BatchNorm taking in the validation batches.",
)
LISTENS: tuple[type[Event], ...] = (ModuleCalled, ModeSet, Backward, Comparison, RandomInEval)
NEEDS_DETAIL = True
LINES_KEPT = 400
CALLS_KEPT = 4000


_Path = tuple[tuple[str, int], ...]  # a line and the lines that called it, innermost first


def _path(site: Site) -> _Path:
    return (site.key(), *((c.file, c.line) for c in site.callers))


@dataclass(slots=True)
class _Line:
    """Calls of one module by one path in train mode, those without a graph and the others apart.  A function that acts
    and evaluates is called by several."""

    first: ModuleCalled
    quiet: int = 0
    walked: int = 0
    on_purpose: int = 0


@dataclass(slots=True)
class State:
    """`lines`: by module and path; `calls`: the path of each call that may yet be walked; `switched`: where and after
    how many reverse passes a mode was last set to train."""

    lines: dict[tuple[int, _Path], _Line] = field(default_factory=dict)
    calls: dict[int, tuple[int, _Path]] = field(default_factory=dict)
    randoms: dict[tuple[str, int], list[RandomInEval]] = field(default_factory=dict)
    switched: list[tuple[ModeSet, int]] = field(default_factory=list)
    backwards: int = 0
    eval_calls: dict[int, ModuleCalled] = field(default_factory=dict)
    asked: dict[int, ModeSet] = field(default_factory=dict)  # modules that were set to eval and not called since
    empty: dict[int, tuple[ModeSet, ModeSet]] = field(default_factory=dict)  # ... until they were set back to train


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, ModuleCalled):
        state.asked.pop(event.module, None)
    elif isinstance(event, ModeSet) and len(state.asked) < LINES_KEPT:
        if not event.training:
            state.asked[event.module] = event
        elif (asked := state.asked.pop(event.module, None)) is not None:
            state.empty.setdefault(event.module, (asked, event))
    match event:
        case ModuleCalled(training=True) if event.active:
            _called(state, event)
        case ModuleCalled(training=False, grad_on=False) if event.active and _by_hand(event):
            _called(state, event)
        case ModuleCalled(training=False, grad_on=False):
            if len(state.eval_calls) < LINES_KEPT:
                state.eval_calls.setdefault(event.module, event)
        case ModeSet(training=True):
            state.switched = [*state.switched[-15:], (event, state.backwards)]
        case Backward():
            state.backwards += 1
            _used(state, [c.call for c in event.calls])
        case Comparison():
            _used(state, [c.call for side in (event.left, event.right) for c in side.calls])
        case RandomInEval():
            spot = state.randoms.setdefault(event.site.key(), [])
            if len(spot) < 2 and len(state.randoms) <= LINES_KEPT:
                spot.append(event)


def _by_hand(call: ModuleCalled) -> list[Site]:
    """Lines that gave a module's own flag a value (`model.training = False`), which its layers do not hear of, where
    that is how the call came to be made with the flag down and layers active."""
    if call.training or not call.active:
        return []
    files = dict.fromkeys((call.site.file, *(c.file for c in call.site.callers)))
    return [Site(file, line, "") for file in files if file for line in flags_set_alone(file)]


def _own_switch(module: int, call: ModuleCalled, world: World) -> list[Site]:
    """Lines of the class's own `train` or `eval` that call that of `nn.Module`: it may well forget the mode."""
    cls = world.module(module).short_cls
    files = dict.fromkeys((world.module(module).site.file, call.site.file, *(c.file for c in call.site.callers)))
    methods = [
        (file, method)
        for file in files
        if file and (tree := parsed(file)) is not None
        for node in walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == cls
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name in ("train", "eval")
    ]
    return [
        Site(file, node.lineno, method.name)
        for file, method in methods
        for node in walk(method)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("train", "eval")
        if isinstance(node.func.value, ast.Call) and last_name(node.func.value.func) == "super"
    ]


def _called(state: State, event: ModuleCalled) -> None:
    key = (event.module, _path(event.site))
    line = state.lines.get(key)
    if line is None:
        if len(state.lines) >= LINES_KEPT:
            return
        line = state.lines[key] = _Line(event)
    if not event.grad_on and line.first.grad_on:
        line.first = event
    line.quiet += 1
    line.on_purpose += any(n == state.backwards and _same_function(s.site, event.site) for s, n in state.switched)
    if len(state.calls) >= CALLS_KEPT:
        del state.calls[next(iter(state.calls))]
    state.calls[event.call] = key


def _used(state: State, calls: list[int]) -> None:
    """The values of these calls went into a loss that was walked."""
    for call in calls:
        key = state.calls.pop(call, None)
        if key is not None:
            state.lines[key].quiet -= 1
            state.lines[key].walked += 1


def _same_function(one: Site, other: Site) -> bool:
    """Whether a mode switch stands above the call in the function that makes it, or in one that called that.  One that
    stands below it is of the call before."""
    places = ((other.function, other.line), *((c.function, c.line) for c in other.callers))
    return one.file == other.file and any(f == one.function and one.line <= line for f, line in places)


def finish(state: State, world: World) -> list[Finding]:
    return [*_evaluated(state, world), *_random(state, world)]


def _evaluated(state: State, world: World) -> list[Finding]:
    found = []
    for (module, _), line in state.lines.items():
        first = line.first
        # of a line that is walked only calls without a graph can be an evaluation
        if not line.quiet or (first.grad_on and line.walked):
            continue
        # a switch above the call is meant, unless it is that of training, which goes the same way
        by_phase = bool(line.walked) and switched_by_phase(first.site)
        if line.on_purpose and not by_phase:
            continue
        # an average of a trained network is evaluated in its place; the same call may give targets, too
        if not world.trained_module(module) and (line.walked or not _follows(module, world)):
            continue
        lazy = _lazy(state, module, first)
        sign = "its calls are put off by line " + str(lazy.line) if lazy is not None else evaluates(first.site)
        if not sign and by_phase:
            sign = "without a graph, by `torch.set_grad_enabled`, where training has one"
        if not sign or repeats_one_input(first.site):
            continue
        name = world.module_name(module)
        kinds = _kinds(module, world)
        site = lazy or _entered(state, module, first.site)
        switches = [one.site for one in state.empty[module]] if lazy is not None else []
        by = f" by the call of line {first.site.line}" if site is not first.site else ""
        found.append(
            Finding(
                "E1",
                "error",
                site,
                f"`{name}` is evaluated here{by} ({sign}) in train mode: {first.active} of its layers that depend on "
                f"the mode are active{kinds}; seen {times(line.quiet, 'time')}.",
                f"{name}.eval()  before the evaluation, {name}.train()  after it",
                related=distinct(
                    site,
                    (first.site, *switches, *_by_hand(first), *_own_switch(module, first, world), *first.site.above(2)),
                ),
                evidence={
                    "active_layers": first.active,
                    "mode_dependent_layers": first.moody,
                    "grad_on": first.grad_on,
                    "sign": sign,
                    "seen": line.quiet,
                },
                count=line.quiet,
                confidence="likely",
                subject=name,
                iteration=first.iteration,
            )
        )
    return found


def _lazy(state: State, module: int, call: ModuleCalled) -> Site | None:
    """The line between `eval()` and `train()` that only promises the calls: `outputs = map(net, batches)`."""
    if module not in state.empty or call.grad_on:
        return None
    asked, back = state.empty[module]
    line = promised(asked.site, back.site, call.site)
    return Site(asked.site.file, line, asked.site.function) if line else None


def _follows(module: int, world: World) -> bool:
    """Whether a network is a copy of one that is trained, or follows it as an average of its weights does."""
    links = world.copy_links(module, related=False)
    return any(link.first.target == module and world.trained_module(link.first.source) for link in links)


def _entered(state: State, module: int, site: Site) -> Site:
    """Where the evaluation begins: the line itself, or, of a line that also acts or trains, the innermost of its
    callers that only the evaluation has."""
    others = {
        place
        for (other, path), line in state.lines.items()
        if other == module and path[0] == site.key() and not evaluates(line.first.site)
        for place in path
    }
    if site.key() not in others:
        return site
    return next((_as_site(c) for c in site.callers if (c.file, c.line) not in others), site)


def _as_site(frame: Frame) -> Site:
    return Site(frame.file, frame.line, frame.function)


def _kinds(module: int, world: World) -> str:
    names = sorted(
        {
            info.short_cls
            for m in world.descendants(module)
            if (info := world.module(m)).builtin and ("Dropout" in info.cls or "Norm" in info.cls)
            if info.short_cls not in ("LayerNorm", "GroupNorm", "RMSNorm")
        }
    )
    return f" ({', '.join(names)})" if names else ""


def _random(state: State, world: World) -> list[Finding]:
    found = []
    for events in state.randoms.values():
        event = events[0]
        if not world.trained_module(event.module) or (event.how == "function" and _told_to(event)):
            continue
        fix, why = "pass training=self.training", "does not reach a function"
        if event.how == "module":
            fix = "make the layer in __init__, as an attribute of the module"
            why = "does not reach this layer, which is no registered part of it"
        if event.op == "scaled_dot_product_attention":
            fix = "dropout_p=self.dropout if self.training else 0.0"
        found.append(
            Finding(
                "E1",
                "error",
                event.site,
                f"`{event.op}` with p = {event.p:g} draws at random although `{world.module_name(event.module)}` is in "
                f"eval mode: `.eval()` {why}, so every evaluation is of another random network.",
                fix,
                related=distinct(event.site, (_as_site(c) for c in event.site.callers[:2])),
                evidence={"op": event.op, "p": event.p, "seen": len(events)},
                count=len(events),
                subject=world.module_name(event.module),
                iteration=event.iteration,
            )
        )
    return found


def _told_to(event: RandomInEval) -> bool:
    """Whether the line says itself that it draws: `F.dropout(x, 0.1, training=True)`."""
    for call in calls_at(*event.site.key()):
        if last_name(call.func) == event.op and event.op != "scaled_dot_product_attention":
            return argument(call, "training", 2) is not None
    return False


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    if not world.optimizers:
        return "no optimizer was built"
    if not state.lines and not state.eval_calls and not state.randoms:
        return "no model with layers that depend on the mode was called"
    return None
