"""GL-D05: [B] against [B, 1]."""

from __future__ import annotations

from typing import Any

from audit.build import Run, at, judge, lines
from gradledger.audit.rules import d05_accidental_broadcast as d05
from gradledger.core import events as ev


def broadcast(
    run: Run, *, line: int = 7, op: str = "sub", explicit: bool = False, operands: tuple[int, int] = (5, 6), **more: Any
) -> None:
    values: dict[str, Any] = {"left": (32, 1), "right": (32,), "out": (32, 32), "has_graph": True, **more}
    left, right = operands
    run.emit(ev.Broadcast, at(line), op=op, explicit=explicit, left_site=at(left), right_site=at(right), **values)


def test_a_column_against_a_vector() -> None:
    run = Run()
    for _ in range(3):
        broadcast(run)
    (finding,) = judge(d05, run)
    assert finding.site.line == 7
    assert lines(finding) == {5, 6, 7}
    assert finding.evidence["result"] == [32, 32]
    assert finding.count == 3


def test_a_target_without_graph_counts_as_well() -> None:
    run = Run()
    broadcast(run, left=(8,), right=(8, 1), out=(8, 8), has_graph=False)
    (finding,) = judge(d05, run)
    assert "[8, 8]" in finding.message


def test_a_broadcast_that_was_meant_is_silent() -> None:
    run = Run()
    broadcast(run, explicit=True)
    assert judge(d05, run) == []


def test_a_line_that_was_meant_once_is_silent_and_others_are_not() -> None:
    run = Run()
    broadcast(run)
    broadcast(run, explicit=True)
    broadcast(run, line=17, op="mul", operands=(15, 16))
    assert [f.site.line for f in judge(d05, run)] == [17]


def test_lines_that_share_an_operand_are_one_fault() -> None:
    run = Run()
    broadcast(run, op="mul", operands=(4, 5))
    broadcast(run, line=8, op="mul", operands=(6, 5))
    (finding,) = judge(d05, run)
    assert lines(finding) == {4, 5, 6, 7, 8}
    assert finding.count == 2
