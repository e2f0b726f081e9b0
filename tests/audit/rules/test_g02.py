"""GL-G02: gradients cleared between backward and step."""

from __future__ import annotations

from audit.build import Run, judge, lines
from gradledger.audit.rules import g02_cleared_before_step as g02
from gradledger.audit.rules import g04_step_before_backward as g04
from gradledger.audit.rules import g06_cleared_between_backwards as g06
from gradledger.core import events as ev


def cleared_between(steps: int, *, read: bool = False, by_hand: bool = False, accumulate: int = 1) -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(steps):
        for _ in range(accumulate):
            run.forward(net, line=6)
            run.backward(net, line=7)
            if read:
                run.read(net, line=8)
            run.zero_grad(opt, line=9)
        run.step(opt, line=10, moved=[net] if by_hand else [])
    return run


def test_every_step_runs_on_nothing() -> None:
    for accumulate in (1, 4):
        run = cleared_between(12, accumulate=accumulate)
        (finding,) = judge(g02, run)
        assert finding.site.line == 9
        assert lines(finding) >= {7, 9, 10}
        assert finding.evidence["empty_steps"] == 12
        assert finding.evidence["reverse_passes_lost"] == 12 * accumulate
        assert judge(g04, run) == []
        assert judge(g06, run) == []


def test_a_gradient_that_was_read_and_put_to_use_is_not_lost() -> None:
    assert judge(g02, cleared_between(12, read=True, by_hand=True)) == []


def test_a_gradient_that_was_only_looked_at_is() -> None:
    (finding,) = judge(g02, cleared_between(12, read=True))
    assert (finding.site.line, finding.evidence["empty_steps"]) == (9, 12)


def test_the_right_orders_are_silent() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(12):
        run.backward(net, line=7)
        run.step(opt, line=10)
        run.zero_grad(opt, line=11)
    assert judge(g02, run) == []


def test_a_generators_pass_through_the_discriminator_is_used() -> None:
    run = Run()
    gen, disc = run.module("gen", line=3), run.module("disc", line=4)
    opt_g, opt_d = run.optimizer(gen, line=5), run.optimizer(disc, line=6)
    for late in (False, True):
        for _ in range(8):
            run.backward(gen, disc, line=7)
            if not late:
                run.step(opt_g, line=8)
            run.zero_grad(opt_d, line=9)
            run.backward(disc, line=10)
            run.step(opt_d, line=11)
            if late:
                run.step(opt_g, line=8)
            run.zero_grad(opt_g, line=12)
    assert judge(g02, run) == []
    assert judge(g06, run) == []


def test_steps_withheld_by_a_scaler_are_not_this() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for i in range(12):
        run.zero_grad(opt, line=6)
        run.backward(net, line=7)
        if i % 2:
            run.emit(ev.ScalerCalled, run.events[-1].site, method="step", optimizer=opt, skipped=True)
        else:
            run.step(opt, line=10)
    assert judge(g02, run) == []
    assert judge(g06, run) == []


def test_an_irregular_skip_is_not_a_pattern() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for i in range(40):
        run.backward(net, line=7)
        if i % 7 == 3:
            run.zero_grad(opt, line=8)  # the loss was not finite
            continue
        run.step(opt, line=10)
        run.zero_grad(opt, line=11)
    assert judge(g02, run) == []
    assert judge(g06, run) == []


def test_the_error_of_a_scaler_without_gradients_is_explained() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    run.backward(net, line=7)
    run.zero_grad(opt, line=9)
    run.end(exception="AssertionError", message="No inf checks were recorded for this optimizer.")
    (finding,) = judge(g02, run)
    assert lines(finding) >= {7, 9}
    assert "scaler" in finding.message
