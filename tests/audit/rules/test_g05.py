"""GL-G05: one graph walked more than once between clears."""

from __future__ import annotations

from audit.build import Run, judge, lines
from gradledger.audit.rules import g05_repeated_backward as g05


def twice(steps: int, *, clear_between: bool = False, how: str = "repeats", **values: object) -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(steps):
        run.zero_grad(opt, line=6)
        first = run.backward(net, line=7, retain_graph=True)
        if clear_between:
            run.zero_grad(opt, line=8)
        again = {} if clear_between else {how: first if how == "repeats" else (first,)}
        run.backward(net, line=9, **again, **values)  # type: ignore[arg-type]
        run.step(opt, line=10)
    return run


def test_the_same_loss_walked_twice() -> None:
    (finding,) = judge(g05, twice(8))
    assert lines(finding) >= {7, 9}
    assert finding.evidence["multiple"] == 2


def test_a_sum_that_contains_a_loss_already_walked() -> None:
    (finding,) = judge(g05, twice(8, how="covers"))
    assert "term of the loss" in finding.message


def test_cleared_in_between_or_a_jacobian_row_is_silent() -> None:
    assert judge(g05, twice(8, clear_between=True)) == []
    assert judge(g05, twice(8, root_shape=(5,))) == []


def test_a_single_check_in_a_long_run_is_silent() -> None:
    run = twice(1)
    net, opt = run.module("n2", line=20), None
    opt = run.optimizer(net, line=21)
    for _ in range(10):
        run.backward(net, line=22)
        run.step(opt, line=23)
        run.zero_grad(opt, line=24)
    assert judge(g05, run) == []


def test_three_walks_are_three() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(5):
        run.zero_grad(opt, line=6)
        first = run.backward(net, line=7)
        second = run.backward(net, line=8, repeats=first)
        run.backward(net, line=9, repeats=second)
        run.step(opt, line=10)
    assert max(f.evidence["multiple"] for f in judge(g05, run)) == 3  # type: ignore[type-var]
