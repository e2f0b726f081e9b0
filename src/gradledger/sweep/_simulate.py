"""What a schedule will need: bytes at every action and seconds in all, from measured costs.  No torch.

Exact by sets: a storage that two tapes, a held boundary and the current boundary share counts once, and goes when the
last of them goes.  What comes back from the host or the disk is a fresh copy and shares with nothing older.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gradledger.sweep._action import Action, Place, PlanError, validate_actions
from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Plan

BANDWIDTH: Final[Mapping[Place, float]] = {"host": 6e9, "disk": 0.5e9}
"""Bytes a second assumed where no measurement is handed in: modest PCIe, and a modest disk."""


class Level(NamedTuple):
    """Bytes around one action.

    `before` is the level when it starts: a reverse has let the current boundary go by then, and the first has its seed
    cotangent.  `peak` is the highest level while it runs.
    """

    action: Action
    before: int
    peak: int
    after: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """A schedule, played through."""

    peak: int
    """Bytes: the highest level."""
    at_action: int
    """Index of the (first) action that reaches it."""
    levels: tuple[Level, ...]
    seconds: float
    """Predicted seconds of one step, waits for copies included."""


# A storage as it lies in memory: its id, and which copy of it (0 until something was fetched).
_Copy = tuple[int, int]


class _Memory:
    """Storages alive, counted by who needs them."""

    __slots__ = ("_sizes", "_uses", "level")

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._uses: dict[_Copy, int] = {}
        self.level = 0

    def take(self, copies: frozenset[_Copy]) -> None:
        uses = self._uses
        for copy in copies:
            count = uses.get(copy, 0)
            uses[copy] = count + 1
            if not count:
                self.level += self._sizes[copy[0]]

    def release(self, copies: frozenset[_Copy]) -> None:
        uses = self._uses
        for copy in copies:
            uses[copy] -= 1
            if not uses[copy]:
                del uses[copy]
                self.level -= self._sizes[copy[0]]


def simulate(
    plan: Plan | Sequence[Action], costs: Costs, *, bandwidth: Mapping[Place, float] | None = None
) -> Simulation:
    """Play a plan, or its actions, through.

    Alive at any time: what the tapes save, held boundaries, the current boundary, the loss once it is there, the
    cotangent, and the parameter gradients of blocks reversed so far.  A move out is waited for; a fetch runs beside the
    computing steps, one fetch at a time, and its use waits for it.

    Args:
        plan: a Plan, or the actions of one.
        costs: of the same chain.
        bandwidth: bytes a second to and from "host" and "disk"; `BANDWIDTH` where a place is missing.

    Raises PlanError when the plan does not fit the chain.
    """
    n = len(costs)
    if isinstance(plan, Plan):
        plan.validate(n)
        actions = plan.actions()
    else:
        actions = tuple(plan)
        validate_actions(actions, n)
    return play(actions, costs, bandwidth=bandwidth)


def play(actions: Sequence[Action], costs: Costs, *, bandwidth: Mapping[Place, float] | None = None) -> Simulation:
    """`simulate` for actions known to be valid."""
    speed = dict(BANDWIDTH) | dict(bandwidth or {})
    for place, rate in speed.items():
        if not rate > 0:
            raise PlanError(
                got=f"{rate!r} bytes a second to {place}",
                wanted="more than zero",
                where="bandwidth",
                next_step="measure it",
            )
    n, blocks, boundaries = len(costs), costs.blocks, costs.boundaries
    memory = _Memory(costs.storages)
    nothing: frozenset[_Copy] = frozenset()
    current: tuple[int, frozenset[_Copy]] = (0, nothing)
    held: dict[int, frozenset[_Copy]] = {}
    tapes: dict[int, frozenset[_Copy]] = {}
    away: dict[tuple[bool, int], tuple[frozenset[_Copy], Place]] = {}  # (held?, block) -> what is out, and where
    arrives: dict[tuple[bool, int], float] = {}
    other = 0  # cotangents and parameter gradients
    copies = 0
    clock = lane = 0.0
    levels: list[Level] = []
    for action in actions:
        kind, i = action.kind, action.block
        own = 0
        if kind == "run" or kind == "record":
            source = current[1] if current[0] == i else held.get(i, nothing)
            clock = max(clock, arrives.pop((True, i), 0.0))
            which = dict(source)
            before = memory.level + other
            if kind == "record":
                own, spent = blocks[i].record_peak, blocks[i].record_s
                tape = frozenset((s, which.get(s, 0)) for s in blocks[i].saved)
                tapes[i] = tape
                memory.take(tape)
            else:
                own, spent = blocks[i].forward_peak, blocks[i].forward_s
            clock += spent
            result = frozenset((s, which.get(s, 0)) for s in boundaries[i + 1])
            memory.take(result)
            memory.release(current[1])
            current = (i + 1, result)
            if i + 1 == n:
                memory.take(result)  # the caller gets the loss: alive to the end
        elif kind == "reverse":
            memory.release(current[1])
            current = (-1, nothing)
            if i == n - 1:
                other += costs.cotangents[n]
            clock = max(clock, arrives.pop((False, i), 0.0)) + blocks[i].reverse_s
            before, own = memory.level + other, blocks[i].reverse_peak
            memory.release(tapes.pop(i))
            other += costs.cotangents[i] - costs.cotangents[i + 1] + blocks[i].grad_bytes
        else:
            before = memory.level + other
            if kind == "hold":
                held[i] = current[1] if current[0] == i else nothing
                memory.take(held[i])
            elif kind == "drop":
                memory.release(held.pop(i))
            else:
                store, key = (held, (True, i)) if kind.endswith("_held") else (tapes, (False, i))
                if action.place is not None:  # out
                    left = {c for c in store[i] if c[0] in blocks[i].stays} if store is tapes else nothing
                    away[key] = (store[i] - left, action.place)
                    memory.release(away[key][0])
                    store[i] = frozenset(left)
                    clock += sum(costs.storages[s] for s, _ in away[key][0]) / speed[action.place]
                else:
                    out, place = away.pop(key)
                    copies += 1
                    fresh = frozenset((s, copies) for s, _ in out)
                    memory.take(fresh)
                    store[i] |= fresh
                    lane = max(lane, clock) + sum(costs.storages[s] for s, _ in out) / speed[place]
                    arrives[key] = lane
        after = memory.level + other
        levels.append(Level(action, before, max(before + own, after), after))
    at = max(range(len(levels)), key=lambda index: levels[index].peak)
    return Simulation(levels[at].peak, at, tuple(levels), clock)
