"""The recorder: numbers, detail, guard, and steady iterations that are counted instead of told."""

from __future__ import annotations

import pytest
import torch
from harness import watching
from torch import nn

from gradledger.core.events import Clear, ModeSet, Step
from gradledger.ledger._recorder import Recorder
from gradledger.ledger._sink import MemorySink


def train(steps: int, clear_every: int = 1) -> tuple[Recorder, list[Step], list[Clear]]:
    with watching() as w:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(steps):
            if i % clear_every == 0:
                optimizer.zero_grad()
            model(torch.ones(2, 3)).mean().backward()
            optimizer.step()
    return w.session.recorder, w.all(Step), w.all(Clear)


@pytest.mark.parametrize(("steps", "clear_every"), [(150, 1), (3000, 1), (3000, 8)])
def test_sums_of_weights_are_the_true_counts(steps: int, clear_every: int) -> None:
    _, told, clears = train(steps, clear_every)
    assert sum(e.weight for e in told) == pytest.approx(steps, rel=0.06)
    assert sum(e.weight for e in clears) == pytest.approx(steps / clear_every, rel=0.06)
    if steps == 150:
        assert len(told) == steps


def test_a_long_steady_run_is_mostly_counted() -> None:
    recorder, told, _ = train(4000)
    assert recorder.steady.counted_only > 3000
    assert len(told) < 700


def test_an_iteration_that_differs_is_told_with_the_one_before_it() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(1200):
            if i != 1111:
                optimizer.zero_grad()
            model(torch.ones(2, 3)).mean().backward()
            optimizer.step()
    told = {e.iteration for e in w.all(Step)}
    assert {1110, 1111} <= told
    missed = [e for e in w.all(Step) if len(e.lives[0].fills) == 2]
    assert [e.iteration for e in missed] == [1111]


def test_a_fact_outside_the_everyday_cycle_makes_its_iteration_told() -> None:
    with watching() as w:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(1200):
            if i == 1155:
                model.eval()
            optimizer.zero_grad()
            model(torch.ones(2, 3)).mean().backward()
            optimizer.step()
    assert [e.iteration for e in w.all(ModeSet)] == [1155]
    assert 1155 in {e.iteration for e in w.all(Step)}
    numbers = [e.seq for e in w.sink.events]
    assert numbers == sorted(numbers)


def test_the_guard_counts_and_swallows_our_errors_but_not_the_programs() -> None:
    recorder = Recorder(MemorySink())
    with recorder.guard("here"):
        raise RuntimeError("ours")
    assert dict(recorder.failures) == {"here: RuntimeError: ours": 1}
    with pytest.raises(KeyboardInterrupt), recorder.guard("here"):
        raise KeyboardInterrupt


def test_numbers_are_never_given_twice() -> None:
    recorder = Recorder(MemorySink())
    seen = set()
    for _ in range(200):
        seen.add(recorder.tensor_id(torch.ones(1)))
    assert len(seen) == 200
