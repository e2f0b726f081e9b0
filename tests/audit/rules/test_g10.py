"""GL-G10: a loss without graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.build import Run, at, judge, lines
from audit.build_graph import trained
from gradledger.audit.rules import g10_loss_without_graph as g10
from gradledger.core import events as ev
from gradledger.core.site import Frame, Site

NO_GRAD = "element 0 of tensors does not require grad and does not have a grad_fn"


def rebuilt(steps: int, *cuts: ev.Cut, leaf: bool = True) -> Run:
    run, _, opt = trained()
    for _ in range(steps):
        run.zero_grad(opt, line=6)
        own = run.leaf(line=7, in_loss=True)
        run.backward(own, line=8, cuts=cuts, root_is_leaf=leaf, root_site=at(7), value=0.5)
        run.step(opt, line=9)
    return run


@pytest.mark.parametrize("leaf", [True, False])
def test_a_loss_rebuilt_from_numbers(leaf: bool) -> None:
    (finding,) = judge(g10, rebuilt(5, ev.Cut("item", at(5)), leaf=leaf))
    assert finding.site.line == 5
    assert lines(finding) == {5, 7, 8}
    assert finding.evidence["steps_without_gradient"] == 5
    assert ".item()" in finding.message
    assert "torch.stack" in finding.fix


def test_without_a_known_cut_the_line_that_made_the_root_is_named() -> None:
    (finding,) = judge(g10, rebuilt(5))
    assert finding.site.line == 7


def test_a_graph_that_reaches_an_input_after_a_logged_number_is_silent() -> None:
    run, net, opt = trained()
    run.backward(net, line=5)
    run.step(opt, line=6)
    probe = run.leaf(line=7, fed_to=(net.ident,))
    run.backward(probe, line=8, cuts=(ev.Cut("item", at(5)),))
    assert judge(g10, run) == []


@pytest.mark.parametrize("cuts", [(), (ev.Cut("no_grad", at(6)),)])
def test_a_module_built_anew_after_its_optimizer_is_another_rule(cuts: tuple[ev.Cut, ...]) -> None:
    """Also where the loss holds values that left a graph, such as those of a target network."""
    run, _, opt = trained()
    newer = run.module("net", line=5)
    for _ in range(5):
        run.zero_grad(opt, line=6)
        run.backward(newer, line=7, cuts=cuts)
        run.step(opt, line=8)
    assert judge(g10, run) == []


def test_a_line_that_mostly_reaches_its_parameters_is_silent() -> None:
    run, net, opt = trained()
    for step in range(6):
        run.zero_grad(opt, line=6)
        if step:
            run.backward(net, line=8)
        else:
            run.backward(run.leaf(line=7), line=8, root_is_leaf=True)
        run.step(opt, line=9)
    assert judge(g10, run) == []


def test_a_parameter_walked_itself_is_silent() -> None:
    run = Run()
    net = run.module("net", line=3)
    run.backward(net.tensors[0], line=5, root_is_leaf=True)
    assert judge(g10, run) == []


def test_a_gradient_alone_in_the_loss_is_left_to_its_own_rule() -> None:
    assert judge(g10, rebuilt(3, ev.Cut("autograd_grad", at(5)))) == []


def loud(**values: object) -> Run:
    run, _, _ = trained()
    run.backward(line=8, raised=f"RuntimeError: {NO_GRAD}", root_site=at(7), terms=(), **values)  # type: ignore[arg-type]
    run.end(exception="RuntimeError", message=NO_GRAD)
    return run


def test_loud_with_a_detached_prediction() -> None:
    (finding,) = judge(g10, loud(cuts=(ev.Cut("detach", at(5)),)))
    assert finding.site.line == 5
    assert lines(finding) >= {5, 8}


SOURCE = """\
import torch

@torch.no_grad()
def evaluate():
    return 1

{decorator}
def train_step(x):
    {block}
        loss = net(x).mean()
        loss.backward()
"""


@pytest.mark.parametrize(
    ("decorator", "block", "line"),
    [
        ("@torch.no_grad()", "if True:", 7),
        ("@logged", "with torch.inference_mode():", 9),
        ("@logged", "if True:", 10),
    ],
)
def test_loud_under_no_grad_names_the_switch(tmp_path: Path, decorator: str, block: str, line: int) -> None:
    file = tmp_path / f"{abs(hash((decorator, block)))}.py"
    file.write_text(SOURCE.format(decorator=decorator, block=block), encoding="utf-8")
    off = Site(str(file), 10, "train_step", 7)
    (finding,) = judge(g10, loud(no_grad_site=off))
    assert finding.site.line == line
    assert {s.line for s in finding.related} >= {7, 8} - {line}


def test_the_switch_of_a_caller_is_found(tmp_path: Path) -> None:
    file = tmp_path / "caller.py"
    file.write_text("def loss(x):\n    return x\n\nwith torch.no_grad():\n    y = loss(1)\n", encoding="utf-8")
    off = Site(str(file), 2, "loss", 1, callers=(Frame(str(file), 5, "<module>"),))
    (finding,) = judge(g10, loud(no_grad_site=off))
    assert finding.site.line == 4


def test_an_error_that_the_program_caught_is_silent() -> None:
    run, net, opt = trained()
    run.backward(line=8, raised=f"RuntimeError: {NO_GRAD}", terms=())
    run.backward(net, line=9)
    run.step(opt, line=10)
    run.end()
    assert judge(g10, run) == []


def test_an_error_that_nobody_watched_is_explained_at_its_own_line() -> None:
    run, _, _ = trained()
    run.emit(
        ev.RunEnded, at(0), exit_code=1, exception="RuntimeError", message=NO_GRAD, frames=(Frame("a.py", 4, "f"),)
    )
    (finding,) = judge(g10, run)
    assert (finding.site.file, finding.site.line) == ("a.py", 4)


def test_a_model_frozen_as_a_whole_is_named() -> None:
    run, net, _ = trained()
    run.freeze(net, line=5)
    run.backward(line=8, raised=f"RuntimeError: {NO_GRAD}", terms=(), cuts=(ev.Cut("linear", at(7)),))
    run.end(exception="RuntimeError", message=NO_GRAD)
    (finding,) = judge(g10, run)
    assert finding.site.line == 5
    assert "frozen" in finding.message
