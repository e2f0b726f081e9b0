"""GL-G01: gradients are never cleared."""

from __future__ import annotations

import pytest

from audit.build import Run, judge, lines
from gradledger.audit import _stale
from gradledger.audit.rules import g01_zero_grad_missing as g01
from gradledger.audit.rules import g03_cleared_too_rarely as g03


def loop(steps: int, *, clear: str, accumulate: int = 1) -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(steps):
        if clear == "start":
            run.zero_grad(opt, line=6)
        for _ in range(accumulate):
            run.forward(net, line=7)
            run.backward(net, line=8)
        run.step(opt, line=9)
        if clear == "end":
            run.zero_grad(opt, line=10)
    return run


def test_never_cleared_is_found_at_backward_and_step() -> None:
    (finding,) = judge(g01, loop(30, clear="never"))
    assert finding.severity == "error"
    assert lines(finding) >= {8, 9}
    assert finding.evidence["stale_steps"] == 29
    assert finding.evidence["largest_multiple"] == 30


def test_clears_at_either_end_and_accumulation_are_silent() -> None:
    for clear in ("start", "end"):
        assert judge(g01, loop(30, clear=clear)) == []
        assert judge(g01, loop(30, clear=clear, accumulate=4)) == []


def test_one_stale_step_is_not_a_pattern() -> None:
    run = loop(2, clear="never")
    assert judge(g01, run) == []


def test_clearing_by_hand_is_a_clear() -> None:
    for to_none in (True, False):
        run = Run()
        net = run.module("net", line=3)
        opt = run.optimizer(net, line=4)
        for _ in range(10):
            run.backward(net, line=8)
            run.step(opt, line=9)
            run.clear(net, line=10, how="none" if to_none else "zero", to_none=to_none)
        assert judge(g01, run) == []


def test_clearing_only_one_of_two_networks_names_the_other() -> None:
    run = Run()
    net, head = run.module("net", line=3), run.module("head", line=4)
    opt = run.optimizer(net, head, line=5)
    for _ in range(10):
        run.clear(net, line=6, how="zero_grad", module=net.ident)
        run.backward(net, head, line=8)
        run.step(opt, line=9)
    (finding,) = judge(g01, run)
    assert finding.evidence["tensors"] == len(head.tensors)


def test_a_gradient_left_on_the_other_network_is_not_stale() -> None:
    run = Run()
    gen, disc = run.module("gen", line=3), run.module("disc", line=4)
    opt_g, opt_d = run.optimizer(gen, line=5), run.optimizer(disc, line=6)
    for _ in range(20):
        run.zero_grad(opt_d, line=8)
        run.backward(disc, line=9)
        run.step(opt_d, line=10)
        run.zero_grad(opt_g, line=11)
        run.backward(gen, disc, line=12)
        run.step(opt_g, line=13)
    assert judge(g01, run) == []


@pytest.mark.parametrize("apart", [False, True])
def test_it_is_found_when_clears_stop_late(monkeypatch: pytest.MonkeyPatch, apart: bool) -> None:
    """Lines 28 and 29 are a loop or function of their own, or not."""
    part = {True: ("train.py", "late", 27), False: ("train.py", "main", 5)}
    monkeypatch.setattr(_stale, "_part", lambda site: part[apart and site.line >= 28])
    run = loop(500, clear="start")
    tensors = [t for e in run.events if hasattr(e, "groups") for t in e.groups[0].tensors]
    for _ in range(5):
        run.backward(*tensors, line=28)
        run.step(1, line=29)
    rule, other = (g01, g03) if apart else (g03, g01)
    (finding,) = judge(rule, run)
    assert finding.count == 5
    assert 28 in lines(finding)
    assert finding.site.line == (28 if apart else 6)
    assert judge(other, run) == []


def test_no_judgement_without_two_steps() -> None:
    run = loop(1, clear="never")
    assert judge(g01, run) == []
    assert "two steps" in str(g01.not_checked(g01.init(), None))  # type: ignore[arg-type]


def test_stepping_twice_on_one_gradient_mixes_nothing() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(10):
        run.zero_grad(opt, line=6)
        run.backward(net, line=7)
        run.backward(net, line=8)
        run.step(opt, line=9)
        run.step(opt, line=10)
    assert judge(g01, run) == []
