"""GL-G13: values that are not finite."""

from __future__ import annotations

from audit.build import Run, at, judge, lines
from audit.build_graph import trained
from gradledger.audit.rules import g13_non_finite_value as g13
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE


def broken(what: str = "gradient", *, op: str = "sqrt", then: str = "step") -> Run:
    run, net, opt = trained()
    for _ in range(2):
        run.backward(net, line=9)
        run.step(opt, line=10)
        run.zero_grad(opt, line=8)
    run.backward(net, line=9)
    run.emit(ev.NonFinite, at(9), what=what, op=op, op_site=at(5) if op else NOWHERE, reason="an operand is exactly 0")
    if then == "scaler":
        run.emit(ev.ScalerCalled, at(10), method="step", optimizer=opt, skipped=True)
    elif then == "clear":
        run.zero_grad(opt, line=8)
    elif then == "error":
        run.end(exception="ValueError", message="nan")
        return run
    if then != "nothing":
        run.backward(net, line=9)
        run.step(opt, line=10)
    run.end()
    return run


def test_the_operation_is_named_with_the_step_that_consumed_it() -> None:
    (finding,) = judge(g13, broken())
    assert finding.site.line == 5
    assert lines(finding) == {5, 9, 10}
    assert finding.iteration == 2
    assert "step 3" in finding.message
    assert "torch.sqrt(x + 1e-8)" in finding.fix


def test_without_a_suspect_the_line_of_the_loss_is_named() -> None:
    (finding,) = judge(g13, broken(op=""))
    assert finding.site.line == 9


def test_data_that_is_not_finite_is_said_so() -> None:
    (finding,) = judge(g13, broken("loss", op="input"))
    assert "isfinite" in finding.fix


def test_a_step_that_the_scaler_or_the_program_skips_is_silent() -> None:
    assert judge(g13, broken(then="scaler")) == []
    assert judge(g13, broken("loss", then="clear")) == []


def test_a_run_that_ends_on_it_is_reported() -> None:
    (finding,) = judge(g13, broken("loss", then="error"))
    assert finding.site.line == 5
    assert judge(g13, broken("loss", then="nothing")) == []


def test_a_parameter_needs_no_step() -> None:
    (finding,) = judge(g13, broken("parameter", then="nothing"))
    assert "parameter" in finding.message
