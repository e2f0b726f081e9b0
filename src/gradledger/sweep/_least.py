"""The least memory a chain can be run in, to the byte, and a plan that does so.

The recursion of `_nominal` with peaks in the place of seconds, so no slots and no rounding.
"""

from __future__ import annotations

import numpy as np

from gradledger.sweep._nominal import Ints, Nominal, State
from gradledger.sweep._plan import Plan
from gradledger.sweep._table import Choice, Table, read_off

_NEVER = np.int64(2**62)


class Least:
    """Nominal bytes for every part of a chain."""

    def __init__(self, chain: Nominal) -> None:
        self.chain = chain
        n = chain.n
        self._fresh: Ints = np.full((n, n), _NEVER, np.int64)
        self._after: Ints = np.full((n, n), _NEVER, np.int64)
        for s in range(n - 1, -1, -1):
            self._row(s, chain.fresh, self._fresh[s])
            if chain.same[s]:
                self._after[s] = self._fresh[s]
            else:
                self._row(s, chain.after, self._after[s])

    @property
    def bytes(self) -> int:
        """Least nominal bytes of a whole step."""
        return int(self._fresh[0, self.chain.n - 1])

    def _row(self, s: int, state: State, out: Ints) -> None:
        chain, n = self.chain, self.chain.n
        limit, rest = int(chain.limit[s]), int(state.rest[s])
        record = np.maximum(state.record[s] + chain.base[s:], state.reverse[s])
        record[1:] = np.maximum(record[1:], state.tape[s] + self._after[s + 1, s + 1 :] if s + 1 < n else 0)
        forward = chain.forward_need(s, state)
        for t in range(s, n):
            if t >= limit and t != n - 1:
                continue
            out[t] = record[t - s]
            width = min(t, limit) - s
            if width > 0:
                split = np.maximum(forward[:width] + chain.base[t], self._fresh[s + 1 : s + 1 + width, t] + rest)
                out[t] = min(out[t], np.maximum(split, out[s : s + width]).min())

    def plan(self, memory: int, table: Table) -> Plan:
        """A plan within this many nominal bytes (at least `bytes`), guided by the seconds that `table` expects."""

        def choose(after: bool, s: int, t: int, m: int) -> Choice:
            chain = self.chain
            state, own = (chain.after, self._after) if after else (chain.fresh, self._fresh)
            tape, rest = int(state.tape[s]), int(state.rest[s])
            keeping = max(int(state.record[s] + chain.base[t]), int(state.reverse[s]))
            if t > s:
                keeping = max(keeping, tape + int(self._after[s + 1, t]))
            best = np.inf
            split: int | None = None
            if keeping <= m:
                best = float(chain.tape_s[s]) + (table.expect(True, s + 1, t, m - tape) if t > s else 0.0)
            width = min(t, int(chain.limit[s])) - s
            if width > 0:
                ends = slice(s + 1, s + 1 + width)
                need = np.maximum(chain.forward_need(s, state)[:width] + chain.base[t], self._fresh[ends, t] + rest)
                need = np.maximum(need, own[s, s : s + width])
                run = np.cumsum(chain.forward_s[s : s + width])
                for u in (s + 1 + np.flatnonzero(need <= m)).tolist():
                    seconds = float(run[u - s - 1])
                    seconds += table.expect(False, u, t, m - rest) + table.expect(after, s, u - 1, m)
                    if seconds < best:
                        best, split = seconds, u
            return Choice(split, m - (tape if split is None else rest))

        return read_off(self.chain.n, memory, choose)
