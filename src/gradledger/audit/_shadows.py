"""Averages of parameters that a program keeps by hand in plain tensors: what T3, T5 and T8 say about them.

Such an average is a target as much as a second network is: its tensors may be the parameters' own memory (T3), it may
follow parameters that nothing uses any more (T5), and its new values may never be put where the old ones are (T8).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit._phrases import distinct, number, times
from gradledger.audit.rule import Finding
from gradledger.audit.world import World
from gradledger.core.events import ChildRegistered, Event, ShadowAveraged
from gradledger.core.site import NOWHERE, Site

LISTENS: tuple[type[Event], ...] = (ShadowAveraged, ChildRegistered)
SITES = 256
SWAPPED = 1024
AGAIN = 3  # iterations in which an average was lost
FEWEST = 2  # tensors of an average; and iterations after a replacement


@dataclass(slots=True)
class Average:
    """Blends of one line.  `told`: how many events; `lost`, `shared`: of them, those where all but one result went
    nowhere, and those into the parameters' own memory; `stale`: replaced parameters that it follows, with the line that
    replaced them; `after`: in how many events; `names`: of what was replaced."""

    first: ShadowAveraged
    told: int = 0
    lost: int = 0
    shared: int = 0
    after: int = 0
    stale: dict[int, Site] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    made_site: Site = NOWHERE


@dataclass(slots=True)
class Shadows:
    """`swapped`: modules whose place in their parent was given to another one."""

    averages: dict[tuple[str, int], Average] = field(default_factory=dict)
    swapped: dict[int, ChildRegistered] = field(default_factory=dict)


def update(state: Shadows, event: Event, world: World) -> None:
    """Take one event."""
    if isinstance(event, ChildRegistered):
        if event.replaced is not None and event.replaced != event.child and len(state.swapped) < SWAPPED:
            state.swapped[event.replaced] = event
    elif isinstance(event, ShadowAveraged):
        one = state.averages.get(event.site.key())
        if one is None:
            if len(state.averages) >= SITES:
                return
            one = state.averages[event.site.key()] = Average(event)
        several = max(1, len(event.tensors) - 1)  # (the last one may still have its name in the loop)
        one.told += 1
        one.lost += event.lost >= several
        one.shared += event.shared >= several
        one.made_site = one.made_site if one.made_site.file else event.made_site
        stale = {t: place for t in event.tensors if (place := replaced(t, state, world)) is not None}
        one.after += bool(stale)
        for tensor, (site, name) in stale.items():
            one.stale[tensor] = site
            one.names[name] = None


def replaced(tensor: int, state: Shadows, world: World, *, trained: bool = True) -> tuple[Site, str] | None:
    """Where a parameter was replaced by one that is trained, or its module by one that is; and what stands there.

    `trained=False`: its module by any other."""
    info = world.tensor(tensor)
    if not info.owners:
        new = info.replaced_by if trained else None
        return (info.replaced_site, world.name(new)) if new is not None and world.trained(new) else None
    owners = [m for m, _ in info.owners]
    if not all(world.module(m).freed for m in owners):
        return None
    for module in (owners[0], *world.ancestors(owners[0])):
        event = state.swapped.get(module)
        if event is not None and (not trained or world.trained_module(event.child)):
            return event.site, world.module_name(event.child)
    return None


def lost(state: Shadows, world: World) -> list[Finding]:
    """T8: the average is computed and dropped."""
    return [
        Finding(
            "T8",
            "error",
            one.first.site,
            f"The average of {times(len(one.first.tensors), 'parameter')} is computed here and kept nowhere: the "
            f"result has a name and is gone, {times(one.lost, 'time')} out of as many, and the next blend begins with "
            "the first values again.",
            _in_place(one.first.tau),
            evidence={"parameters": len(one.first.tensors), "weight": one.first.tau, "lost": one.lost},
            count=one.lost,
            iteration=one.first.iteration,
        )
        for one in state.averages.values()
        if one.lost >= AGAIN and one.told - one.lost <= 1 and len(one.first.tensors) >= FEWEST
    ]


def shared(state: Shadows, world: World) -> list[Finding]:
    """T3: the average lives in the memory of the parameters."""
    found = []
    for one in state.averages.values():
        if one.shared < FEWEST or one.shared < one.told:
            continue
        site = one.made_site if one.made_site.file else one.first.site
        found.append(
            Finding(
                "T3",
                "error",
                site,
                f"The average of {times(len(one.first.tensors), 'parameter')} was begun without a copy: its tensors "
                f"are the parameters' own memory, so line {one.first.site.line} blends each parameter with itself, and "
                "there is no average.",
                "begin with values of their own: p.detach().clone()",
                related=distinct(site, (one.first.site, site)),
                evidence={"parameters": len(one.first.tensors), "weight": one.first.tau, "updates": one.shared},
                count=one.shared,
                iteration=one.first.iteration,
            )
        )
    return found


def stale(state: Shadows, world: World) -> list[Finding]:
    """T5: the average goes on with parameters that were replaced."""
    found = []
    for one in state.averages.values():
        if one.after < FEWEST:
            continue
        sites = list(dict.fromkeys(one.stale.values()))
        names = ", ".join(f"`{name}`" for name in list(one.names)[:2])
        old = len(one.stale)
        found.append(
            Finding(
                "T5",
                "error",
                sites[0],
                f"{names} took the place of what the average on line {one.first.site.line} follows: "
                f"{times(old, 'tensor')} of it still {'come' if old > 1 else 'comes'} from old parameters, which "
                "nothing uses any more, and none from the new ones.",
                "begin the average after the last change of the model, or write values in place here",
                related=distinct(sites[0], (*sites[1:4], one.first.site)),
                evidence={"old": old, "weight": one.first.tau, "updates": one.after},
                count=one.after,
                subject=next(iter(one.names)),
                iteration=one.first.iteration,
            )
        )
    return found


def _in_place(tau: float) -> str:
    return f"write it into the tensor that is kept: s.lerp_(p, {number(tau)})"


__all__ = ["LISTENS", "Shadows", "lost", "replaced", "shared", "stale", "update"]
