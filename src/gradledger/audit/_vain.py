"""What became of a target: the copies into it, whether its values stand still, and updates that never arrived (T8)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradledger.audit import _shadows
from gradledger.audit._loops import conditions_around, enclosing_function, loops_around
from gradledger.audit._phrases import distinct, times
from gradledger.audit._targets import Link, Meeting, Watch, fed, kin, links, made_at, tree
from gradledger.audit._unwritten import Attempt, forgotten, pending
from gradledger.audit.rule import Finding
from gradledger.audit.world import World
from gradledger.core.events import Copied, StateLoaded, StateTaken
from gradledger.core.site import Site

PATIENCE = 50  # optimizer steps without any update before the source is asked


@dataclass(slots=True)
class Effect:
    """Copies from one module into another at one line: how many, how many changed something."""

    first: Copied
    last: Copied
    count: int = 0
    idle: int = 0  # nothing changed, or weight 0


@dataclass(slots=True)
class State:
    """What the rule remembers of a run: comparisons, copies by modules and line, lines that ran, values that stand."""

    watch: Watch = field(default_factory=Watch)
    effects: dict[tuple[int, int, tuple[str, int]], Effect] = field(default_factory=dict)
    ran: set[tuple[str, int]] = field(default_factory=set)  # lines on the way to a copy or a load
    loads: dict[int, list[StateLoaded]] = field(default_factory=dict)  # module -> first loads while training went on
    walked: set[tuple[str, int]] = field(default_factory=set)  # lines that walk over parameters, take or copy a state
    taken: dict[tuple[str, int], StateTaken] = field(default_factory=dict)  # states taken while training, by line
    files: set[str] = field(default_factory=set)  # of the lines that train and of their callers
    still: dict[int, int] = field(default_factory=dict)  # module -> iterations over which its values stood still
    moved: set[int] = field(default_factory=set)
    shadows: _shadows.Shadows = field(default_factory=_shadows.Shadows)


def followed(module: int, state: State, world: World) -> bool:
    """Whether values of another module effectively arrived in (a part of) the module after training began."""
    mine = tree(module, world)
    for effect in state.effects.values():
        copy, last = effect.first, effect.last
        if copy.same or last.iteration == 0 or effect.idle >= effect.count:
            continue
        if copy.target == module or any(t in mine for _, t in last.pairs):
            return True
    return False


def never_ran(state: State, world: World) -> list[tuple[Finding, int]]:
    """Targets that stand still although the program holds an update of them, or holds none: (finding, module)."""
    known = links(world)
    found = []
    for met in (*state.watch.meetings.values(), *fed(state.watch, known, world)):
        if met.target == met.learner or met.symmetric or world.trained_module(met.target):
            continue
        if world.iteration - met.first_iteration < PATIENCE or not world.trained_module(met.learner):
            continue
        if not met.bootstrap and not kin(met.target, met.learner, world, known) and not _of_trained(met, world, known):
            continue
        if followed(met.target, state, world) or _remade(met.target, known, world):
            continue
        if not stands(met.target, state):
            continue
        attempts = pending(met, state.ran, state.walked, world)
        if attempts is None:
            continue  # its turn may not have come yet
        attempts = attempts or _idle_loads(met.target, state, world)
        if attempts:
            found.append((_never(met, attempts, world), met.target))
        elif forgotten(met, state.ran, state.files, world, known):
            found.append((_forgot(met, known, world), met.target))
    return found


def _of_trained(met: Meeting, world: World, known: list[Link]) -> bool:
    """Whether the target is a copy of a network that is trained, if not of the one whose output it meets: a predictor
    stands behind that one."""
    return any(link.target == met.target and world.trained_module(link.source) for link in known)


def stands(module: int, state: State) -> bool:
    """Whether a module's values were looked at over long enough, and have not moved."""
    return module not in state.moved and state.still.get(module, 0) >= PATIENCE - 5


def _idle_loads(module: int, state: State, world: World) -> list[Attempt]:
    """Lines that load a state into the target again and again, which stays the same for all that."""
    mine = {module, *world.descendants(module), *world.ancestors(module)}
    loads = [e for ident, events in state.loads.items() if ident in mine for e in events if e.site.file]
    return [Attempt((e.site,), True) for e in loads] if len(loads) > 1 else []


def _remade(module: int, known: list[Link], world: World) -> bool:
    """The program replaces the target by a new deep copy instead of writing into it."""
    freed = world.module(module).freed_iteration
    if freed is not None and freed < world.iteration:
        return True
    mine = [k for k in known if k.deep and k.target == module]
    return any(
        k.deep and k.source == m.source and k.site.key() == m.site.key() and k.target != m.target
        for m in mine
        for k in known
    )


def _role(met: Meeting, world: World) -> str:
    """What the target is to the network that learns."""
    online = world.module_name(met.learner)
    if met.feeds is None:
        return f"gives the target for `{online}`"
    return f"is a copy of `{online}` and feeds the target `{world.module_name(met.feeds)}`"


def _forgot(met: Meeting, known: list[Link], world: World) -> Finding:
    mine = [k.site for k in known if k.target == met.target and k.site.file]
    once = [site for site in mine if loops_around(replace(site, callers=()))][:1]
    name, online = world.module_name(met.target), world.module_name(met.learner)
    steps = world.iteration - met.first_iteration
    return Finding(
        "T8",
        "error",
        met.target_site,
        f"`{name}` {_role(met, world)} but has not changed in {times(steps, 'step')}, and no "
        f"line of the program writes into it{f' but line {once[0].line}, once' if once else ''}: every target comes "
        "from the untrained first network.",
        "copy the trained network into it every few hundred steps: target.load_state_dict(net.state_dict())",
        related=distinct(
            met.target_site,
            (
                *once,
                *(around for site in once for around in conditions_around(site, 0)),
                made_at(met.target, world),
                met.site,
                met.learner_site,
            ),
        ),
        evidence={"target": name, "network": online, "steps": steps, "why": "no update in the program"},
        confidence="likely",
        subject=name,
        iteration=met.first_iteration,
    )


def _due(update: Site, met: Meeting, world: World) -> list[Site]:
    """The function with the update that never ran, and the step of the network behind which it is due."""
    function = enclosing_function(update.file, update.line)
    named = [Site(update.file, function.lineno, function.name)] if function is not None else []
    mine = set(world.tensors_of(met.learner))
    steps = [o.last_step.site for o in world.optimizers.values() if o.last_step is not None and mine & o.tensors.keys()]
    return [*named, *steps[:1]]


def _never(met: Meeting, attempts: list[Attempt], world: World) -> Finding:
    name, online = world.module_name(met.target), world.module_name(met.learner)
    steps = world.iteration - met.first_iteration
    first, *others = [site for attempt in attempts for site in attempt.sites]
    ran = attempts[0].ran
    return Finding(
        "T8",
        "error",
        first,
        f"`{name}` {_role(met, world)} but has not changed in {times(steps, 'step')}: this update "
        + ("runs without writing a new value into it." if ran else "has never run."),
        "write into the target's own tensors: with torch.no_grad(): t.lerp_(p, tau)"
        if ran
        else "see to it that the condition comes true while training, every few hundred steps",
        related=distinct(
            first,
            (*others[:8], met.target_site, made_at(met.target, world), *(() if ran else _due(first, met, world))),
        ),
        evidence={
            "target": name,
            "network": online,
            "steps": steps,
            "update_lines": list(dict.fromkeys(s.line for s in (first, *others)))[:6],
            "why": "no effect" if ran else "never ran",
        },
        count=1,
        subject=name,
        iteration=met.first_iteration,
    )
