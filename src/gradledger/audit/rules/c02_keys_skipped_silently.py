"""# Keys that do not fit are skipped silently

## What it is
`load_state_dict(state, strict=False)` with a state whose keys are called otherwise than those of the model: a
`module.` or `_orig_mod.` in front, a part that was renamed, a filter that lets nothing through.  Or the same by a
filter, with a load that may well be strict: `{k: v for k, v in state.items() if k in own}`, mixed into the model's own
state by `own.update(...)`.  What does not match is skipped, without a word.

## Why it matters
The model keeps its random weights and trains from there.  "Fine-tuning" runs, learns slowly, and nobody notices that
nothing was loaded.

## How it is found
From the keys of each load that gave some tensors nothing new (they are missing, or were given the values they had),
beside what the state had to offer: as it was read from a file or as the other network has it, before any filter.  None
of the keys of a non-strict load matched (error), or what stays as it was stands beside keys that were not used, whose
tensors have the same shapes and whose names are the same but for their beginning (error): several of them, or all that
is left on either side.  Or several names are the ends of others (`v1.weight`, `conv1.weight`), as
`name.lstrip("encoder.")` leaves them.  Some of it has to stand before what was loaded: nobody means a trained head on a
random trunk (or the names of two parts have lost their beginning).
Where the optimizer's state comes out of the same file, training is resumed, and nothing may stay as it was or be left
over (error).  A later load that fills the module is taken as the program's own answer, and nothing is said.

## Near misses
- A pretrained backbone under a new head: the head's keys are missing, or were left out of the state on purpose.
- An old head or decoder that the new model has not, beside a new one of the same shapes under another name.
- A part that is loaded under the names of the program's own choice, while others stay new.
- A state in several parts, each loaded by the same line: what one leaves out, another one fills.
- Buffers that a newer version of the model has in addition.
- A backbone out of a file whose optimizer state is left alone: that is no resume.
- Not seen: tensors that are copied one by one (`own[k].copy_(v)`), without `load_state_dict`.

## Fix
Rename the keys (`k.removeprefix("module.")`) and load strictly; where something is to stay new, compare
`missing_keys` and `unexpected_keys`, or the keys that a filter drops, with what is meant.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from gradledger.audit._phrases import distinct, times
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, FileTouched, StateLoaded
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "C2",
    "keys-skipped-silently",
    "checkpoint",
    "A non-strict or filtered load skipped keys it should have used, and the model keeps its initial weights.",
)
LISTENS = (StateLoaded, FileTouched)
KEPT = 512
FEW = 4  # of fewer tensors with one shape by chance there are many


@dataclass(slots=True)
class State:
    """The latest load of each module, and the line that read the latest file before it.  Since that was read: `filled`:
    modules that were loaded; `restored`: optimizers that were.  `together`: by module, the optimizers that were
    restored with it."""

    loads: dict[int, tuple[StateLoaded, Site]] = field(default_factory=dict)
    any_load: bool = False
    read_at: Site = NOWHERE
    filled: set[int] = field(default_factory=set)
    restored: set[int] = field(default_factory=set)
    together: dict[int, set[int]] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, FileTouched):
        if event.method == "load":
            state.read_at = event.site
            state.filled.clear()
            state.restored.clear()
    elif isinstance(event, StateLoaded) and event.owner == "optimizer":
        state.restored.add(event.ident)
        _note_together(state)
    elif isinstance(event, StateLoaded) and event.owner == "module":
        state.any_load = True
        state.filled.add(event.ident)
        known = state.loads.get(event.ident)
        if known is not None or len(state.loads) < KEPT:
            state.loads[event.ident] = (_with(known[0], event) if known is not None else event, state.read_at)
        state.together.pop(event.ident, None)
        _note_together(state)


def _with(before: StateLoaded, event: StateLoaded) -> StateLoaded:
    """A load, without the keys that another part of the same state has filled just before it."""
    if not before.missing or before.iteration != event.iteration or before.site.key() != event.site.key():
        return event
    return replace(event, missing=tuple(key for key in event.missing if key in before.missing))


def _note_together(state: State) -> None:
    for module in state.filled:
        if module in state.loads:
            state.together.setdefault(module, set()).update(state.restored)


def finish(state: State, world: World) -> list[Finding]:
    found = []
    for load, read_at in state.loads.values():
        mine = set(world.tensors_of(load.ident))
        restored = any(not mine.isdisjoint(world.optimizer(o).tensors) for o in state.together.get(load.ident, ()))
        resumed = _resumed(load, read_at, world) if restored else None
        if resumed is not None:
            found.append(resumed)
        elif (not load.strict and load.missing) or load.kept:
            finding = (
                _nothing_matched(load, read_at, world)
                or _renamed(load, read_at, world)
                or _cut_off(load, read_at, world)
            )
            if finding is not None:
                found.append(finding)
    return found


def _nothing_matched(load: StateLoaded, read_at: Site, world: World) -> Finding | None:
    if load.matched:
        return None
    given = (
        f"the keys of the state ({_some(load.unexpected)}) are all called otherwise than those of the module "
        f"({_some(load.missing)})"
        if load.unexpected
        else f"the state that is loaded is empty, and all of {_some(load.missing)} are missing"
    )
    return _finding(load, read_at, world, f"{given}: strict=False skips every one, and the module keeps what it had.")


def _resumed(load: StateLoaded, read_at: Site, world: World) -> Finding | None:
    """A load that restores an optimizer as well, and leaves something out on either side."""
    stays = (*load.missing, *load.kept) if not load.strict or load.kept else ()
    left = {*(load.unexpected if not load.strict else ()), *load.left_out}
    if (not stays and not left) or (load.strict and not left):
        return None
    kept = f"{times(len(stays), 'tensor')} keep what they had ({_some(stays)})" if stays else ""
    over = f"{times(len(left), 'key')} of the state are used by nothing ({_some(tuple(sorted(left)))})" if left else ""
    return _finding(
        load,
        _told_at(load, read_at),
        world,
        f"training is resumed, for the optimizer's state comes out of the same file, but "
        f"{' and '.join(part for part in (kept, over) if part)}: it goes on from other weights.",
        "build the model as it was when it was saved, then load with strict=True",
    )


def _renamed(load: StateLoaded, read_at: Site, world: World) -> Finding | None:
    """Parts whose names differ in their beginning only."""
    starts = Counter(_starts(missing, unexpected) for missing, unexpected in load.renamed)
    if not starts:
        return None
    (mine, theirs), count = starts.most_common(1)[0]
    prefix = not mine or not theirs  # one name is the other with something in front
    pairs = [(m, u) for m, u in load.renamed if _starts(m, u) == (mine, theirs)]
    parts = {m.rpartition(".")[0] for m, _ in pairs}
    stays, left = len(load.missing) + len(load.kept), len({*load.unexpected, *load.left_out})
    if not load.early or 2 * count < stays:
        return None  # (a new head under a trunk that was loaded)
    if not prefix and count < stays + left - count and (count < FEW or len(parts) < 2):
        return None  # (where all that stays and all that is left belong together, few are enough)
    if count < 2:
        return None
    skipped = (
        "strict=False skips them"
        if any(u in load.unexpected for _, u in pairs)
        else "none of them is in what is loaded here, and nothing says so"
    )
    return _finding(
        load,
        _told_at(load, read_at),
        world,
        f"{times(count, 'tensor')} of this state fit by shape and name but for the beginning (`{theirs}` in the state, "
        f"`{mine}` in the module, such as {pairs[0][1]} for {pairs[0][0]}): {skipped}, "
        f"and those parameters keep what they had.",
    )


def _cut_off(load: StateLoaded, read_at: Site, world: World) -> Finding | None:
    """Names of which characters were taken away in front, as `lstrip("encoder.")` does: `v1.weight` of
    `conv1.weight`."""
    pairs = [
        (mine, given)
        for mine, given in load.renamed
        if mine != given and mine.endswith(given) and not mine.removesuffix(given).endswith(".")
    ]
    stays = len(load.missing) + len(load.kept)
    parts = {mine.split(".")[0] for mine, _ in pairs}  # one (`net` beside `subnet`) may be chance
    if (not load.early and len(parts) < 2) or len(pairs) < 2 or 2 * len(pairs) < stays:
        return None
    return _finding(
        load,
        _told_at(load, read_at),
        world,
        f"{times(len(pairs), 'tensor')} of this state fit by shape and by the end of their names (`{pairs[0][1]}` for "
        f"`{pairs[0][0]}`): characters were cut off in front, strict=False skips them, and those parameters keep what "
        "they had.",
        'take the prefix off as a whole: name.removeprefix("encoder."), where lstrip takes any of its characters',
    )


def _starts(missing: str, unexpected: str) -> tuple[str, str]:
    """What is left of two names when their common end is taken away."""
    a, b = missing.split("."), unexpected.split(".")
    while a and b and a[-1] == b[-1]:
        a.pop()
        b.pop()
    return ".".join(a), ".".join(b)


def _some(keys: tuple[str, ...]) -> str:
    return ", ".join(keys[:2]) + (", ..." if len(keys) > 2 else "")


def _told_at(load: StateLoaded, read_at: Site) -> Site:
    """Where the program leaves keys out, else where it read the file."""
    return load.left_site if load.left_site.file != NOWHERE.file else read_at


_RENAME = 'rename the keys, such as {k.removeprefix("module."): v for k, v in state.items()}, and load with strict=True'


def _finding(load: StateLoaded, read_at: Site, world: World, message: str, fix: str = _RENAME) -> Finding:
    name = world.module_name(load.ident)
    return Finding(
        "C2",
        "error",
        load.site,
        f"`{name}`: {message}",
        fix,
        related=distinct(load.site, (read_at,)),
        evidence={
            "matched": load.matched,
            "missing": list(load.missing[:8]),
            "unexpected": list(load.unexpected[:8]),
            "kept": list(load.kept[:8]),
            "left_out": list(load.left_out[:8]),
        },
        subject=name,
        iteration=load.iteration,
    )


def not_checked(state: State, world: World) -> str | None:
    return None if state.any_load else "no module's state was loaded"
