"""Updates of a target (T8) that ran and brought nothing: their pairs were used up, or their source is not trained."""

from __future__ import annotations

from collections.abc import Iterator

from gradledger.audit import _iterators
from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import links, made_at, tree
from gradledger.audit._updates import thrown_away
from gradledger.audit._vain import PATIENCE, State, stands
from gradledger.audit.rule import Finding
from gradledger.audit.world import World

SEEN = 16  # blends; where values stand still over PATIENCE steps, not all of them were watched


def used_up(state: State, world: World) -> Iterator[tuple[Finding, int]]:
    """The target was updated once, in a loop over something that can be walked once, and stands still since."""
    for effect in state.effects.values():
        copy = effect.first
        steps = world.iteration - copy.iteration
        if copy.same or effect.count != 1 or steps < PATIENCE or world.trained_module(copy.target):
            continue
        # (looks at the values are rare: the first may have come some time after the copy)
        if not world.trained_module(copy.source) or state.still.get(copy.target, 0) < min(PATIENCE, steps // 2):
            continue
        kept = _iterators.kept(copy.site.file, copy.site.line)
        if kept is None:
            continue
        name, online = world.module_name(copy.target), world.module_name(copy.source)
        yield Finding(
            "T8",
            "error",
            kept.made,
            f"`{kept.name}` gives its pairs once: the first update of `{name}` from `{online}` (line "
            f"{copy.site.line}) used it up, and in the {times(steps, 'step')} since nothing was written.",
            "keep the pairs in a list: list(zip(...))",
            related=distinct(kept.made, (kept.loop, copy.site, *copy.site.above(1), made_at(copy.target, world))),
            evidence={"target": name, "network": online, "updates": 1, "steps": steps, "why": "iterator used up"},
            subject=name,
            iteration=copy.iteration,
        ), copy.target


def dropped(state: State, world: World) -> Iterator[tuple[Finding, int]]:
    """New values are put into the dictionary that `state_dict()` gives, and not into the copy that it is the state
    of."""
    for (file, line), event in state.taken.items():
        if not thrown_away(file, line) or world.trained_module(event.ident):
            continue
        mine = tree(event.ident, world)
        link = next((k for k in links(world) if any(t in mine and world.trained(s) for s, t in k.pairs)), None)
        if link is None:
            continue
        name, online = world.module_name(event.ident), world.module_name(link.source)
        made = made_at(event.ident, world)
        yield Finding(
            "T8",
            "error",
            event.site,
            f"the new values go into a dictionary that `state_dict()` makes for this line, and that is dropped after "
            f"it: `{name}`, a copy of `{online}`, keeps its own.",
            "give the dictionary back: target.load_state_dict(new)",
            related=distinct(event.site, (*event.site.above(1), made, link.site)),
            evidence={"target": name, "network": online, "why": "written into a dictionary"},
            subject=name,
            iteration=event.iteration,
        ), event.ident


def untrained(state: State, world: World) -> Iterator[tuple[Finding, int]]:
    """An average that follows a network which stands still, while a deep copy of that network is trained."""
    for effect in state.effects.values():
        copy, tau = effect.first, effect.last.tau
        if copy.same or tau is None or not 0.0 < tau < 1.0 or effect.count < SEEN or not stands(copy.target, state):
            continue
        source = tree(copy.source, world)
        if world.trained_module(copy.source) or world.trained_module(copy.target):
            continue
        for link in links(world):
            mine = {t for s, t in link.pairs if s in source}
            if not link.deep or not mine or not any(world.trained(t) for t in mine):
                continue
            name, online = world.module_name(copy.target), world.module_name(copy.source)
            trained = world.module_name(link.target)
            yield Finding(
                "T8",
                "error",
                link.site,
                f"`{trained}`, which is trained, is a copy made here of `{online}`, and `{name}` follows the latter "
                f"(line {copy.site.line}): {times(effect.count, 'update')} changed nothing.",
                f"train `{online}` itself, or let `{name}` follow `{trained}`",
                related=distinct(link.site, (*link.site.above(1), copy.site, made_at(copy.target, world))),
                evidence={"target": name, "network": online, "trained": trained, "updates": effect.count, "tau": tau,
                          "why": "source is not trained"},
                count=effect.count,
                subject=name,
                iteration=copy.iteration,
            ), copy.target
            break
