"""GL-G15: a history keeps graphs."""

from __future__ import annotations

from pathlib import Path

from audit.build import Run, at, judge
from gradledger.audit.rules import g15_history_keeps_graphs as g15
from gradledger.core import events as ev
from gradledger.core.site import Site

SOURCE = """\
for step in range(9):
    loss = net(x).mean()
    loss.backward()
    history.append(loss)
    total += loss
"""


def alive(run: Run, count: int, *, what: str = "loss", site: Site | None = None, growing: bool = False) -> None:
    place = site or at(3)
    run.emit(ev.GraphsAlive, place, what=what, alive=count, looked=8, age=3, made_site=place, growing=growing)


def test_the_line_that_keeps_it_is_read_off_the_source(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(SOURCE, encoding="utf-8")
    run = Run()
    alive(run, 8, site=Site(str(file), 3, "<module>"))
    (finding,) = judge(g15, run)
    assert finding.site.line == 4
    assert [s.line for s in finding.related] == [5, 3]
    assert finding.severity == "warning"


def test_a_list_and_a_sum_that_keep_one_loss_are_one_finding(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(SOURCE, encoding="utf-8")
    run = Run()
    alive(run, 8, site=Site(str(file), 3, "<module>"))
    alive(run, 16, site=Site(str(file), 5, "<module>"), growing=True)
    (finding,) = judge(g15, run)
    assert {finding.site.line, *(s.line for s in finding.related)} == {3, 4, 5}


def test_without_source_the_line_that_made_it_is_named() -> None:
    run = Run()
    alive(run, 8)
    (finding,) = judge(g15, run)
    assert finding.site.line == 3


def test_an_output_below_a_kept_loss_is_not_told_twice() -> None:
    run = Run()
    alive(run, 8)
    alive(run, 8, what="output", site=at(2))
    assert [f.evidence["running"] for f in judge(g15, run)] == [False]
    alone = Run()
    alive(alone, 8, what="output", site=at(2))
    (finding,) = judge(g15, alone)
    assert "output" in finding.message


def test_a_short_window_is_silent() -> None:
    run = Run()
    alive(run, 6)
    assert judge(g15, run) == []
