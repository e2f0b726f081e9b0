"""GL-G04: the step stands before the backward."""

from __future__ import annotations

from audit.build import Run, judge, lines
from gradledger.audit.rules import g01_zero_grad_missing as g01
from gradledger.audit.rules import g02_cleared_before_step as g02
from gradledger.audit.rules import g04_step_before_backward as g04

IN_PLACE = (
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation"
)


def late(steps: int) -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(steps):
        run.forward(net, line=6)
        run.step(opt, line=7)
        run.zero_grad(opt, line=8)
        run.backward(net, line=9, root_age=1)
    return run


def test_a_step_between_forward_and_backward() -> None:
    (finding,) = judge(g04, late(15))
    assert finding.severity == "error"
    assert lines(finding) >= {7, 9}
    assert finding.evidence["first_step_empty"] is True
    assert judge(g01, late(15)) == []
    assert judge(g02, late(15)) == []


def test_the_usual_order_is_silent() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(15):
        run.forward(net, line=6)
        run.zero_grad(opt, line=7)
        run.backward(net, line=8)
        run.step(opt, line=9)
    assert judge(g04, run) == []


def test_two_optimizers_whose_graphs_cross_a_step_are_silent() -> None:
    run = Run()
    gen, disc = run.module("gen", line=3), run.module("disc", line=4)
    opt_g, opt_d = run.optimizer(gen, line=5), run.optimizer(disc, line=6)
    for _ in range(15):
        fake = run.forward(gen, line=7)
        run.zero_grad(opt_d, line=8)
        d_call = run.forward(disc, line=9)
        run.backward(disc, line=10, calls=(d_call,))
        run.step(opt_d, line=11)
        run.zero_grad(opt_g, line=12)
        judged = run.forward(disc, line=13)
        run.backward(gen, disc, line=14, calls=(fake, judged))
        run.step(opt_g, line=15)
    assert judge(g04, run) == []


def test_a_step_at_the_top_of_the_loop_is_a_warning() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(15):
        run.step(opt, line=6)
        run.zero_grad(opt, line=7)
        run.forward(net, line=8)
        run.backward(net, line=9)
    (finding,) = judge(g04, run)
    assert finding.severity == "warning"
    assert finding.site.line == 6


def test_clear_step_backward_is_this_and_not_a_clear_before_the_step() -> None:
    for forward_first in (True, False):
        run = Run()
        net = run.module("net", line=3)
        opt = run.optimizer(net, line=4)
        for _ in range(12):
            if forward_first:
                run.zero_grad(opt, line=5)
                run.forward(net, line=6)
                run.step(opt, line=7)
            else:
                run.zero_grad(opt, line=5)
                run.step(opt, line=7)
                run.forward(net, line=8)
            run.backward(net, line=9)
        (finding,) = judge(g04, run)
        assert finding.site.line == 7
        assert judge(g02, run) == []


def test_one_early_step_to_quiet_a_scheduler_is_silent() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    run.zero_grad(opt, line=5)
    run.step(opt, line=6)
    for _ in range(15):
        run.zero_grad(opt, line=8)
        run.forward(net, line=9)
        run.backward(net, line=10)
        run.step(opt, line=11)
    assert judge(g04, run) == []


def test_the_error_of_a_changed_weight_is_explained() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    run.forward(net, line=6)
    run.step(opt, line=7)
    run.backward(net, line=9, root_age=1)
    run.forward(net, line=6)
    run.step(opt, line=7)
    run.backward(line=9, root_age=1, raised=IN_PLACE)
    run.end(exception="RuntimeError", message=IN_PLACE)
    (finding,) = judge(g04, run)
    assert lines(finding) >= {7, 9}
    assert "in place" in finding.message


def test_the_same_error_without_a_step_in_between_is_not_ours() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(3):
        run.forward(net, line=6)
        run.backward(net, line=8)
        run.step(opt, line=9)
        run.zero_grad(opt, line=10)
    run.forward(net, line=6)
    run.backward(line=8, root_age=0, raised=IN_PLACE)
    run.end(exception="RuntimeError", message=IN_PLACE)
    assert judge(g04, run) == []
