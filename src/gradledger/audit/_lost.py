"""Gradients that a clear threw away before any step had used them (G2, G4, G6).

For each optimizer the clears since its last step are remembered.  When it steps, what they threw away is either
followed by nothing (the step runs empty) or replaced by another reverse pass (the step runs on that one alone).  Not
lost are gradients that some other optimizer uses (a generator's pass through the discriminator), that the program
reads before the clear (sharpness-aware steps, gradient surgery), and those of a window cut short by the end of an
epoch (GL-G22).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from gradledger.audit._cycle import Path, fresh, has_gradient, path_of
from gradledger.audit.world import BACKWARDS_KEPT, World
from gradledger.core import events as ev
from gradledger.core.site import Site

LISTENS: tuple[type[ev.Event], ...] = (
    ev.Step,
    ev.Clear,
    ev.Backward,
    ev.GradientsRead,
    ev.ModuleCalled,
    ev.LoaderEpoch,
    ev.ScalerCalled,
)
LOSSES_KEPT = 128  # between two steps
UNDECIDED_KEPT = 400
RECENT_KEPT = 32
PATHS_KEPT = 4000
EVENLY = 3


@dataclass(frozen=True, slots=True)
class Loss:
    """Contributions of `backward` that the clear at `clear` threw away unused."""

    backward: int
    fill: Site
    clear: Site
    detailed: bool
    tensors: int


@dataclass(slots=True)
class Case:
    """One kind of loss: `empty` says whether the step then ran on nothing.  `seen`: steps before which it happened;
    `looked_at`: those in watched iterations, where reads would have been seen; `forward_between`: a forward pass lay
    between clear and step; `idle`: neither the step nor the program has moved a parameter."""

    loss: Loss
    step: ev.Step
    empty: bool
    used: Site | None
    seen: int = 0
    looked_at: int = 0
    forward_between: int = 0
    idle: int = 0
    lost: int = 0
    last_index: int = -10
    streak: int = 0
    longest: int = 0
    streaks: int = 0
    gap: int = 0
    even: int = 0


@dataclass(slots=True)
class _Undecided:
    optimizer: int
    step: ev.Step
    losses: tuple[Loss, ...]
    empty: bool
    used: Site | None
    windowed: Path
    forward_between: bool


@dataclass(slots=True)
class Watched:
    """One optimizer.  `first_empty`: its very first step found no gradient before any reverse pass had filled one."""

    steps: int = 0
    filled: bool = False
    first_empty: Site | None = None
    losses: dict[int, Loss] = field(default_factory=dict)
    forward_since_loss: bool = False
    cases: dict[tuple[bool, Path, Path], Case] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """`inspected`: paths of reverse passes whose gradients the program reads itself; `cut_short`: passes that stood
    unused when an epoch began."""

    optimizers: dict[int, Watched] = field(default_factory=dict)
    undecided: deque[_Undecided] = field(default_factory=deque)
    inspected: set[Path] = field(default_factory=set)
    recent: deque[ev.Backward] = field(default_factory=lambda: deque(maxlen=RECENT_KEPT))
    cut_short: deque[int] = field(default_factory=lambda: deque(maxlen=256))
    skipped: Counter[int] = field(default_factory=Counter)


def update(state: State, event: ev.Event, world: World) -> None:
    """Take one event in."""
    if isinstance(event, ev.Clear):
        _clear(state, event, world)
    elif isinstance(event, ev.Step):
        _step(state, event, world)
    elif isinstance(event, ev.Backward):
        if event.method == "backward":
            state.recent.append(event)
            _filled(state, event, world)
            # who used a pass is forgotten at some age; decided later, every pass would seem to be used by nobody
            while state.undecided and event.backward - state.undecided[0].losses[0].backward > BACKWARDS_KEPT:
                _decide(state, state.undecided.popleft(), world)
    elif isinstance(event, ev.GradientsRead):
        _read(state, event, world)
    elif isinstance(event, ev.ModuleCalled):
        if event.output_has_graph:
            for watched in state.optimizers.values():
                watched.forward_since_loss = True
    elif isinstance(event, ev.LoaderEpoch):
        state.cut_short.extend(event.pending)
    elif isinstance(event, ev.ScalerCalled) and event.skipped:
        one = state.optimizers.get(event.optimizer or 0)
        for watched in [one] if one is not None else list(state.optimizers.values()):
            watched.losses.clear()
        state.cut_short.extend(b.backward for b in state.recent)


def _filled(state: State, event: ev.Backward, world: World) -> None:
    for ident, optimizer in world.optimizers.items():
        watched = state.optimizers.setdefault(ident, Watched())
        if not watched.filled and any(t in optimizer.tensors for t in event.leaves):
            watched.filled = True


def _read(state: State, event: ev.GradientsRead, world: World) -> None:
    # an input's gradient that is read: the pass was made for it, whatever it left in the parameters
    free = {t for t in event.tensors if not world.holders(t)}
    if not event.tensors:
        for backward in state.recent:
            if backward.backward == event.backward:
                _inspect(state, backward)
    if free:
        for backward in state.recent:
            if free.intersection(backward.leaves):
                _inspect(state, backward)


def _inspect(state: State, backward: ev.Backward) -> None:
    if len(state.inspected) < PATHS_KEPT:
        state.inspected.add(path_of(backward.site))


def _clear(state: State, event: ev.Clear, world: World) -> None:
    for dropped in event.dropped:
        backward = world.backward(dropped.backward)
        if backward is None:
            continue
        if dropped.read:
            _inspect(state, backward)
        if dropped.consumed:
            continue
        for ident, optimizer in world.optimizers.items():
            mine = sum(t in optimizer.tensors for t in dropped.tensors)
            if not mine:
                continue
            watched = state.optimizers.setdefault(ident, Watched())
            if len(watched.losses) < LOSSES_KEPT:
                watched.losses[dropped.backward] = Loss(
                    dropped.backward, backward.site, event.site, backward.detailed, mine
                )
                watched.forward_since_loss = False


def _stepped_within(event: ev.Step, losses: tuple[Loss, ...], world: World) -> bool:
    """Whether another optimizer has stepped over the same tensors since the first of those reverse passes."""
    mine = world.optimizer(event.optimizer).tensors.keys()
    passes = [b.seq for loss in losses if (b := world.backward(loss.backward)) is not None]
    return any(
        o.last_step is not None and o.last_step.seq > min(passes, default=event.seq) and o.tensors.keys() & mine
        for o in world.optimizers.values()
        if o.ident != event.optimizer
    )


def _step(state: State, event: ev.Step, world: World) -> None:
    watched = state.optimizers.setdefault(event.optimizer, Watched())
    watched.steps += 1
    empty = not has_gradient(event)
    if event.index == 0 and empty and not watched.filled and not event.closure:
        watched.first_empty = event.site
    losses, watched.losses = tuple(watched.losses.values()), {}
    if not losses or (event.closure and not empty):
        return  # a closure runs several times in a step, and the optimizer reads each of its results
    if empty and event.closure and _stepped_within(event, losses, world):
        return  # it has another one step in its own step, and clears after it
    used: Site | None = None
    windowed: Path = ()
    if not empty:
        new = [
            b for i in {i for life in event.lives for i in fresh(life.fills)} if (b := world.backward(i)) is not None
        ]
        if not new:
            return  # what the step uses was written by the program itself
        latest = max(new, key=lambda b: b.backward)
        used = latest.site
        if sum(path_of(b.site) == path_of(latest.site) for b in new) > 1:
            windowed = path_of(latest.site)
    state.undecided.append(
        _Undecided(event.optimizer, event, losses, empty, used, windowed, watched.forward_since_loss)
    )
    while len(state.undecided) > UNDECIDED_KEPT:
        _decide(state, state.undecided.popleft(), world)


def _decide(state: State, one: _Undecided, world: World) -> None:
    lost = [
        loss
        for loss in one.losses
        if not world.consumers(loss.backward)
        and loss.backward not in state.cut_short
        and path_of(loss.fill) != one.windowed  # the rest of a longer window: GL-G22
    ]
    if not lost:
        return
    watched = state.optimizers[one.optimizer]
    first = lost[0]
    key = (one.empty, path_of(first.fill), path_of(first.clear))
    case = watched.cases.get(key)
    if case is None:
        if len(watched.cases) >= PATHS_KEPT:
            return
        case = watched.cases[key] = Case(first, one.step, one.empty, one.used)
    case.seen += 1
    case.lost += len(lost)
    case.looked_at += any(loss.detailed for loss in lost)
    case.forward_between += one.forward_between
    case.idle += one.empty and not any(life.moved or life.grad != "none" for life in one.step.lives)
    case.streak = case.streak + 1 if one.step.index == case.last_index + 1 else 1
    case.longest = max(case.longest, case.streak)
    case.streaks += case.streak == 1
    gap = one.step.index - case.last_index
    case.even = case.even + 1 if gap == case.gap else 0
    case.gap, case.last_index = gap, one.step.index


def cases(state: State, world: World) -> list[tuple[int, Watched, Case]]:
    """All regular losses: (optimizer, its record, the case), once the run is over."""
    while state.undecided:
        _decide(state, state.undecided.popleft(), world)
    found = []
    for ident, watched in state.optimizers.items():
        for (_, fill, _), case in watched.cases.items():
            idle = case.idle == case.seen and 2 * case.seen >= watched.steps
            if not case.looked_at or (fill in state.inspected and not idle):
                continue  # what is read may be put to use; where no parameter moves, it was not
            often = case.seen >= 3 and 2 * case.seen >= watched.steps
            if _in_a_row(case) or often or _every_so_many(case) or _short(case, watched):
                found.append((ident, watched, case))
    return found


def _in_a_row(case: Case) -> bool:
    """Step after step.  A program that rejects a batch for its gradient loses a pass now and then: sometimes three
    times in a row, but not as a rule."""
    return case.longest >= 3 and (case.empty or case.seen >= 3 * case.streaks)


def _every_so_many(case: Case) -> bool:
    """Empty steps at even distances: the way the program is written, and no answer to a bad value."""
    return case.empty and case.even >= EVENLY


def _short(case: Case, watched: Watched) -> bool:
    return watched.steps <= 3 and case.seen >= 2


def step_comes_first(watched: Watched, case: Case) -> bool:
    """Whether an empty step is rather one that stands before its backward (G4): a forward pass lies between the clear
    and the step, or the same line stepped before anything was ever filled."""
    if not case.empty:
        return False
    if 2 * case.forward_between > case.looked_at:
        return True
    return watched.first_empty is not None and watched.first_empty.key() == case.step.site.key()
