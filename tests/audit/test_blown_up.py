"""Runs that blow up by the size of their steps, on gradients made by hand: of a parabola, and of what is none."""

from __future__ import annotations

import math

import pytest

from gradledger.audit._blown_up import Growth
from gradledger.core.events import StepMeasured


def descend(factor: float, steps: int, overflow: float = math.inf) -> Growth:
    """Gradient descent on a parabola: the deviation is multiplied by `factor` in each step.  Its gradient is told as
    infinite from `overflow` on."""
    growth, deviation = Growth(), 1.0
    for iteration in range(steps):
        gradient, update = 2 * abs(deviation), abs(deviation * (factor - 1))
        growth.take(
            StepMeasured(
                iteration=iteration,
                optimizer=1,
                tensors=(1,),
                gradients=(gradient if gradient < overflow else math.inf,),
                values=(abs(deviation),),
                updates=(update,),
            )
        )
        deviation *= factor
    return growth


@pytest.mark.parametrize("rate", [1.5, 3.0, 40.0])
def test_the_rate_is_what_the_deviation_is_multiplied_by(rate: float) -> None:
    assert descend(-rate, 60, overflow=1e9).rate == pytest.approx(rate, rel=1e-9)


def test_growth_alone_is_no_harm() -> None:
    assert descend(-3.0, 12).rate is None, "it never overflows"
    assert descend(-0.9, 60).rate is None, "it converges"
    assert descend(1.5, 60, overflow=1e9).rate is None, "each step is shorter than the weight"
    assert descend(-3.0, 4, overflow=50.0).rate is None, "an overflow after hardly any growth has another cause"


def test_steps_that_were_not_measured_are_counted() -> None:
    growth = Growth()
    for iteration, norm in ((0, 1.0), (1, 3.0), (8, 3.0**8), (9, math.inf)):
        growth.take(
            StepMeasured(
                iteration=iteration, optimizer=1, tensors=(1,), gradients=(norm,), values=(1.0,), updates=(4.0,)
            )
        )
    assert growth.rate == pytest.approx(3.0)
