"""GL-G03: clears exist but are rarer than steps."""

from __future__ import annotations

from audit.build import Run, judge, lines
from gradledger.audit.rules import g01_zero_grad_missing as g01
from gradledger.audit.rules import g03_cleared_too_rarely as g03


def epochs(count: int, batches: int, *, inside: bool = False, accumulate: bool = False) -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(count):
        if not inside:
            run.zero_grad(opt, line=6)
        for _ in range(batches):
            if inside:
                run.zero_grad(opt, line=8)
            run.backward(net, line=9)
            if not accumulate:
                run.step(opt, line=10)
        if accumulate:
            run.step(opt, line=10)
    return run


def test_a_clear_per_epoch_is_named_with_its_multiple() -> None:
    run = epochs(4, 10)
    (finding,) = judge(g03, run)
    assert finding.site.line == 6
    assert lines(finding) >= {6, 9, 10}
    assert finding.evidence["largest_multiple"] == 10
    assert finding.evidence["steps_per_clear"] == 10.0
    assert judge(g01, run) == [], "exactly one of the two speaks"


def test_a_single_clear_before_the_loop_counts_as_a_clear() -> None:
    (finding,) = judge(g03, epochs(1, 12))
    assert finding.evidence["clears"] == 1


def test_clears_inside_and_accumulation_are_silent() -> None:
    assert judge(g03, epochs(4, 10, inside=True)) == []
    assert judge(g03, epochs(4, 10, accumulate=True)) == []


def test_a_clear_that_stops_late_is_found() -> None:
    run = epochs(200, 1)
    tensors = [t for e in run.events if hasattr(e, "groups") for t in e.groups[0].tensors]
    for _ in range(5):
        run.backward(*tensors, line=9)
        run.step(1, line=10)
    (finding,) = judge(g03, run)
    assert finding.iteration == 200
