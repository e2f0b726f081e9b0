"""Sizes a dynamic programme can add up: what each choice adds to the level, block by block.

A storage that neighbours share (a block's output that it saves and that the next block saves as its input) counts once;
what blocks further apart share (a skip connection carried along) counts each time it is held, so that the nominal need
of a plan is its need, or more, and never less.

Two states of a block's input: *fresh* (made by a run, or held: its bytes are ours to count) and *after a record* (the
tape of the block before is alive, and what it saves is counted there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradledger.sweep._cost import Costs

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class State:
    """Bytes for each block s whose input is in this state; needs are levels above what is alive outside."""

    rest: Ints
    """Boundary s, as far as it is not counted elsewhere: what a hold costs."""
    tape: Ints
    """What recording s adds for good."""
    record: Ints
    """Highest level while s is recorded; `Nominal.base` of the part's end comes on top."""
    reverse: Ints
    """Highest level in the VJP of s and just after, cotangents and gradients included."""


@dataclass(frozen=True, slots=True)
class Nominal:
    """A chain in the terms of the recursion

    T(s, t, m) = min( record s: record_s + T'(s+1, t, m - tape(s)) + reverse_s;
                      split at u: forward(s..u-1) + T(u, t, m - rest(s)) + T(s, u-1, m) )

    with T' for the state after a record.  Reference: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova (2019), "Optimal
    checkpointing for heterogeneous chains: how to train deep neural networks with limited memory".
    """

    n: int
    fresh: State
    after: State
    same: tuple[bool, ...]
    """For each s: both states are equal."""
    shift: tuple[bool, ...]
    """For each s: the states differ by a constant (what the tape before saves of boundary s, s keeps alive as well)."""
    base: Ints
    """For each end t: gradients of the blocks behind t, the loss, and the cotangent that waits for t."""
    run: Ints
    """For each block j: highest level of its run above what is held and outside; its input is counted."""
    first_run: Ints
    """The same where its input is the held boundary."""
    limit: Ints
    """For each s: the first block from s on that may not be recomputed."""
    forward_s: npt.NDArray[np.float64]
    tape_s: npt.NDArray[np.float64]
    """Seconds to record and to reverse."""

    def forward_need(self, s: int, state: State) -> Ints:
        """For u = s + 1, s + 2, ...: highest level of running s..u-1 with boundary s held, without `base`."""
        needs = self.run[s : self.n - 1].copy()
        if len(needs):
            needs[0] = self.first_run[s]
        return np.asarray(np.maximum.accumulate(needs) + state.rest[s])

    def keep_all(self) -> int:
        """Nominal need of the plan that keeps every tape."""
        need = held = 0
        for s in range(self.n):
            state = self.after if s else self.fresh
            need = max(need, held + int(state.record[s]), held + int(state.reverse[s]))
            held += int(state.tape[s])
        return need


def nominal(costs: Costs) -> Nominal:
    """Add up what `costs` say."""
    n, blocks, bounds = len(costs), costs.blocks, costs.boundaries
    none: frozenset[int] = frozenset()
    saved = [b.saved | (bounds[n] if i == n - 1 else none) for i, b in enumerate(blocks)]
    before = [none, *saved[:-1]]
    size = costs.size

    def ints(values: Any) -> Ints:
        return np.fromiter(values, np.int64)

    grads = [0] * n  # gradients (and the loss) that are there when t is the last block not yet reversed
    total = size(bounds[n])
    for t in range(n - 2, -1, -1):
        total += blocks[t + 1].grad_bytes
        grads[t] = total
    cotangents = costs.cotangents
    base = [grads[t] + (cotangents[t + 1] if t < n - 1 else 0) for t in range(n)]
    behind = [cotangents[s] + (grads[s - 1] if s else total + blocks[0].grad_bytes) for s in range(n)]

    def state(pinned: list[frozenset[int]]) -> State:
        tape = ints(size(saved[s] - pinned[s]) for s in range(n))
        rest = ints(size(bounds[s] - pinned[s]) for s in range(n))
        record = ints(
            max(
                int(rest[s]) + blocks[s].record_peak,
                size((bounds[s] | saved[s] | bounds[s + 1]) - pinned[s]),
            )
            for s in range(n)
        )
        reverse = ints(
            max(int(tape[s]) + grads[s] + cotangents[s + 1] + blocks[s].reverse_peak, behind[s]) for s in range(n)
        )
        return State(rest, tape, record, reverse)

    bound = [size(b) for b in bounds]
    limit = [n - 1] * n
    for s in range(n - 2, -1, -1):
        limit[s] = s if blocks[s].keep_reason is not None else limit[s + 1]
    return Nominal(
        n=n,
        fresh=state([none] * n),
        after=state(before),
        same=tuple(not (before[s] & (bounds[s] | saved[s])) for s in range(n)),
        shift=tuple(before[s] & saved[s] == before[s] & bounds[s] for s in range(n)),
        base=ints(base),
        run=ints(bound[j] + max(blocks[j].forward_peak, bound[j + 1]) for j in range(n)),
        first_run=ints(max(blocks[j].forward_peak, bound[j + 1]) for j in range(n)),
        limit=ints(limit),
        forward_s=np.array([b.forward_s for b in blocks]),
        tape_s=np.array([b.record_s + b.reverse_s for b in blocks]),
    )
