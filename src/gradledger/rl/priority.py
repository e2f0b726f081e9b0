"""Priorities of many slots, drawn in proportion: sums in a binary tree, in one array of float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class PriorityTree:
    """`slots` numbers of at least 0; `draw` takes slots with probabilities in proportion to them.

    Every sum is the sum of its two children and of nothing else. So the tree is a function of the priorities alone: one
    that was built anew from them is equal to the bit to one that was changed a million times. Setting or drawing M
    slots costs O(M log slots).
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._size = 1 << max(slots - 1, 0).bit_length()
        self._sums = np.zeros(2 * self._size)  # 1 is the root, the children of i are 2 i and 2 i + 1, leaves come last

    @property
    def values(self) -> NDArray[np.float64]:
        """(slots,) the priorities, a view that is only read."""
        return self._sums[self._size : self._size + self._slots]

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._sums[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the tree."""
        return self._sums.nbytes

    def set(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Give `slots` (M,) the priorities `values` (M,); where a slot is named twice the last value counts."""
        at = slots + self._size
        self._sums[at] = values
        while len(at) and at[0] > 1:
            at = np.unique(at // 2)
            self._sums[at] = self._sums[2 * at] + self._sums[2 * at + 1]

    def load(self, values: NDArray[np.float64]) -> None:
        """Take over the priorities (slots,) of another tree."""
        self.set(np.arange(self._slots), values)

    def draw(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """(M,) numbers in [0, 1) -> (M,) slots: where that share of the total lies when priorities lie end to end.

        The total must be above 0. A slot of priority 0 is never drawn.
        """
        at = np.ones(len(shares), dtype=np.int64)
        rest = shares * self.total
        while at.size and at[0] < self._size:
            left = 2 * at
            under = self._sums[left]
            # Rounding can leave a rest behind everything on the right; where nothing lies there it goes left.
            right = (rest >= under) & (self._sums[left + 1] > 0)
            rest = np.where(right, rest - under, rest)
            at = left + right
        return at - self._size
