"""# State that a reload loses

## What it is
The program saves or keeps state in order to come back to it, and what comes back is something else:

- `best = model.state_dict()`: the tensors in it *are* the model's.  Training goes on and changes them, so that
  "restoring the best epoch" restores the last one.
- `best = copy.copy(model)`: another module over the same parameters.
- The scheduler's state is in the file, and nothing loads it: the schedule starts over.
- A queue, a codebook's counts or a running mean is a buffer with `persistent=False`: no state holds it.
- A temperature or a count of updates is a plain number of a module, the momentum a plain list of an optimizer, the
  observation's mean an array of a helper: nothing saves them.
- A plain temperature is made from `log_alpha`, which the file holds, now and then only: until then it is the old one.
- Scales that are set from the first batch, and the flag that says so is a plain attribute: after a reload they are set
  again, over what was loaded.
- `log_alpha`, or the weights of tasks, is a tensor that an optimizer trains and no module owns: the file has the
  optimizer's moments of it, and not the value.

## Why it matters
The reported model is not the one that was chosen; the resumed learning rate is not the one that was planned.  No error
is raised in either case.

## How it is found
Each state that a module hands out is known by its tensors and the iteration.  A load is reported when the state it is
given is the live memory of that very module, handed out before later steps of its optimizer; a module that is called
after steps, by a name that says it was kept, when it is a shallow copy of the trained one.  A scheduler is reported
when the file held a scheduler's state, module or optimizer were filled from it, and the scheduler then steps from its
beginning.  A buffer that the state leaves out is reported when, after a load, it has other values than in the module
that the state was taken from, and the loaded module is called.  The program's own objects that stand around a state
(modules, optimizers, helpers) are compared by class and place when it is taken, when it was loaded into new ones, and
before the next step: a number, array or list of tensors that differs and was not touched since the load is reported
when its class carries it on from its own last value and the training feels it (forward returns what is computed with
it, tensors or a learning rate are written with it, a method scales its argument by it).

Tensors that an optimizer trains and no module owns are compared between the optimizer at the time when the state was
taken and the one that stands in its place before the first step after the load.

## Near misses
- `copy.deepcopy(model.state_dict())`, or `{k: v.clone() ...}`: a copy indeed.
- A state that is taken and given to another network at once.
- Caches that are no state of the model (keys and values, masks, hidden states), constants that the constructor makes.
- Counters for the log; limits, cursors and schedules that are set anew from a step count that was restored; a meter.
- A scheduler of the program's own around another one: how it restores that is its own affair.
- Starting a new schedule on purpose, from pretrained weights; `last_epoch=` given, or the scheduler driven forward.

## Fix
`best = copy.deepcopy(model.state_dict())`; `scheduler.load_state_dict(checkpoint["scheduler"])`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from gradledger.audit import _carried_on, _code, _follows, _resumes
from gradledger.audit._phrases import distinct, times
from gradledger.audit._resumes import Resumes
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Event, LeavesNotPutBack, ModuleCalled, NotPutBack, StateLoaded
from gradledger.core.site import NOWHERE, Site

RULE = Rule(
    "C3",
    "restored-state-is-lost",
    "checkpoint",
    "What is restored is not what was kept: a state that is the live memory itself, or a schedule that starts over.",
)
LISTENS: tuple[type[Event], ...] = (*_resumes.LISTENS, ModuleCalled, NotPutBack, LeavesNotPutBack)
_KEPT = re.compile(r"(^|_)(best|kept|keep|saved?|snapshot|backup|old|prev\w*|initial|final)(_|$)", re.IGNORECASE)
_CACHE = re.compile(r"cache|hidden|past|mask|(^|_)(kv|h|c|state)(_|\d|$)", re.IGNORECASE)
_TORCH = frozenset(
    {"LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "SequentialLR",
     "PolynomialLR", "CosineAnnealingLR", "ChainedScheduler", "ReduceLROnPlateau", "CyclicLR", "OneCycleLR", "SWALR",
     "CosineAnnealingWarmRestarts"}
)  # fmt: skip
RARELY = 3  # restores; a program that loads its own memory again and again writes into it by that way
KEPT = 64


@dataclass(slots=True)
class State:
    """The resumes, and loads of a module's own live memory with the steps that lay between: by line, and how many."""

    resumes: Resumes = field(default_factory=Resumes)
    own: dict[tuple[str, int], tuple[StateLoaded, int]] = field(default_factory=dict)
    count: Counter[tuple[str, int]] = field(default_factory=Counter)
    called: dict[int, ModuleCalled] = field(default_factory=dict)  # module -> its latest call without a graph
    unsaved: dict[tuple[int, str], StateLoaded] = field(default_factory=dict)  # (module, path) that a load left apart
    used: set[int] = field(default_factory=set)  # modules that were called since
    left: list[NotPutBack] = field(default_factory=list)
    leaves: list[LeavesNotPutBack] = field(default_factory=list)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, ModuleCalled):
        if not event.output_has_graph and (event.module in state.called or len(state.called) < KEPT):
            state.called[event.module] = event
        if state.unsaved and len(state.used) < 8 * KEPT:
            state.used.add(event.module)
        return
    if isinstance(event, NotPutBack):
        state.left.append(event)
        return
    if isinstance(event, LeavesNotPutBack):
        state.leaves.append(event)
        return
    _resumes.update(state.resumes, event, world)
    if isinstance(event, StateLoaded) and event.own_since is not None and world.trained_module(event.ident):
        key = event.site.key()
        steps = event.iteration - event.own_since
        if steps > 0 and (key in state.own or len(state.own) < KEPT):
            state.own.setdefault(key, (event, steps))
        state.count[key] += 1
    if isinstance(event, StateLoaded) and event.owner == "module":
        for path in event.plain_differ if len(state.unsaved) < KEPT else ():
            state.unsaved.setdefault((event.ident, path), event)


def finish(state: State, world: World) -> list[Finding]:
    own = [_own(load, steps, world) for key, (load, steps) in state.own.items() if state.count[key] <= RARELY]
    found = own + _shallow(state, world) + _schedules(state.resumes, world) + _unsaved(state, world)
    found += [finding for event in state.left for finding in _not_put_back(state, event, world)]
    told: set[int] = set()
    for leaves in state.leaves:
        if leaves.optimizer not in told and (finding := _leaves(state, leaves, world)) is not None:
            told.add(leaves.optimizer)
            found.append(finding)
    return found


def _leaves(state: State, event: LeavesNotPutBack, world: World) -> Finding | None:
    """What an optimizer trains, and no module owns, and no file holds."""
    load = state.resumes.loads.get(event.module)
    if load is None or not _resumes.means_to_resume(load, world) or _resumes.another_kind(load.event, world):
        return None
    made = [s for s in (world.tensor(t).site for t in event.tensors) if s.file]
    site, built = (made or [event.site])[0], world.optimizers[event.optimizer].site
    names, many = world.names(list(event.tensors)), len(event.tensors) > 1
    return Finding(
        "C3",
        "error",
        site,
        f"`{names}` {'are' if many else 'is'} trained by the optimizer of line {built.line}, and no module owns "
        f"{'them' if many else 'it'}: what line {event.taken_site.line} saves leaves {'them' if many else 'it'} out, "
        f"and after the load on line {event.site.line} training goes on from {'their' if many else 'its'} first value.",
        f"save {names} beside the weights and copy it back under no_grad, or make it a Parameter of the module",
        related=distinct(site, (*made[1:], event.taken_site, event.site, built)),
        evidence={"tensors": len(event.tensors), "saved": False},
        confidence="likely",
        subject=names,
        iteration=event.iteration,
    )


def _not_put_back(state: State, event: NotPutBack, world: World) -> list[Finding]:
    """What objects of the program carry on by themselves, and no file holds."""
    load = state.resumes.loads.get(event.module)
    if load is None or not _resumes.means_to_resume(load, world) or _resumes.another_kind(load.event, world):
        return []
    given = (*event.names, *event.moved)
    uses = {name: use for name in given if (use := _carried_on.use_of(event, name)) is not None}
    if not uses:
        return _begun_again(event) or _lags(event)
    cls, file = event.cls.rpartition(".")[2], event.cls_site.file
    lines = [Site(file, line, cls) for use in uses.values() for line in (use.made, *use.carried[:2]) if line]
    if event.owner == "object" and (line := _carried_on.line_that_makes(event)):
        lines.insert(0, Site(file, line, ""))
    names = ", ".join(f"`{name}`" for name in list(uses)[:3])
    return [
        Finding(
            "C3",
            "error",
            lines[0],
            f"{names} of `{cls}` {'are' if len(uses) > 1 else 'is'} carried on while training, and no state holds "
            f"{'them' if len(uses) > 1 else 'it'}: after the load on line {event.site.line} training goes on with the "
            "values that the constructor gives.",
            "save them beside the weights and put them back; in a module, a buffer (register_buffer) is saved by itself"
            if event.owner != "optimizer"
            else "keep it in self.state[p]: that is what state_dict() saves",
            related=distinct(lines[0], (*lines[1:4], event.taken_site, event.site)),
            evidence={"names": list(uses), "owner": event.owner},
            confidence="likely",
            subject=cls,
            iteration=event.iteration,
        )
    ]


def _begun_again(event: NotPutBack) -> list[Finding]:
    """Flags of a module that no state holds, behind which it writes its own parameters from the first batch it sees."""
    cls, file = event.cls.rpartition(".")[2], event.cls_site.file
    for name in (*event.once, *event.names) if event.owner == "module" else ():
        found = _carried_on.done_once(event, name)
        if found is None:
            continue
        made, asked, written = found
        site = Site(file, made, cls)
        return [
            Finding(
                "C3",
                "error",
                site,
                f"`{name}` of `{cls}` says whether {', '.join(f'`{w}`' for w in written)} were set from a first batch, "
                f"and no state holds it: after the load on line {event.site.line} the next batch writes over what was "
                "loaded.",
                f'self.register_buffer("{name}", torch.tensor(False)): a buffer is saved by itself',
                related=distinct(site, (Site(file, asked, cls), event.taken_site, event.site)),
                evidence={"names": [name], "writes": written},
                confidence="likely",
                subject=cls,
                iteration=event.iteration,
            )
        ]
    return []


def _lags(event: NotPutBack) -> list[Finding]:
    """Plain values of a module that follow a parameter of its own, and do not when it is filled from a file."""
    cls, file = event.cls.rpartition(".")[2], event.cls_site.file
    for name in event.names:
        found = _follows.follows(event, name)
        if found is None:
            continue
        made, used, source = found
        site = Site(file, made, cls)
        return [
            Finding(
                "C3",
                "warning",
                site,
                f"`{name}` of `{cls}` is made from `{source}` here, and no state holds it: after the load on line "
                f"{event.site.line} it has the value that the constructor gave until this line runs again, and line "
                f"{used[0]} computes with that.",
                f"make `{name}` a property, or make it anew behind the load",
                related=distinct(site, (Site(file, used[0], cls), event.taken_site, event.site)),
                evidence={"names": [name], "follows": source},
                confidence="likely",
                subject=cls,
                iteration=event.iteration,
            )
        ]
    return []


def _unsaved(state: State, world: World) -> list[Finding]:
    """Buffers that no state holds, and that the training had changed."""
    groups: dict[int, list[tuple[str, int, StateLoaded]]] = {}
    for (module, path), load in state.unsaved.items():
        *above, name = path.split(".")
        owner: int | None = module
        for part in above:
            owner = world.module(owner).children.get(part) if owner is not None else None
        tensor = world.module(owner).tensors.get(name) if owner is not None else None
        if tensor is None or owner is None or world.tensor(tensor).role != "buffer":
            continue
        if state.used.isdisjoint({owner, *world.ancestors(owner)}):
            continue
        if _CACHE.search(name) or _resumes.another_kind(load, world):
            continue
        groups.setdefault(module, []).append((path, tensor, load))
    found = []
    for module, lost in groups.items():
        load = lost[0][2]
        sites = [world.tensor(tensor).site for _, tensor, _ in lost]
        site = next((s for s in sites if s.file), load.site)
        names = ", ".join(f"`{path}`" for path, _, _ in lost[:3])
        found.append(
            Finding(
                "C3",
                "error",
                site,
                f"{names} of `{world.module_name(module)}` {'are buffers' if len(lost) > 1 else 'is a buffer'} that no "
                f"state holds (persistent=False): after the load on line {load.site.line} they have other values than "
                "in the model that was saved, although every key matched.",
                "register them with persistent=True, which is the default",
                related=distinct(site, (*sites[1:], load.site)),
                evidence={"buffers": [path for path, _, _ in lost][:8], "keys_matched": load.matched},
                subject=world.module_name(module),
                iteration=load.iteration,
            )
        )
    return found


def _shallow(state: State, world: World) -> list[Finding]:
    """Modules that were kept by `copy.copy`: they hold the parameters of the one that went on training."""
    found = []
    for ident, call in state.called.items():
        mine = set(world.tensors_of(ident))
        others = [m for m in world.modules if m != ident and mine and mine == set(world.tensors_of(m))]
        related = {ident, *world.ancestors(ident), *world.descendants(ident)}
        if not call.iteration or related.issuperset(others) or not world.trained_module(ident):
            continue
        frames = (call.site, *call.site.above())
        for place in frames:
            copies = _code.shallow_copies(place.file)
            names = [n for n in copies if _KEPT.search(n) and re.search(rf"\b{n}\b", world.source(place))]
            if names:
                site = Site(place.file, copies[names[0]], place.function)
                found.append(_of_copy(names[0], site, place, call, world))
                break
    return found


def _of_copy(name: str, site: Site, place: Site, call: ModuleCalled, world: World) -> Finding:
    return Finding(
        "C3",
        "error",
        site,
        f"`{name}` is a shallow copy: it holds the very parameters of the network that trains on, so what line "
        f"{place.line} uses is the latest one, not the one that was kept.",
        "keep a copy: copy.deepcopy(model)",
        related=distinct(site, (place, call.site)),
        evidence={"how": "copy.copy", "called_at_iteration": call.iteration},
        subject=world.module_name(call.module),
        iteration=call.iteration,
    )


def _own(load: StateLoaded, steps: int, world: World) -> Finding:
    name = world.module_name(load.ident)
    site = load.taken_site if load.taken_site.file else load.site
    return Finding(
        "C3",
        "error",
        site,
        f"this state is the memory of `{name}` itself, and {times(steps, 'step')} changed it before line "
        f"{load.site.line} loads it: the load changes nothing, and the kept state is the latest one.",
        "keep a copy: copy.deepcopy(model.state_dict())",
        related=distinct(site, (load.site,)),
        evidence={"steps_between": steps, "taken_at_iteration": load.own_since},
        subject=name,
        iteration=load.iteration,
    )


def _schedules(state: Resumes, world: World) -> list[Finding]:
    found = []
    for load, optimizer in _resumes.begun_anew(state, world):
        if "scheduler" not in load.held or not _resumes.means_to_resume(load, world):
            continue
        if any(s.made.cls not in _TORCH for s in world.schedulers_of(optimizer.ident)):
            continue  # a scheduler of the program's own may hold others, and restore them in its own way
        if _resumes.put_into_another(state, load, optimizer, world) is not None:
            continue  # GL-C01: both were restored, and then made anew
        for scheduler in _resumes.schedulers_begun(state, load, optimizer, world):
            saved = next((s.site for s in reversed(state.saved) if "scheduler" in s.what), NOWHERE)
            last = scheduler.last_step.site if scheduler.last_step is not None else NOWHERE
            name = world.module_name(load.event.ident)
            found.append(
                Finding(
                    "C3",
                    "error",
                    load.event.site,
                    f"the file from which `{name}` goes on holds the state of a scheduler, and nothing loads it: "
                    f"{scheduler.made.cls} starts over, and so does the learning rate.",
                    'scheduler.load_state_dict(checkpoint["scheduler"])',
                    related=distinct(load.event.site, (scheduler.made.site, saved, load.read_at, last)),
                    evidence={"file_holds": sorted(load.held), "lrs": list(scheduler.made.lrs)},
                    confidence="likely",
                    subject=scheduler.made.cls,
                    iteration=load.event.iteration,
                )
            )
    return found


def not_checked(state: State, world: World) -> str | None:
    return None if state.resumes.loads or state.count else "no module's state was restored"
