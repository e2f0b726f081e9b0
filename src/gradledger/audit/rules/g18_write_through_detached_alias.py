"""# In-place write through a detached alias

## What it is
`y = x.detach()` (or `x.data`, `x.detach().numpy()`) shares the memory of `x`.  Writing into `y` in place changes `x`
too, behind autograd's back, while the graph still uses it.

## Why it matters
The loss is computed from a value that the model never produced, and its gradient belongs to yet another one.  With
`.detach()` torch can catch some of these writes, with `.data` and numpy none.

## How it is found
The trace follows which tensors share memory with a graph tensor through a detach, `.data` or numpy.  A write into such
an alias is reported when a later reverse pass walks the tensor that it belongs to; through `detach` only when an
operation took that tensor after the write, since torch itself raises where a value was saved before it.

## Near misses
- `x.detach().clone()` and then in-place work: memory of its own.
- Optimizer steps, running statistics, `copy_` into a target network: leaves, not values inside a graph.
- A write after the graph was walked, or one after which nothing uses the tensor any more: a penalty that is popped,
  cut off and zeroed.

## Fix
`executed = action.detach().clone()`, or write out of place: `executed = action.detach() + noise`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import AliasWritten, Event
from gradledger.core.site import Site

RULE = Rule(
    "G18",
    "write-through-detached-alias",
    "gradient lifecycle",
    "A tensor inside the graph was overwritten in place through a detached alias that shares its memory.",
)
LISTENS: tuple[type[Event], ...] = (AliasWritten,)
NEEDS_DETAIL = True

_FIXES = {
    "detach": "take a copy: .detach().clone()",
    "detach_": "take a copy: .detach().clone()",
    "data": "write out of place (torch.where, masked_fill, clamp), or take a copy first: .detach().clone()",
    "numpy": "take a copy: .detach().cpu().numpy().copy()",
}


@dataclass(slots=True)
class _Alias:
    first: AliasWritten
    writes: dict[tuple[str, int], Site] = field(default_factory=dict)
    ops: dict[str, None] = field(default_factory=dict)
    passes: set[int] = field(default_factory=set)
    count: int = 0


@dataclass(slots=True)
class State:
    """Aliases by the line where they were taken and the line that made the tensor."""

    found: dict[tuple[tuple[str, int], tuple[str, int]], _Alias] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, AliasWritten):
        return
    alias = state.found.setdefault((event.alias_site.key(), event.base_site.key()), _Alias(event))
    alias.count += 1
    if len(alias.writes) < 8:
        alias.writes.setdefault(event.site.key(), event.site)
    if len(alias.ops) < 8:
        alias.ops[event.op] = None
    if len(alias.passes) < 1000:
        alias.passes.add(event.backward)


def finish(state: State, world: World) -> list[Finding]:
    findings = []
    for alias in state.found.values():
        event = alias.first
        site = event.alias_site if event.alias_site.file else event.site
        lines = ", ".join(str(s.line) for s in alias.writes.values())
        way = {"data": "`.data`", "numpy": "numpy"}.get(event.alias_how, f"`.{event.alias_how}()`")
        findings.append(
            Finding(
                "G18",
                "error",
                site,
                f"The value of `{event.base_op or 'a graph tensor'}` (line {event.base_site.line or '?'}) is "
                f"overwritten at line {lines} through {way}, which shares its memory; then "
                f"{times(len(alias.passes), 'reverse pass')} used the overwritten value.",
                _FIXES.get(event.alias_how, "take a copy: .detach().clone()"),
                related=distinct(site, (*alias.writes.values(), event.base_site)),
                evidence={
                    "writes": alias.count,
                    "operations": list(alias.ops),
                    "alias": event.alias_how,
                    "base": event.base_op,
                    "reverse_passes": len(alias.passes),
                },
                count=alias.count,
                iteration=event.iteration,
            )
        )
    return findings
