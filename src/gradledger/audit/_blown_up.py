"""Runs that blow up by the size of their steps: how fast the gradients of an optimizer grow until they overflow.

Near a minimum a step of plain gradient descent multiplies a deviation by 1 - lr * h, with the curvature h: gradients
that grow by a factor r each step say that lr * h is 1 + r.  A loss that is n times smaller has n times less of it.
An overflow that comes from one operation (a logarithm of zero) follows no step that is longer than the weights are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradledger.core.events import StepMeasured

FAR = 100.0  # what gradients have grown by when it is told


@dataclass(slots=True)
class Growth:
    """Norms of all gradients that one optimizer consumed: the first, the latest one before they overflowed (`over`),
    and the steps between them; `leap`: some update was longer than the values that it changed."""

    first: float = 0.0
    last: float = 0.0
    begun: int = 0
    steps: int = 0
    leap: bool = False
    over: bool = False

    def take(self, event: StepMeasured) -> None:
        """Take one step."""
        if self.over:
            return
        norm = math.hypot(*event.gradients)
        if not math.isfinite(norm):
            self.over = True
        elif self.first == 0:
            self.first = self.last = norm
            self.begun = event.iteration
        else:
            self.last, self.steps = norm, event.iteration - self.begun
            self.leap = self.leap or math.hypot(*event.updates) > math.hypot(*event.values)

    @property
    def rate(self) -> float | None:
        """By what the gradients grew in one step, on average; None when the run did not blow up in this way."""
        if not (self.over and self.leap) or self.steps < 1 or self.last < FAR * self.first:
            return None
        return float((self.last / self.first) ** (1 / self.steps))


__all__ = ["Growth"]
