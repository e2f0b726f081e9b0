"""An optimizer or a scheduler of the program's own class is named by the line that builds it."""

from __future__ import annotations

import torch
from harness import here, watching

from gradledger.core.events import OptimizerMade, SchedulerMade
from gradledger.ledger.probes import optimizers, schedulers


class Lion(torch.optim.SGD):
    def __init__(self, parameters: list[torch.Tensor]) -> None:
        rate = 0.1
        super().__init__(parameters, lr=rate)


class Warm(torch.optim.lr_scheduler.LambdaLR):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, lambda step: 1.0)


def test_own_classes_are_named_by_the_line_that_builds_them() -> None:
    with watching(optimizers, schedulers) as watch:
        optimizer = Lion([torch.zeros(2, requires_grad=True)])
        built = here() - 1
        warm = Warm(optimizer)
        optimizer.step()
        warm.step()
    assert (watch.one(OptimizerMade).site.line, watch.one(OptimizerMade).site.file) == (built, __file__)
    assert watch.one(SchedulerMade).site.line == built + 2
