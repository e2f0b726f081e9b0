"""GL-M04: a layer that joined the model after the optimizer was built."""

from __future__ import annotations

from audit import build_modules as bm
from audit.build import Run, judge, lines
from gradledger.audit.rules import m04_added_after_optimizer as m04
from gradledger.core import events as ev


def late(*, before: bool = False, group: bool = False, second: bool = False, frozen: bool = False) -> Run:
    run = Run()
    net = run.module("net", line=3)
    if before:
        run.module("adapter", line=5, parent=net)
    opt = run.optimizer(net, line=4)
    adapter = run.module("adapter", line=5, parent=net)
    if group:
        run.emit(ev.GroupAdded, bm.at(6), optimizer=opt, group=ev.Group(adapter.tensors))
    if second:
        run.optimizer(adapter, line=6)
    if frozen:
        run.freeze(adapter, line=6)
    return bm.loop(run, opt, net, adapter)


def test_the_attaching_line_is_named() -> None:
    (finding,) = judge(m04, late())
    assert finding.site.line == 5
    assert lines(finding) >= {4, bm.STEP}
    assert finding.evidence["tensors"] == 2


def test_a_group_added_later() -> None:
    assert judge(m04, late(group=True)) == []


def test_a_second_optimizer() -> None:
    assert judge(m04, late(second=True)) == []


def test_frozen_on_purpose() -> None:
    assert judge(m04, late(frozen=True)) == []


def test_left_out_from_the_start_is_not_late() -> None:
    run = Run()
    net = run.module("net", line=3)
    head = run.module("head", line=4, parent=net)
    opt = run.optimizer(head, line=5)
    assert judge(m04, bm.loop(run, opt, net, head)) == []
