"""GL-G18: a write through a detached alias."""

from __future__ import annotations

import pytest

from audit.build import Run, at, judge, lines
from gradledger.audit.rules import g18_write_through_detached_alias as g18
from gradledger.core import events as ev


def write(run: Run, backward: int, line: int, *, how: str = "detach", op: str = "add", alias: int = 5) -> None:
    run.emit(
        ev.AliasWritten, at(line), backward=backward, op=op, alias_how=how, alias_site=at(alias), base_op="linear",
        base_site=at(4),
    )  # fmt: skip


def test_all_writes_through_one_alias_are_one_finding() -> None:
    run = Run()
    for step in range(3):
        write(run, step, 6)
        write(run, step, 7, op="clamp_")
    (finding,) = judge(g18, run)
    assert finding.site.line == 5
    assert lines(finding) == {4, 5, 6, 7}
    assert finding.evidence["reverse_passes"] == 3
    assert finding.evidence["operations"] == ["add", "clamp_"]
    assert "clone" in finding.fix


@pytest.mark.parametrize(("how", "word"), [("data", "out of place"), ("numpy", "copy()")])
def test_the_fix_fits_the_alias(how: str, word: str) -> None:
    run = Run()
    write(run, 1, 6, how=how)
    (finding,) = judge(g18, run)
    assert word in finding.fix


def test_two_aliases_are_two_findings() -> None:
    run = Run()
    write(run, 1, 6)
    write(run, 1, 16, alias=15)
    assert [f.site.line for f in judge(g18, run)] == [5, 15]
