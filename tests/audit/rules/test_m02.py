"""GL-M02: state in a plain attribute."""

from __future__ import annotations

from pathlib import Path

from audit import build_modules as bm
from audit.build import Net, Run, at, judge, lines
from gradledger.audit.rules import m02_state_in_plain_attribute as m02
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import Frame


def holder(run: Run, name: str, line: int) -> Net:
    return run.module(name, line=line)


def set_at(run: Run, net: Net, line: int, *, init: bool = False, forward: bool = False) -> None:
    bm.plain(
        run, net, "mean", tensors=(run.new("tensor"),), floating=True, shape=(4,), line=line, made_in_init=init,
        made_in_forward=forward,
    )  # fmt: skip


def trained(*, init: bool = False, forward: bool = False, often: bool = False) -> tuple[Run, Net]:
    run = Run()
    net = holder(run, "net", 3)
    opt = run.optimizer(net, line=4)
    set_at(run, net, 6, init=init, forward=forward)
    for _ in range(4):
        if often:
            set_at(run, net, 6)
        bm.loop(run, opt, net, steps=2)
    return run, net


def saved(run: Run, net: Net) -> None:
    run.emit(ev.StateTaken, at(30), owner="module", ident=net.ident, missing=("mean",))
    run.emit(ev.FileTouched, at(31), method="save", what=("module",))


def loaded(run: Run, net: Net, *, differ: bool = True, cls: str = "Net") -> Net:
    served = run.module("served", line=32, cls=cls)
    run.emit(
        ev.StateLoaded, at(33), owner="module", ident=served.ident, matched=2, origin="file", origin_ident=net.ident,
        plain_differ=("mean",) if differ else (),
    )  # fmt: skip
    return served


def test_a_reload_that_differs_is_an_error_at_the_setting_line() -> None:
    run, net = trained()
    saved(run, net)
    set_at(run, loaded(run, net), 2, init=True)
    (finding,) = judge(m02, run)
    assert finding.severity == "error"
    assert finding.site.line == 6
    assert lines(finding) >= {30, 31, 33}


def test_a_warm_start_from_a_model_of_another_class_is_no_reload() -> None:
    run, net = trained()
    saved(run, net)
    loaded(run, net, cls="Classifier")
    assert judge(m02, run) == []


def test_random_constants_of_the_constructor_differ_as_well() -> None:
    run, net = trained(init=True)
    saved(run, net)
    loaded(run, net)
    (finding,) = judge(m02, run)
    assert finding.severity == "error"
    assert finding.site.line == 6


def test_a_reload_that_agrees_or_is_set_again() -> None:
    run, net = trained()
    saved(run, net)
    set_at(run, loaded(run, net), 34)
    assert judge(m02, run) == []
    run, net = trained(init=True)
    saved(run, net)
    loaded(run, net, differ=False)
    assert judge(m02, run) == []


def test_saved_without_it_is_a_warning() -> None:
    run, net = trained()
    saved(run, net)
    (finding,) = judge(m02, run)
    assert finding.severity == "warning"
    assert finding.site.line == 6


def test_caches_and_what_changes_all_the_time() -> None:
    for run, net in (trained(forward=True), trained(often=True), trained(init=True)):
        saved(run, net)
        assert judge(m02, run) == []


def test_left_behind_by_a_conversion(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("def forward(self, x):\n    return self.fc(x - self.mean)\n")
    run, _ = trained(init=True)
    frame = Frame(str(file), 2, "forward")
    run.emit(
        ev.RunEnded,
        at(0),
        exit_code=1,
        exception="RuntimeError",
        frames=(frame,),
        message="mat1 and mat2 must have the same dtype",
    )
    (finding,) = judge(m02, run)
    assert finding.severity == "error"
    assert finding.site.line == 6
    assert 2 in lines(finding)


def test_never_saved() -> None:
    run, _ = trained()
    assert judge(m02, run) == []
    assert "saved or loaded" in str(m02.not_checked(m02.init(), World()))
