"""GL-M05: the optimizer holds the parameters of a model that was discarded."""

from __future__ import annotations

from audit import build_modules as bm
from audit.build import Run, judge, lines
from gradledger.audit.rules import m05_optimizer_of_discarded_model as m05
from gradledger.core import events as ev


def rebuilt(*, again: bool = False) -> Run:
    run = Run()
    old = run.module("model", line=3)
    opt = run.optimizer(old, line=4)
    new = run.module("model", line=5)
    run.emit(ev.ModuleFreed, bm.at(5), module=old.ident)
    if again:
        opt = run.optimizer(new, line=6)
    return bm.loop(run, opt, new)


def test_the_optimizer_is_named_with_the_rebuilding_line() -> None:
    (finding,) = judge(m05, rebuilt())
    assert finding.severity == "error"
    assert finding.site.line == 4
    assert lines(finding) >= {5, bm.STEP}
    assert finding.evidence["held_of_freed_modules"] == 2
    assert finding.evidence["filled_unheld"] == 2


def test_built_again_with_the_model() -> None:
    assert judge(m05, rebuilt(again=True)) == []


def test_free_tensors_optimised_on_purpose() -> None:
    run = Run()
    run.module("features", line=3)
    image = run.leaf(line=4, shape=(8, 8))
    opt = run.optimizer(image, line=5)
    assert judge(m05, bm.loop(run, opt, image)) == []
