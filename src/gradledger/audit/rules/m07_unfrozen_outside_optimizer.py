"""# Unfrozen, but in no optimizer

## What it is
The optimizer was built over the parameters that required grad at that time.  Later `requires_grad` is switched on for
more of them, and nobody adds them to the optimizer.  Or they are chosen for training by name, and the optimizer is
built from parts of the model that do not contain them (a bare class token beside the blocks, a memory before the
head).

## Why it matters
The program says that it fine-tunes these layers.  They receive gradients, cost memory and time, and never move.

## How it is found
Registered parameters whose `requires_grad` went from False to True after the optimizers of their model were built, that
reverse passes fill from then on, and that no optimizer holds.  The same for parameters that one line unfroze, or set
to True while it set others to False, before an optimizer was built that holds others of the model.  Those that nobody
ever chose count where every reverse pass adds to their gradient and nothing clears it.  And those that only
the optimizer of an earlier stage holds, when it never steps again and the one that does was built before they were
unfrozen.

## Near misses
- Frozen parameters that sat in the optimizer from the start.
- `optimizer.add_param_group` or a new optimizer at the time of unfreezing.
- A discriminator that is frozen during the generator's pass: its own optimizer holds it.
- Parts that are left as they are, and cleared with the rest: `model.zero_grad()`.  Targets and copies: GL-G12.
- A line that only ever says True, which chooses nothing.
- Stages that take turns: the first optimizer steps again.

## Fix
`optimizer.add_param_group({"params": backbone.parameters(), "lr": ...})` next to the unfreezing line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gradledger.audit import _growing, _no_optimizer
from gradledger.audit._loops import enclosing_function
from gradledger.audit._orphans import left_out
from gradledger.audit._phrases import distinct, times
from gradledger.audit._source import source_line
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "M7",
    "unfrozen-outside-optimizer",
    "modules",
    "Parameters were unfrozen after the optimizer was built and never added to it: they get gradients and never move.",
)
LISTENS = tuple(dict.fromkeys((*_no_optimizer.LISTENS, *_growing.LISTENS)))

_WHOLE_MODULE = re.compile(r"^([A-Za-z_][\w.\[\]\"']*)\.requires_grad_\(")


@dataclass(slots=True)
class State:
    """`unheld`: leaves by the sets that are reached together; `growing`: what stands in each."""

    unheld: _no_optimizer.State = field(default_factory=_no_optimizer.State)
    growing: _growing.State = field(default_factory=_growing.State)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    _no_optimizer.update(state.unheld, event, world)
    _growing.update(state.growing, event, world)


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    late_ones = _no_optimizer.unfrozen_too_late(state.unheld, world)
    leaves = [leaf for leaf, _ in late_ones.values()]
    # what nobody chose is told only where its gradient grows: a part that is left as it is may be cleared with the rest
    growing = {tensor for tensor, _ in _growing.accumulating(state.growing, world, "M7")}
    leaves += [
        leaf
        for leaf in _no_optimizer.unheld(state.unheld, world, "M7")
        if leaf.tensor in growing or not left_out(leaf.tensor, world)
    ]
    for flag, group in _no_optimizer.by_line(leaves, world.chosen_at):
        first = group[0]
        stage = late_ones.get(first.tensor)
        optimizer = stage[1] if stage is not None else _no_optimizer.optimizer_of(first.tensor, world)
        built = optimizer.site if optimizer is not None else NOWHERE
        site = flag if flag.file else built
        names = world.names(leaf.tensor for leaf in group)
        line = f" on line {built.line}" if built.file else ""
        unfrozen = world.tensor(first.tensor).unfrozen_seq
        late = optimizer is None or (unfrozen is not None and optimizer.made_seq < unfrozen)
        empty = optimizer.empty_group if optimizer is not None else NOWHERE
        what = (
            "left out of the optimizer that is built here"
            if not flag.file and stage is None
            else f"unfrozen here, after the optimizer was built{line}"
            if late
            else f"chosen for training here, and the optimizer built{line} leaves them out"
        )
        before = world.optimizer(world.holders(first.tensor)[0]).site if stage is not None else NOWHERE
        holds = (
            f"only an earlier optimizer holds them (of line {before.line}), which never steps again"
            if stage is not None
            else f"no optimizer holds them{f': the group added on line {empty.line} is empty' if empty.file else ''}"
        )
        findings.append(
            Finding(
                "M7",
                "error",
                site,
                f"{names} are {what}: {times(first.fills, 'reverse pass')} wrote their gradients since, and {holds}.",
                f'optimizer.add_param_group({{"params": {_params(flag, world)}}})',
                related=distinct(
                    site,
                    (
                        empty,
                        built,
                        _no_optimizer.step_site(optimizer),
                        before,
                        *built.above(1),
                        *flag.above(2),
                        *_left_out(built),
                    ),
                ),
                evidence={
                    "tensors": len(group),
                    "weights": sum(world.tensor(leaf.tensor).numel for leaf in group),
                    "reverse_passes": first.fills,
                    "optimizer_built_line": built.line,
                    "in_optimizers": int(stage is not None),
                },
                count=first.fills,
                subject=names,
                iteration=min(leaf.iteration for leaf in group),
            )
        )
    return findings


def _left_out(built: Site) -> list[Site]:
    """Lines of the function that builds the optimizer which ask for `requires_grad`: what is frozen then stays out."""
    function = enclosing_function(built.file, built.line)
    lines = range(function.lineno, built.line) if function is not None else ()
    return [Site(built.file, n, built.function) for n in lines if "requires_grad" in source_line(built.file, n)][:2]


def _params(flag: Site, world: World) -> str:
    match = _WHOLE_MODULE.match(world.source(flag)) if flag.file else None
    return f"{match[1]}.parameters()" if match is not None else "[...]"
