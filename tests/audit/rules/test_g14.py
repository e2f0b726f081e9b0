"""GL-G14: a gradient penalty without create_graph."""

from __future__ import annotations

from audit.build import at, judge, lines, mean_term
from audit.build_graph import constant, iterate, trained
from gradledger.audit.rules import g14_penalty_without_create_graph as g14
from gradledger.core import events as ev


def penalty(**more: object) -> ev.Term:
    return constant(how="autograd_grad", cut=5, penalty_of_grad=True, factor=10.0, **more)  # type: ignore[arg-type]


def test_a_constant_penalty_is_reported_at_the_gradient() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 4, (mean_term(), penalty(line=6)))
    (finding,) = judge(g14, run)
    assert finding.site.line == 5
    assert lines(finding) == {5, 6, 7, 9}
    assert finding.evidence["factor"] == 10.0
    assert "create_graph=True" in finding.fix


def test_a_penalty_with_graph_is_silent() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 4, (mean_term(), penalty(has_graph=True)))
    assert judge(g14, run) == []


def test_a_gradient_that_is_asked_for_trains_when_an_optimizer_holds_its_tensors() -> None:
    run, net, opt = trained()
    iterate(run, net, opt, 4, (mean_term(), penalty()), method="grad")
    (finding,) = judge(g14, run)
    assert finding.site.line == 5
    run, net, opt = trained()
    iterate(run, net, opt, 4, (mean_term(), penalty()), method="grad", leaves=(9999,))
    assert judge(g14, run) == []


def loud(caught: bool = False, *also: ev.Cut) -> list[object]:
    run, net, _ = trained()
    message = "element 0 of tensors does not require grad and does not have a grad_fn"
    run.backward(line=9, terms=(), raised=message, cuts=(ev.Cut("autograd_grad", at(5)), *also), root_site=at(7))
    if caught:
        run.backward(net, line=9)
        run.end()
    else:
        run.end(exception="RuntimeError", message=message)
    return list(judge(g14, run))


def test_a_loss_of_nothing_but_a_gradient_raises_and_is_explained() -> None:
    (finding,) = loud()
    assert finding.site.line == 5  # type: ignore[attr-defined]
    assert loud(caught=True) == []
    assert loud(False, ev.Cut("detach", at(6))) == []
