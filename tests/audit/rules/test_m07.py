"""GL-M07: unfrozen after the optimizer was built, and in none."""

from __future__ import annotations

from audit import build_modules as bm
from audit.build import Run, judge, lines
from gradledger.audit.rules import m07_unfrozen_outside_optimizer as m07
from gradledger.core import events as ev


def unfrozen(*, held: bool = False, group: bool = False, thaw: bool = True) -> Run:
    run = Run()
    net = run.module("net", line=2, tensors=0)
    body, head = run.module("body", line=3, parent=net), run.module("head", line=4, parent=net)
    run.freeze(body, line=5)
    opt = run.optimizer(head, *([body] if held else []), line=6)
    bm.loop(run, opt, body, head, steps=5)
    if thaw:
        run.freeze(body, line=7, value=True)
    if group:
        run.emit(ev.GroupAdded, bm.at(8), optimizer=opt, group=ev.Group(body.tensors))
    return bm.loop(run, opt, body, head, steps=5)


def test_the_unfreezing_line_is_named() -> None:
    (finding,) = judge(m07, unfrozen())
    assert finding.site.line == 7
    assert lines(finding) >= {6, bm.STEP}
    assert finding.evidence["reverse_passes"] == 5
    assert "add_param_group" in finding.fix


def test_held_from_the_start() -> None:
    assert judge(m07, unfrozen(held=True)) == []


def test_added_when_unfrozen() -> None:
    assert judge(m07, unfrozen(group=True)) == []


def test_still_frozen() -> None:
    assert judge(m07, unfrozen(thaw=False)) == []


def stages(*, again: bool = False) -> Run:
    """A body is trained by its own optimizer, frozen for a head, and released; `again`: its own steps last."""
    run = Run()
    net = run.module("net", line=2, tensors=0)
    body, head = run.module("body", line=3, parent=net), run.module("head", line=4, parent=net)
    first = run.optimizer(body, line=5)
    bm.loop(run, first, body, steps=5)
    run.freeze(body, line=6)
    second = run.optimizer(head, line=7)
    bm.loop(run, second, body, head, steps=5)
    run.freeze(body, line=8, value=True)
    bm.loop(run, second, body, head, steps=5)
    if again:
        bm.loop(run, first, body, head, steps=5)
    return run


def test_only_an_earlier_stage_holds_them() -> None:
    (finding,) = judge(m07, stages())
    assert finding.site.line == 8
    assert lines(finding) >= {5, 7}
    assert "earlier optimizer" in finding.message
    assert finding.evidence["in_optimizers"] == 1


def test_stages_that_take_turns() -> None:
    assert judge(m07, stages(again=True)) == []
