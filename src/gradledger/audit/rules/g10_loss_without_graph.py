"""# The loss carries no graph

## What it is
The tensor on which `backward()` is called is connected to no trained parameter: it was rebuilt from Python numbers,
computed from a detached prediction, or computed while grad mode was off.

## Why it matters
With `requires_grad=True` on the rebuilt loss, or with `loss.requires_grad_()`, nothing raises: the loss is printed, the
optimizer steps, and no parameter ever moves.  Without the flag torch raises "element 0 of tensors does not require
grad", at a line that is rarely the one to change.

## How it is found
Silent form: a reverse pass wrote into no tensor that an optimizer holds, its root was computed from a watched module
whose values left the graph on the way, and the step that followed found no gradient.  Loud form: the program ended
with torch's own error; the report names the line where grad mode was switched off or where the values left the graph.
Or no reverse pass runs, or none any more: the model is called in train mode with grad mode off, and step after step
finds nothing (a guard around the backward, or an `except`, lets it pass).

## Near misses
- Evaluation loops: no reverse pass.
- A gradient that is wanted for an input only (saliency, adversarial examples): no step consumes it.
- A model that was built anew after its optimizer: the graph is whole, the optimizer is the wrong one (GL-M05).

## Fix
Keep tensors until the backward: `losses.append(loss)`, then `torch.stack(losses).mean().backward()`; take `no_grad` off
the training step and keep it on the evaluation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradledger.audit import _orphans
from gradledger.audit._code import parsed, walk
from gradledger.audit._phrases import distinct, number, times, way_out
from gradledger.audit._source import source_line
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Cut, Event, GradFlagSet, ModuleCalled, Step
from gradledger.core.site import Frame, Site

RULE = Rule(
    "G10",
    "loss-without-graph",
    "gradient lifecycle",
    "The loss is not connected to any trained parameter, so backward changes nothing (or raises).",
)
LISTENS: tuple[type[Event], ...] = (Backward, Step, GradFlagSet, ModuleCalled)

_SWITCH = re.compile(r"\b(no_grad|inference_mode)\b|set_grad_enabled\(\s*(mode\s*=\s*)?False")
# Codes of parameters that a loss does reach, and no optimizer holds: the optimizer is what is to be changed.
_BETTER = frozenset({"M3", "M4", "M5", "M7"})
KEPT = 256
FEW = 5  # steps of a run without any reverse pass
_NUMBERS = frozenset({"item", "float", "int", "tolist", "numpy"})
_FIXES = {
    "item": "keep the tensor: drop `.item()` here, and combine the losses with torch.stack(losses).mean()",
    "float": "keep the tensor: drop `float(...)` here, and combine the losses with torch.stack(losses).mean()",
    "tolist": "keep the tensors: drop `.tolist()` here, and combine the losses with torch.stack(losses).mean()",
    "numpy": "compute this with torch operations on the tensor itself instead of on its `.numpy()` copy",
    "detach": "drop `.detach()` here; detach only the copy that is logged",
    "data": "drop `.data` here; use the tensor itself",
}


@dataclass(slots=True)
class _Line:
    """Reverse passes of one line: `reached` some optimizer's tensor, or `lost`; `steps` that then found no gradient;
    `last`: those lost since one reached anything."""

    first: Backward | None = None
    reached: int = 0
    lost: int = 0
    last: int = 0
    steps: int = 0
    empty: int = 0
    values: list[float] = field(default_factory=list)
    filled: set[int] = field(default_factory=set)  # tensors that the lost passes reached all the same


@dataclass(slots=True)
class State:
    """`passes`: reverse passes that ran to their end.  Since the latest of them: `steps` of each optimizer, none of
    which found a gradient; `quiet`: by module, the first call in train mode with grad mode off."""

    lines: dict[tuple[str, int], _Line] = field(default_factory=dict)
    waiting: set[tuple[str, int]] = field(default_factory=set)
    raised: Backward | None = None
    frozen: GradFlagSet | None = None
    passes: int = 0
    steps: dict[int, list[Step]] = field(default_factory=dict)
    quiet: dict[int, ModuleCalled] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, ModuleCalled):
        if event.training and not event.grad_on and (event.module in state.quiet or len(state.quiet) < KEPT):
            state.quiet.setdefault(event.module, event)
        return
    if isinstance(event, Step):
        empty = all(life.grad in ("none", "zero") and not life.moved for life in event.lives)
        seen = state.steps.setdefault(event.optimizer, [])
        if not empty or event.closure:
            seen.clear()
        elif len(seen) < FEW:
            seen.append(event)
        if state.waiting:
            alive = [life for life in event.lives if not life.frozen]
            if all(life.grad in ("none", "zero") for life in alive):
                # (where all of it is frozen the root is one that was given its flag by hand)
                for key in state.waiting if alive else [k for k in state.waiting if _by_hand(state.lines[k])]:
                    state.lines[key].steps += 1
                    state.lines[key].empty += sum(len(life.tensors) for life in alive)
            state.waiting.clear()
        return
    if isinstance(event, GradFlagSet):
        if not event.value and event.site.file:
            state.frozen = event
        return
    if not isinstance(event, Backward) or event.method != "backward":
        return
    if event.raised:
        if "does not require grad" in event.raised:
            state.raised = event
        return
    state.passes += 1
    state.steps.clear()
    state.quiet.clear()
    line = state.lines.setdefault(event.site.key(), _Line())
    if any(world.holders(tensor) for tensor in event.leaves):
        line.reached += 1
        line.last = 0
    elif _lost(event, world):
        line.lost += 1
        line.last += 1
        line.first = line.first or event
        line.filled.update(t for t in event.leaves[:KEPT] if len(line.filled) < KEPT)
        if event.value is not None and len(line.values) < 8:
            line.values.append(event.value)
        state.waiting.add(event.site.key())


def _by_hand(line: _Line) -> bool:
    """Whether a root without a graph was given `requires_grad` so that it could be walked."""
    return line.first is not None and line.first.root_is_leaf


def _lost(event: Backward, world: World) -> bool:
    """Whether trained values went into this root and no gradient can come out.

    A value that left as a number is known to be in the root only when the root was made of leaves no module saw."""
    if event.root_is_leaf:
        return not any(world.tensor(tensor).role == "parameter" for tensor in event.leaves)
    seen = [world.tensor(tensor).leaf for tensor in event.leaves]
    rebuilt = bool(seen) and all(leaf is not None and not leaf.fed_to for leaf in seen)
    return any(rebuilt or cut.how not in _NUMBERS for cut in event.cuts)


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for line in state.lines.values():
        event = line.first
        ended = _by_hand(line) and line.last >= FEW
        if event is None or (line.reached >= line.lost and not ended):
            continue
        if not line.steps and not (event.cuts and event.root_is_leaf):
            continue
        if all(cut.how == "autograd_grad" for cut in event.cuts) and event.cuts:
            continue  # GL-G14 says it better
        if any(_orphans.classify(tensor, world) in _BETTER for tensor in line.filled):
            continue  # the graph is whole, and ends in parameters that the optimizer does not hold
        findings.append(_given_a_flag(line, event, world) or _silent(line, event))
    loud = _loud(state, world)
    return [*findings, *_never_walked(state, world), *([loud] if loud is not None else [])]


def _never_walked(state: State, world: World) -> Iterator[Finding]:
    """Steps of a run in which nothing was walked, or nothing any more, for the model is called with grad mode off."""
    for ident, seen in state.steps.items():
        optimizer = world.optimizer(ident)
        if len(seen) < FEW or any(life.frozen for life in seen[0].lives):
            continue
        for module, call in state.quiet.items():
            if not optimizer.tensors.keys().isdisjoint(world.tensors_of(module)):
                left_off = [] if state.raised is not None else _left_off(call.site.file)
                switch = _switch_above(call.site) or next(iter(left_off), None)
                step, empty = seen[0].site, optimizer.steps - seen[0].index
                ran = "no reverse pass ran after that" if state.passes else "no reverse pass ever ran"
                yield Finding(
                    "G10",
                    "error",
                    switch or call.site,
                    f"`{world.module_name(module)}` runs in train mode with grad mode off (line {call.site.line}): "
                    f"{ran}, and {times(empty, 'step')} (line {step.line}) found no gradient.",
                    "compute the loss of a training step with grad mode on (`with torch.no_grad():` around the "
                    "evaluation alone), and call loss.backward() before the step",
                    related=distinct(switch or call.site, (*left_off, call.site, step)),
                    evidence={"reverse_passes": state.passes, "steps_without_gradient": empty},
                    count=empty,
                    iteration=call.iteration,
                )
                break


def _left_off(file: str) -> list[Site]:
    """Lines that switch grad mode off for all that comes: a call by itself, no `with` and no decorator."""
    tree = parsed(file)
    alone = [n for n in walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)] if tree else []
    return [Site(file, n.lineno, "") for n in alone if _SWITCH.search(source_line(file, n.lineno))]


def _given_a_flag(line: _Line, event: Backward, world: World) -> Finding | None:
    """A root without a graph that was given `requires_grad` by hand, where all that its steps hold is frozen."""
    flags = [world.tensor(t).flag_site for t in event.leaves if event.root_is_leaf]
    stepped = [o for o in world.optimizers.values() if o.last_step is not None and o.last_step.seq > event.seq]
    frozen = {t for o in stepped for t in o.tensors}
    if not flags or not flags[0].file or not frozen or any(world.tensor(t).requires_grad for t in frozen):
        return None
    off = world.tensor(min(frozen)).flag_site
    where = f", which line {off.line} froze" if off.file else ""
    return Finding(
        "G10",
        "error",
        flags[0],
        f"The loss of line {event.site.line} has no graph and was given requires_grad here so that it can be walked: "
        f"nothing is reached by it, and {times(line.last, 'step')} moved none of {world.names(sorted(frozen), 2)}"
        f"{where}.",
        "leave requires_grad on for the parameters that are to be trained, and drop this line: it only hides the error",
        related=distinct(flags[0], (event.site, off, *off.above(2), event.root_site)),
        evidence={"reverse_passes": line.last, "steps_without_gradient": line.steps, "frozen": len(frozen)},
        count=line.last,
        iteration=event.iteration,
    )


def _silent(line: _Line, event: Backward) -> Finding:
    cut = event.cuts[0] if event.cuts else None
    root = event.root_site if event.root_site.file else event.site
    site = cut.site if cut is not None and cut.site.file else root
    left = f"its values left the graph by {way_out(cut)} here" if cut is not None else "it is a leaf made for itself"
    after = f"; {times(line.steps, 'step')} found no gradient in any parameter" if line.steps else ""
    return Finding(
        "G10",
        "error",
        site,
        f"The loss of line {event.site.line} reaches no trained parameter: {left}{after}.",
        _fix(cut),
        related=distinct(site, (root, event.site, *(c.site for c in event.cuts[1:]))),
        evidence={
            "reverse_passes": line.lost,
            "steps_without_gradient": line.steps,
            "root_is_leaf": event.root_is_leaf,
            "left_by": [c.how for c in event.cuts],
            "loss_values": [number(v) for v in line.values],
        },
        count=line.lost,
        iteration=event.iteration,
    )


def _loud(state: State, world: World) -> Finding | None:
    ended = world.ended
    if ended is None or "does not require grad" not in ended.message:
        return None
    event = state.raised
    if event is None:
        if not ended.frames:
            return None
        frame = ended.frames[-1]
        event = Backward(backward=0, method="backward", leaves=(), site=Site(frame.file, frame.line, frame.function))
    if event.cuts and all(cut.how == "autograd_grad" for cut in event.cuts):
        return None  # GL-G14 says it better
    off = event.no_grad_site
    switch = _switch_above(off) if off.file else None
    cut: Cut | None = event.cuts[0] if event.cuts else None
    evidence = {"error": ended.message.splitlines()[0] if ended.message else "", "left_by": [c.how for c in event.cuts]}
    if off.file and (cut is None or cut.how == "no_grad"):
        site = switch or off
        text = world.source(site)
        fix = (
            f"take `{text}` off the training step; keep it on evaluation only"
            if switch is not None
            else "switch grad mode on again before training: use `with torch.no_grad():` around evaluation only"
        )
        message = (
            f"Grad mode is off while the loss is computed (line {off.line}), so `backward()` at line {event.site.line} "
            "finds no graph and raises."
        )
    elif (cut is None or cut.how not in _FIXES) and state.frozen is not None and _all_frozen(world):
        site = state.frozen.site
        fix = "leave requires_grad on for the parameters that are to be trained"
        message = (
            f"Every trained parameter is frozen here, so the loss carries no graph and `backward()` at line "
            f"{event.site.line} raises."
        )
    else:
        root = event.root_site if event.root_site.file else event.site
        site = cut.site if cut is not None and cut.site.file else root
        fix = _fix(cut)
        left = f"it left it by {way_out(cut)} here" if cut is not None else "nothing it was made from requires grad"
        message = f"`backward()` at line {event.site.line} raises because the loss carries no graph: {left}."
    return Finding(
        "G10",
        "error",
        site,
        message,
        fix,
        related=distinct(site, (event.site, off, event.root_site, *_definition(off))),
        evidence=evidence,
        iteration=event.iteration,
    )


def _all_frozen(world: World) -> bool:
    held = [world.tensor(t) for info in world.optimizers.values() for t in info.tensors]
    return bool(held) and not any(tensor.requires_grad for tensor in held)


def _fix(cut: Cut | None) -> str:
    known = _FIXES.get(cut.how) if cut is not None else None
    return known or "build the loss from the model's output with torch operations only"


def _definition(off: Site) -> tuple[Site, ...]:
    """First line of the function that ran with grad mode off (its decorator, when it has one)."""
    return (Site(off.file, off.first_line, off.function),) if off.file and off.first_line else ()


def _switch_above(off: Site) -> Site | None:
    """The `with torch.no_grad():` or decorator around `off` or around one of its callers, by indentation."""
    for frame in (Frame(off.file, off.line, off.function), *off.callers):
        line = _enclosing_switch(frame.file, frame.line)
        if line:
            return Site(frame.file, line, frame.function)
    return None


def _enclosing_switch(file: str, line: int) -> int:
    """Line of the `with`, decorator or earlier call that switches grad mode off around `line`; 0 when none is seen."""
    indent = _indent(source_line(file, line))
    below_decorators = False  # the line below is a `def` that encloses `line`, or one of its decorators
    for above in range(line - 1, 0, -1):
        text = source_line(file, above)
        word = text.strip()
        if not word or word.startswith("#"):
            continue
        here = _indent(text)
        if here < indent and not word.startswith((")", "]", "}")):
            if _SWITCH.search(text):
                return above
            indent = here
            below_decorators = word.startswith(("def ", "async def "))
        elif here == indent and below_decorators and word.startswith("@"):
            if _SWITCH.search(text):
                return above
        else:
            below_decorators = False
            if here == indent and "set_grad_enabled" in word and _SWITCH.search(text):
                return above
    return 0


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
