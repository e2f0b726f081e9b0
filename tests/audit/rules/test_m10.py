"""GL-M10: a "parameter" that is the result of an operation."""

from __future__ import annotations

from typing import Any

from audit import build_modules as bm
from audit.build import Run, judge, lines
from gradledger.audit import _orphans
from gradledger.audit.rules import m01_raw_tensor_as_parameter as m01
from gradledger.audit.rules import m10_parameter_is_no_leaf as m10
from gradledger.audit.world import World
from gradledger.core import events as ev

MADE: dict[str, Any] = {"requires_grad": True, "floating": True, "is_leaf": False, "made_from_parameter": True}


def derived(*, anew: bool = False, in_forward: bool = False, beside: str = "", steps: int = 10) -> Run:
    run = Run()
    net = run.module("net", line=3)
    hidden, value = run.leaf(line=5, is_parameter=True), run.new("tensor")
    if beside:
        run.emit(
            ev.TensorRegistered, bm.at(4), tensor=run.new("tensor"), module=net.ident, name=beside, role="parameter",
            shape=(4,), requires_grad=True,
        )  # fmt: skip
    bm.plain(run, net, "offset", tensors=(value, hidden), made_in_forward=in_forward, **MADE)
    opt = run.optimizer(net, line=6)
    bm.loop(run, opt, net, hidden, steps=steps // 2)
    if anew:
        bm.plain(run, net, "offset", tensors=(run.new("tensor"), hidden), **MADE)
    return bm.loop(run, opt, net, hidden, steps=steps - steps // 2)


def test_the_assignment_is_named() -> None:
    (finding,) = judge(m10, derived())
    assert finding.severity == "error"
    assert finding.site.line == 5
    assert 6 in lines(finding)
    assert finding.evidence["is_leaf"] is False


def test_it_is_told_once_by_this_rule() -> None:
    run = derived()
    world = World()
    for event in run.events:
        world.apply(event)
    hidden = next(e.tensor for e in run.events if isinstance(e, ev.LeafSeen))
    assert _orphans.classify(hidden, world) == "M10"
    assert judge(m01, run) == []


def test_values_made_anew_are_silent() -> None:
    assert judge(m10, derived(anew=True)) == []
    assert judge(m10, derived(in_forward=True)) == []
    assert judge(m10, derived(beside="offset_orig")) == []


def test_the_second_backward_raised() -> None:
    run = derived(steps=1)
    assert judge(m10, run) == []
    run.end(exception="RuntimeError", message="Trying to backward through the graph a second time (or directly ...")
    (finding,) = judge(m10, run)
    assert "second backward raised" in finding.message
