"""The dynamic programme over memory slots: least seconds for every part of a chain and every amount of memory.

float32, one table over (first block, last block, slots); no table of choices: a plan is read off by asking again which
choice gave the least.  Vectorised over slots and split points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradledger.sweep._nominal import Nominal, State
from gradledger.sweep._plan import Item, Keep, Plan, Segment

Floats = npt.NDArray[np.float32]
Slots = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Rounded:
    """A `State` in slots, for one s at a time."""

    rest: Slots
    tape: Slots


class Table:
    """Solved for one chain: seconds and plans for 0..slots slots of `unit` bytes.

    Sizes are rounded to the nearest slot, tapes so that the sum over neighbours is off by one slot at most; whether a
    plan keeps a budget is for `simulate` to say.
    """

    def __init__(self, chain: Nominal, *, top: int, slots: int) -> None:
        """Solve.

        Args:
            chain: of n blocks.
            top: bytes, the largest amount of memory to solve for.
            slots: how many steps from 0 to top; less where a slot would be less than a byte.
        """
        self.chain, self.top = chain, max(1, top)
        self.slots = min(slots, self.top)
        self.unit = self.top / self.slots
        share = chain.fresh.tape - chain.after.tape
        pin = chain.fresh.rest - chain.after.rest
        sums = self._round(np.concatenate([[0], np.cumsum(chain.after.tape)]))
        tape, rest = np.diff(sums), self._round(chain.after.rest)
        self._after = _Rounded(rest, tape)
        self._fresh = _Rounded(rest + self._round(pin), tape + self._round(share))
        self._shift = self._round(pin)
        n = chain.n
        # V(s, t, m) = seconds + seconds to run everything before s: then a split is one addition.
        self._run_to = np.concatenate([[0.0], np.cumsum(chain.forward_s)]).astype(np.float32)
        # Part (s, t) stands at [s, t] and again at [t, s]: both "begins with s" and "ends with t" are then contiguous,
        # and adding the two is one flat addition (3 times faster than row by row).
        self._values: Floats = np.empty((n, n, self.slots + 1), np.float32)
        self._least = np.full((n, n), self.slots + 1, np.int64)  # slots from which (s, t) is feasible
        self._apart: dict[int, Floats] = {}  # values after a record, where they are neither the same nor shifted
        self._buffer: Floats = np.zeros((n, self.slots + 1), np.float32)
        for s in range(n - 1, -1, -1):
            self._least[s, s:] = self._row(s, chain.fresh, self._fresh, self._values[s, s:])
            self._values[s + 1 :, s] = self._values[s, s + 1 :]
            if not chain.same[s] and not chain.shift[s]:
                row: Floats = np.empty((n - s, self.slots + 1), np.float32)
                self._row(s, chain.after, self._after, row)
                self._apart[s] = row

    def _round(self, sizes: npt.NDArray[np.int64]) -> Slots:
        return np.asarray(np.rint(sizes / self.unit).astype(np.int64))

    def _needs(self, s: int, state: State, last: Slots) -> Slots:
        """Slots that recording and reversing s asks for, for each end."""
        return np.maximum(self._round(state.record[s] + self.chain.base[last]), self._round(state.reverse[s]))

    def _recorded(self, s: int, slots: Slots | int, rounded: _Rounded, first: int, end: int) -> Floats:
        """Seconds (plus `_run_to[s]`) when s is recorded, for the ends first..end-1 behind s, shape (ends, slots)."""
        nxt = s + 1
        index = np.atleast_1d(np.asarray(slots - rounded.tape[s]))
        source = self._apart.get(nxt)
        rows = self._values[nxt, first:end] if source is None else source[first - nxt : end - nxt]
        if source is None and not self.chain.same[nxt]:
            index = index + self._shift[nxt]
        out = rows[:, np.clip(index, 0, self.slots)]
        out[:, index < 0] = np.inf
        out += np.float32(self.chain.tape_s[s]) + self._run_to[s] - self._run_to[nxt]
        return out

    def _row(self, s: int, state: State, rounded: _Rounded, out: Floats) -> Slots:
        """All parts that begin with s, into `out`, shape (n - s, slots + 1); gives the first feasible slot of each."""
        chain, n, size = self.chain, self.chain.n, self.slots + 1
        count, limit, hold = n - s, int(chain.limit[s]), int(rounded.rest[s])
        every, offset = np.arange(size), self._run_to[s]
        out[0] = np.float32(chain.tape_s[s]) + offset
        if count > 1:
            out[1:] = self._recorded(s, every, rounded, s + 1, n)
        out[every[None, :] < self._needs(s, state, np.arange(s, n))[:, None]] = np.inf
        if limit < n - 1:
            out[max(0, limit - s) : count - 1] = np.inf  # such a part would have to be recomputed, and cannot
        least: Slots = np.asarray(np.count_nonzero(np.isinf(out), axis=1))
        if hold >= size:
            return least
        flat_left, flat_sum = out.reshape(-1), self._buffer.reshape(-1)
        # A run may need more than both parts that follow; the parts of most chains imply it.
        runs = np.rint((chain.forward_need(s, state)[:, None] + chain.base[None, s:]) / self.unit).astype(np.int64)
        right = self._least[s + 1 :, s:] + hold
        suspect = np.any(runs > right, axis=0).tolist()
        with np.errstate(over="ignore"):
            for k in range(1, count):
                t = s + k
                width = min(t, limit) - s  # split points s + 1 .. s + width
                if width <= 0 or (t >= limit and t != n - 1):
                    continue
                row, length = out[k], width * size - hold
                flat_right = self._values[t, s + 1 : s + 1 + width].reshape(-1)
                np.add(flat_left[hold : hold + length], flat_right[:length], out=flat_sum[:length])
                cand = self._buffer[:width, : size - hold]
                if suspect[k]:
                    above = np.flatnonzero(runs[:width, k] > np.maximum(right[:width, k], least[:width]))
                    for u in above.tolist():
                        cand[u, : max(0, int(runs[u, k]) - hold)] = np.inf
                best = np.minimum.reduce(cand, axis=0)
                best -= offset
                np.minimum(row[hold:], best, out=row[hold:])
                least[k] = np.count_nonzero(np.isinf(row))
        return least

    def seconds(self) -> Floats:
        """Least seconds of a whole step for 0..slots slots; infinite where there is no plan."""
        row: Floats = self._values[0, self.chain.n - 1]
        return row

    def expect(self, after: bool, s: int, t: int, memory: int) -> float:
        """Least seconds of a part in this many bytes; where rounding leaves none, those of the least slots it needs."""
        values, shift = self._begins(after, s)
        row = values[t - s]
        seconds = row[min(int(memory / self.unit) + shift, self.slots)]
        if np.isinf(seconds):
            seconds = row[min(np.count_nonzero(np.isinf(row)), self.slots)]
        return float(seconds - self._run_to[s])

    def plan(self, slots: int) -> Plan:
        """The plan for this many slots.  `seconds()[slots]` must be finite."""
        return read_off(self.chain.n, slots, self._choose)

    def _begins(self, after: bool, s: int) -> tuple[Floats, int]:
        """Values of the parts that begin with s in a state, and the shift of the slots at which they stand."""
        if after and s in self._apart:
            return self._apart[s], 0
        return self._values[s, s:], int(self._shift[s]) if after and not self.chain.same[s] else 0

    def _choose(self, after: bool, s: int, t: int, m: int) -> Choice:
        chain = self.chain
        if after and s not in self._apart:  # stands in the table as fresh, with so many slots more: ask what was solved
            after, m = False, min(m + int(self._shift[s]), self.slots)
        state, rounded = (chain.after, self._after) if after else (chain.fresh, self._fresh)
        keep = Choice(None, m - int(rounded.tape[s]))
        record = np.inf
        if m >= int(self._needs(s, state, np.array([t]))[0]):
            seconds = np.float32(chain.tape_s[s]) + self._run_to[s]
            record = float(self._recorded(s, m, rounded, t, t + 1)[0, 0] if t > s else seconds)
        hold, width = int(rounded.rest[s]), min(t, int(chain.limit[s])) - s
        if width <= 0 or m < hold:
            return keep
        cand = self._values[t, s + 1 : s + 1 + width, m - hold] + self._begins(after, s)[0][:width, m]
        cand -= self._run_to[s]
        cand[np.rint((chain.forward_need(s, state)[:width] + chain.base[t]) / self.unit) > m] = np.inf
        best = int(np.argmin(cand))
        return Choice(s + 1 + best, m - hold) if float(cand[best]) < record else keep


_Nest = list[Any]  # of block numbers and lists of the same


class Choice(NamedTuple):
    """What a part begins with: a split at this block, or (None) its first block recorded; and the memory left."""

    split: int | None
    left: int


def read_off(n: int, memory: int, choose: Callable[[bool, int, int, int], Choice]) -> Plan:
    """The plan of n blocks that `choose(after a record?, first, last, memory)` makes, part by part."""
    root: _Nest = []
    work: list[tuple[bool, int, int, int, _Nest]] = [(False, 0, n - 1, memory, root)]
    while work:
        after, s, t, m, items = work.pop()
        while s <= t:
            split, left = choose(after, s, t, m)
            if split is None:
                items.append(s)
                s, after = s + 1, True
            else:
                inner: _Nest = []
                items.append(inner)
                work.append((after, s, split - 1, m, inner))
                s, after = split, False
            m = left
    return Plan(_items(root))


def _items(root: _Nest) -> tuple[Item, ...]:
    """Nested lists of block numbers as items; without recursion, since plans may be nested deeply."""
    done: list[tuple[_Nest, list[Item], int]] = [(root, [], 0)]
    while True:
        source, out, at = done.pop()
        if at == len(source):
            if not done:
                return tuple(out)
            done[-1][1].append(Segment(tuple(out)))
            continue
        done.append((source, out, at + 1))
        item = source[at]
        if isinstance(item, int):
            out.append(Keep(item))
        else:
            done.append((item, [], 0))
