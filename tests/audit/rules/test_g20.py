"""GL-G20: parameters in the optimizer that never receive a gradient."""

from __future__ import annotations

from audit.build import Run, at, judge, lines, mean_term
from gradledger.audit.rules import g20_parameter_without_gradient as g20
from gradledger.core import events as ev


def test_a_module_that_forward_never_calls() -> None:
    run = Run()
    net = run.module("net", line=3)
    norm = run.module("norm", line=4, parent=net)
    opt = run.optimizer(net, norm, line=5)
    for _ in range(15):
        run.backward(net, line=7)
        run.step(opt, line=8)
        run.zero_grad(opt, line=9)
    (finding,) = judge(g20, run)
    assert finding.severity == "warning"
    assert lines(finding) >= {4, 5, 8}
    assert finding.evidence["called"] is False
    assert "no forward pass calls it" in finding.message


def test_a_module_that_is_cut_off() -> None:
    run = Run()
    net, enc = run.module("net", line=3), run.module("enc", line=4)
    opt = run.optimizer(net, enc, line=5)
    cut = ev.Cut("detach", at(6))
    for _ in range(15):
        run.backward(net, line=7, terms=(mean_term(), mean_term(has_graph=False, depends=enc.tensors, cut=cut)))
        run.step(opt, line=8)
        run.zero_grad(opt, line=9)
    (finding,) = judge(g20, run)
    assert finding.severity == "error"
    assert finding.site.line == 6
    assert finding.evidence["called"] is True


def test_frozen_rare_and_few_steps_are_silent() -> None:
    run = Run()
    net, frozen, rare = (run.module(n, line=3) for n in ("net", "frozen", "rare"))
    run.freeze(frozen, line=4)
    opt = run.optimizer(net, frozen, rare, line=5)
    for i in range(15):
        run.backward(net, *([rare] if i == 12 else []), line=7)
        run.step(opt, line=8)
        run.zero_grad(opt, line=9)
    assert judge(g20, run) == []
    run = Run()
    net, unused = run.module("net", line=3), run.module("unused", line=3)
    opt = run.optimizer(net, unused, line=5)
    for _ in range(6):
        run.backward(net, line=7)
        run.step(opt, line=8)
    assert judge(g20, run) == []


def test_an_unused_expert_among_equals_is_information() -> None:
    run = Run()
    net = run.module("net", line=3)
    experts = run.module("experts", line=4, tensors=0, cls="ModuleList", parent=net)
    used, idle = (run.module(str(i), line=4, parent=experts, cls="Expert") for i in range(2))
    opt = run.optimizer(net, used, idle, line=5)
    for _ in range(15):
        run.backward(net, used, line=7)
        run.step(opt, line=8)
        run.zero_grad(opt, line=9)
    (finding,) = judge(g20, run)
    assert finding.severity == "info"


def test_replaced_layers_and_idle_optimizers_are_other_rules() -> None:
    run = Run()
    net = run.module("net", line=3)
    old = run.module("head", line=4, parent=net)
    opt = run.optimizer(net, old, line=5)
    new = run.module("head", line=6)
    run.emit(ev.ChildRegistered, at(6), parent=net.ident, child=new.ident, name="head", replaced=old.ident)
    for _ in range(15):
        run.backward(net, new, line=7)
        run.step(opt, line=8)
        run.zero_grad(opt, line=9)
    assert judge(g20, run) == []
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=5)
    for _ in range(15):
        run.step(opt, line=8)
    assert judge(g20, run) == [], "nothing is filled at all: GL-G10 or GL-M05"


def test_a_parameter_moved_by_an_unwatched_step_is_silent() -> None:
    run = Run()
    net, late = run.module("net", line=3), run.module("late", line=4)
    opt = run.optimizer(net, late, line=5)
    for i in range(15):
        run.backward(net, line=7)
        run.step(opt, line=8, moved=(late,) if i == 12 else ())
        run.zero_grad(opt, line=9)
    assert judge(g20, run) == []


def test_a_parameter_moved_by_hand_with_results_of_autograd_grad_is_silent() -> None:
    for reached, found in ((True, 0), (False, 1)):
        run = Run()
        critic, actor = run.module("critic", line=3), run.module("actor", line=4)
        opt = run.optimizer(critic, actor, line=5)
        for _ in range(15):
            run.emit(
                ev.Backward, at(6), backward=run.new("backward"), method="grad", leaves=actor.tensors,
                reached=actor.tensors if reached else (), detailed=True,
            )  # fmt: skip
            run.backward(critic, line=7)
            run.step(opt, line=8)
            run.zero_grad(opt, line=9)
        assert len(judge(g20, run)) == found
