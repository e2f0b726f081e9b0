"""Random chains, all trees over small ones, and a toy executor whose memory is what Python itself keeps alive."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from typing import Literal

from hypothesis import strategies as st

from gradledger.sweep._action import Action
from gradledger.sweep._cost import BlockCost, Costs
from gradledger.sweep._plan import Item, Keep, Plan, Segment

Sharing = Literal["own", "neighbours", "skips"]


def chain(
    seed: int,
    n: int,
    *,
    sharing: Sharing = "neighbours",
    forced: float = 0.0,
    largest: int = 12,
    run_scratch: int = 0,
) -> Costs:
    """A chain of n blocks, the loss last, whose numbers agree with each other.

    Args:
        seed: of the random numbers.
        n: blocks.
        sharing: what graphs save: "own" storages and their input; with "neighbours" their output too, so that one
            storage is in two graphs; with "skips" boundaries also carry storages of earlier blocks along.
        forced: chance that a block may not be recomputed.
        largest: bytes of the largest storage.
        run_scratch: most bytes that a run without a tape takes and a recorded one does not.
    """
    rng = random.Random(seed)
    storages: list[int] = []

    def new() -> int:
        storages.append(rng.randint(1, largest))
        return len(storages) - 1

    boundaries: list[frozenset[int]] = [frozenset()]
    carried: set[int] = set()
    for _ in range(n - 1):
        made = new()
        boundaries.append(frozenset({made}) | carried)
        if sharing == "skips":
            carried = {c for c in carried if rng.random() < 0.7} | ({made} if rng.random() < 0.4 else set())
    storages.append(1)
    boundaries.append(frozenset({len(storages) - 1}))

    def size(ids: Iterable[int]) -> int:
        return sum(storages[i] for i in ids)

    cotangents = [0, *(size(b) for b in boundaries[1:])]
    blocks = []
    for i in range(n):
        saved = {new()} if rng.random() < 0.7 else set()
        if rng.random() < 0.6:
            saved |= boundaries[i]
        if sharing != "own" and rng.random() < 0.5:
            saved |= boundaries[i + 1]
        scratch, gradients, seconds = rng.randint(0, largest // 3), rng.randint(0, largest // 2), rng.randint(1, 20)
        blocks.append(
            BlockCost(
                name=f"block{i}",
                forward_s=seconds,
                record_s=seconds,
                reverse_s=2 * seconds,
                forward_peak=size(boundaries[i + 1] - boundaries[i])
                + scratch
                + (rng.randint(0, run_scratch) if run_scratch else 0),
                record_peak=size((saved | boundaries[i + 1]) - boundaries[i]) + scratch,
                reverse_peak=cotangents[i] + gradients + scratch,
                saved=frozenset(saved),
                grad_bytes=gradients,
                keep_reason="draws from numpy" if i < n - 1 and rng.random() < forced else None,
            )
        )
    return Costs(tuple(blocks), tuple(storages), tuple(boundaries), tuple(cotangents))


@st.composite
def chains(draw: st.DrawFn, *, most: int = 16) -> Costs:
    """Chains of every kind of sharing, with and without blocks that are kept by force."""
    return chain(
        draw(st.integers(0, 2**32)),
        draw(st.integers(1, most)),
        sharing=draw(st.sampled_from(["own", "neighbours", "skips"])),
        forced=draw(st.sampled_from([0.0, 0.0, 0.2])),
        largest=draw(st.sampled_from([12, 1000, 10**9])),
        run_scratch=draw(st.sampled_from([0, 0, 30])),
    )


@st.composite
def plans(draw: st.DrawFn, *, most: int = 12, places: bool = True) -> tuple[Plan, int]:
    """Any valid plan, and its number of blocks."""
    n = draw(st.integers(1, most))
    rng = random.Random(draw(st.integers(0, 2**32)))

    def place(first: int | None = None) -> Literal["host", "disk"] | None:
        return rng.choice(["host", "disk"]) if places and first != 0 and rng.random() < 0.3 else None

    def items(start: int, end: int, depth: int) -> tuple[Item, ...]:
        out: list[Item] = []
        while start < end:
            stop = rng.randint(start + 1, end)
            if depth < 4 and rng.random() < 0.5:
                out.append(Segment(items(start, stop, depth + 1), place(start)))
                start = stop
            else:
                out.append(Keep(start, place()))
                start += 1
        return tuple(out)

    return Plan((*items(0, n - 1, 0), Keep(n - 1))), n


def all_trees(n: int) -> list[Plan]:
    """Every plan of n blocks; a segment that holds nothing but one segment is the inner one, and left out."""
    return [Plan((*items, Keep(n - 1))) for items in _sequences(0, n - 1, True)]


@cache
def _sequences(start: int, end: int, whole: bool) -> tuple[tuple[Item, ...], ...]:
    if start == end:
        return ((),)
    found: list[tuple[Item, ...]] = []
    for stop in range(start + 1, end + 1):
        heads: list[Item] = [Keep(start)] if stop == start + 1 else []
        if whole or stop < end:
            heads += [Segment(inner) for inner in _sequences(start, stop, False)]
        found += [(head, *rest) for head in heads for rest in _sequences(stop, end, True)]
    return tuple(found)


class Meter:
    """Bytes of the toy storages that are alive."""

    def __init__(self) -> None:
        self.level = 0


class ToyStorage:
    """Takes bytes while anything refers to it."""

    def __init__(self, meter: Meter, size: int) -> None:
        self.meter, self.size = meter, size
        meter.level += size

    def __del__(self) -> None:
        self.meter.level -= self.size


def toy_levels(actions: Iterable[Action], costs: Costs) -> list[tuple[int, int]]:
    """(before, after) of each action when the schedule is really carried out with objects that Python frees.

    What a block makes is made anew at each run; what it passes on is the object it was given.
    """
    n, meter = len(costs), Meter()
    held: dict[int, dict[int, ToyStorage]] = {}
    tapes: dict[int, dict[int, ToyStorage]] = {}
    away: dict[tuple[str, int], list[int]] = {}
    gradients: list[ToyStorage] = []
    current: dict[int, ToyStorage] | None = {}
    at = 0
    cotangent: ToyStorage | None = None
    loss: object = None
    levels: list[tuple[int, int]] = []
    for action in actions:
        kind, i = action.kind, action.block
        if kind == "reverse":
            current, at = None, -1
            if i == n - 1:
                cotangent = ToyStorage(meter, costs.cotangents[n])
        before = meter.level
        if kind in ("run", "record"):
            given = current if at == i else held.get(i, {})
            assert given is not None
            there = dict(given)
            wanted = costs.boundaries[i + 1] | (costs.blocks[i].saved if kind == "record" else frozenset())
            there |= {s: ToyStorage(meter, costs.storages[s]) for s in wanted if s not in there}
            if kind == "record":
                tapes[i] = {s: there[s] for s in costs.blocks[i].saved}
            current, at = {s: there[s] for s in costs.boundaries[i + 1]}, i + 1
            if at == n:
                loss = current
            del there, given
        elif kind == "hold":
            held[i] = dict(current or {}) if at == i else {}
        elif kind == "drop":
            del held[i]
        elif kind == "reverse":
            del tapes[i]
            cotangent = ToyStorage(meter, costs.cotangents[i])
            gradients.append(ToyStorage(meter, costs.blocks[i].grad_bytes))
        else:
            store, key = (held, "held") if kind.endswith("held") else (tapes, "tape")
            if kind.startswith("offload"):
                away[key, i] = list(store.pop(i))
            else:
                store[i] = {s: ToyStorage(meter, costs.storages[s]) for s in away.pop((key, i))}
        levels.append((before, meter.level))
    assert loss is not None
    assert cotangent is not None
    return levels
