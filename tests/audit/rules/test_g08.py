"""GL-G08: accumulated means without division."""

from __future__ import annotations

from typing import Any

import pytest

from audit.build import Run, judge, lines, mean_term
from gradledger.audit.rules import g08_accumulated_means_not_divided as g08
from gradledger.core import events as ev


def accumulate(
    factor: float,
    *,
    k: int = 4,
    steps: int = 12,
    rescaled: bool = False,
    elements: list[int] | None = None,
    **term: Any,
) -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(steps):
        for i in range(k):
            size = elements[i % len(elements)] if elements else 32
            run.backward(net, line=7, terms=(mean_term(factor, elements=size, **term),))
        run.step(opt, line=9, rescaled=(net,) if rescaled else ())
        run.zero_grad(opt, line=10)
    return run


def test_undivided_means() -> None:
    (finding,) = judge(g08, accumulate(1.0))
    assert finding.evidence["accumulated"] == 4
    assert lines(finding) >= {7, 9}
    assert "4x" in finding.message


def test_divided_by_k_in_any_way_is_silent() -> None:
    assert judge(g08, accumulate(0.25)) == []
    assert judge(g08, accumulate(0.5 * 0.25)) == [], "a weighted term, divided"
    assert judge(g08, accumulate(1.0, rescaled=True)) == [], "gradients divided before the step"
    assert judge(g08, accumulate(1.0, k=1)) == []


@pytest.mark.parametrize("how", [{"reduction": "sum", "divided": True}, {"divided": True}, {"reduction": ""}])
def test_sums_and_counts_are_silent(how: dict[str, Any]) -> None:
    assert judge(g08, accumulate(1.0, **how)) == []


def test_divided_by_the_batches_of_an_epoch() -> None:
    run = accumulate(1 / 12)
    assert judge(g08, run) == []
    run.loader(line=2, length=12)
    (finding,) = judge(g08, run)
    assert "divided by 12" in finding.message


def test_means_over_unequal_counts() -> None:
    (finding,) = judge(g08, accumulate(0.25, elements=[138, 12, 12, 12]))
    assert finding.evidence["unequal_windows"] == 12


def test_a_smaller_last_batch_is_silent() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(4):
        for window in range(5):
            for i in range(4):
                size = 5 if window == 4 and i == 3 else 32
                run.backward(net, line=7, terms=(mean_term(0.25, elements=size),))
            run.step(opt, line=9)
            run.zero_grad(opt, line=10)
    assert judge(g08, run) == []


def test_different_lines_callers_or_heads_are_different_losses() -> None:
    run = Run()
    trunk, heads = run.module("trunk", line=3), [run.module(f"h{i}", line=4) for i in range(3)]
    opt = run.optimizer(trunk, *heads, line=5)
    for _ in range(12):
        for head in heads:
            run.backward(trunk, head, line=7)
        run.step(opt, line=9)
        run.zero_grad(opt, line=10)
    assert judge(g08, run) == []
    run = Run()
    disc = run.module("disc", line=3)
    opt = run.optimizer(disc, line=4)
    for _ in range(12):
        run.backward(disc, line=30, callers=(7,))
        run.backward(disc, line=30, callers=(8,))
        run.step(opt, line=9)
        run.zero_grad(opt, line=10)
    assert judge(g08, run) == []


def test_a_number_of_passes_that_varies_is_not_accumulation() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for i in range(20):
        for _ in range(2 + (7 * i) % 11):
            run.backward(net, line=7)
        run.step(opt, line=9)
        run.zero_grad(opt, line=10)
    assert judge(g08, run) == []


def test_closures_are_not_windows() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4, cls="LBFGS")
    for _ in range(12):
        run.backward(net, line=7)
        run.backward(net, line=7)
        run.step(opt, line=9, closure=True)
        run.zero_grad(opt, line=10)
    assert judge(g08, run) == []
    assert any(isinstance(e, ev.Step) for e in run.events)


def test_a_sum_divided_by_its_own_rows_is_a_mean() -> None:
    (finding,) = judge(g08, accumulate(1 / 32, reduction="sum"))
    assert finding.evidence["accumulated"] == 4
    assert judge(g08, accumulate(1 / 128, reduction="sum")) == [], "divided by the rows of the whole window"


def test_sums_whose_length_happens_to_be_the_divisor_are_silent() -> None:
    assert judge(g08, accumulate(1 / 4, reduction="sum", elements=[4, 9, 7, 5])) == []
    assert judge(g08, accumulate(1 / 4, reduction="sum", elements=[4])) == [], "divided by k, which is also the rows"
    assert judge(g08, accumulate(1 / 7, reduction="sum", elements=[7, 7, 9, 7])) == []
