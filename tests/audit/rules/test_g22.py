"""GL-G22: the incomplete window at the end of an epoch."""

from __future__ import annotations

from audit.build import Run, judge, lines, mean_term
from gradledger.audit.rules import g08_accumulated_means_not_divided as g08
from gradledger.audit.rules import g22_partial_window as g22


def train(
    batches: int,
    k: int,
    *,
    clear: bool = False,
    last: str = "leave",
    loader: bool = True,
    epochs: int = 6,
    carry: bool = False,
) -> Run:
    """`last`: what is done with the leftover ("leave", "step", "step and divide"); `carry`: count across epochs."""
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    ident = run.loader(line=5, length=batches)
    seen = 0
    for epoch in range(epochs):
        if loader:
            run.epoch(ident, line=6, index=epoch)
        if clear:
            run.zero_grad(opt, line=7)
        if not carry:
            seen = 0
        for i in range(batches):
            left = batches % k if i >= batches - batches % k else k
            run.forward(net, line=8)
            run.backward(net, line=9, terms=(mean_term(1 / left if last == "step and divide" else 1 / k),))
            seen += 1
            if seen % k == 0 or (last != "leave" and i + 1 == batches):
                run.step(opt, line=11)
                run.zero_grad(opt, line=12)
    return run


def test_leftovers_leak_into_the_next_epoch() -> None:
    run = train(7, 4)
    (finding,) = judge(g22, run)
    assert finding.severity == "error"
    assert lines(finding) >= {9, 11}
    assert finding.evidence["left_over"] == 3
    assert finding.evidence["largest_window"] == 7
    assert judge(g08, run) == []


def test_leftovers_thrown_away() -> None:
    for loader in (True, False):
        (finding,) = judge(g22, train(11, 4, clear=True, loader=loader))
        assert finding.severity == "warning"
        assert lines(finding) >= {7, 11}
        assert finding.evidence["left_over"] == 3


def test_the_last_window_has_the_divisor_of_a_full_one() -> None:
    (finding,) = judge(g22, train(11, 4, last="step"))
    assert finding.evidence["left_over"] == 3


def test_even_windows_own_divisors_and_windows_across_epochs_are_silent() -> None:
    assert judge(g22, train(8, 4)) == []
    assert judge(g22, train(8, 4, clear=True)) == []
    assert judge(g22, train(11, 4, last="step and divide")) == []
    assert judge(g22, train(7, 4, carry=True)) == []
    assert judge(g22, train(7, 1)) == []


def test_a_validation_pass_inside_a_window_is_silent() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    valid = run.loader(line=5, length=5)
    for i in range(40):
        run.forward(net, line=8)
        run.backward(net, line=9, terms=(mean_term(0.25),))
        if (i + 1) % 4 == 0:
            run.step(opt, line=11)
            run.zero_grad(opt, line=12)
        if i % 10 == 5:
            run.epoch(valid, line=14, index=i // 10)
            run.forward(net, line=15, graph=False)
    assert judge(g22, run) == []
