"""A run against a good one: each relation that differs is told, what shows first comes first; equal runs differ in
nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from audit.build import Net, Run, at
from gradledger.audit.compare import Difference, compare, profile_of
from gradledger.audit.profile import Profile
from gradledger.audit.render import json as json_form
from gradledger.audit.render import md, sarif, text
from gradledger.audit.report import Report
from gradledger.core import events as ev


def run_of(
    *, clear: bool = True, clear_from: int = 0, reach: int = 2, every: int = 2, passes: int = 1, cls: str = "Adam",
    norm: float = 1.0, norm_from: int = 0, training: bool = True, per_step: int = 1, steps: int = 8, name: str = "net",
) -> Profile:  # fmt: skip
    run = Run()
    net, target = run.module(name, line=3, tensors=2, cls="Net"), run.module("target", line=4, tensors=2, cls="Target")
    opt = run.optimizer(net, line=5, cls=cls)
    run.freeze(target, line=6)
    run.emit(
        ev.SchedulerMade, at(7), scheduler=1, optimizer=opt, cls="StepLR", horizon=(("step_size", 3.0),), lrs=(0.1,)
    )
    for n in range(steps):
        if clear or n < clear_from:
            run.zero_grad(opt, line=8)
        for _ in range(passes):
            call = dataclasses.replace(run.forward(net, line=9), training=training)
            run.events[-1] = dataclasses.replace(run.events[-1], training=call.training)  # type: ignore[call-arg]
            run.backward(Net(net.ident, net.tensors[:reach]), line=10)
        scale = norm if n >= norm_from else 1.0
        run.emit(
            ev.StepMeasured, at(11), optimizer=opt, tensors=net.tensors,
            gradients=tuple(scale * (n + 1.0) for _ in net.tensors), values=(1.0, 1.0),
        )  # fmt: skip
        run.step(opt, line=11)
        for _ in range(per_step):
            run.emit(ev.SchedulerStep, at(12), scheduler=1, optimizer=opt, index=n, optimizer_steps=n + 1, lrs=(0.1,))
        if every and n % every == 0:
            run.emit(
                ev.Copied, at(13), how="load_state_dict", source=net.ident, target=target.ident, tau=1.0,
                pairs=tuple(zip(net.tensors, target.tensors, strict=True)),
            )  # fmt: skip
    return profile_of(run.events)


def test_equal_runs_do_not_differ() -> None:
    comparison = compare(run_of(), run_of(), name="good")
    assert comparison.differences == ()
    assert (comparison.compared, comparison.together, comparison.good) == (4, 8, "good")


@pytest.mark.parametrize(
    ("changed", "what", "there", "here", "iteration", "line"),
    [
        ({"clear": False}, "cycle", "1 clear, 1 pass a step", "0 clears, 1 pass a step", 0, 11),
        ({"clear": False, "clear_from": 3}, "cycle", "1 clear, 1 pass a step", "0.375 clears", 3, 11),
        ({"passes": 2}, "cycle", "1 clear, 1 pass a step", "1 clear, 2 passes a step", 0, 8),
        ({"reach": 1}, "gradient", "receives", "never", 0, 10),
        ({"every": 4}, "target", "every 2 iterations", "every 4", 1, 13),
        ({"every": 0}, "target", "copied 4 times", "never copied", 1, 13),
        ({"cls": "SGD"}, "optimizer", "Adam", "SGD", None, 5),
        ({"norm": 4.0}, "norm", "1", "4 (median factor 4)", 0, 11),
        ({"norm": 8.0, "norm_from": 2}, "norm", "3", "24 (median factor 8)", 2, 11),
        ({"training": False}, "mode", "100% of its calls in train mode", "0% of its calls in train mode", 0, 9),
        ({"per_step": 3}, "scheduler", "1 call a step", "3 calls a step", None, 7),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_relation_that_differs(
    changed: dict[str, Any], what: str, there: str, here: str, iteration: int | None, line: int
) -> None:
    (first, *_) = [d for d in compare(run_of(), run_of(**changed)).differences if d.what == what]
    assert (first.there, first.iteration, first.site.line) == (there, iteration, line)
    assert first.here.startswith(here)


def test_what_shows_first_comes_first() -> None:
    found = compare(run_of(), run_of(clear=False, clear_from=3, reach=1, every=4, norm=4.0)).differences
    at_iteration = [d.iteration for d in found if d.iteration is not None]
    assert at_iteration == sorted(at_iteration)
    assert {"gradient", "cycle", "norm", "target"} <= {d.what for d in found}


def test_a_renamed_variable_is_the_same_module() -> None:
    assert compare(run_of(), run_of(name="policy")).differences == ()


def test_norms_within_a_factor_of_two_are_alike_but_no_longer_equal() -> None:
    comparison = compare(run_of(), run_of(norm=1.5, norm_from=3))
    assert (comparison.differences, comparison.together) == ((), 3)


def test_a_difference_in_every_form_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    comparison = compare(run_of(), run_of(clear=False), name="kept|run")
    report = Report(None, None, (), (), (), (), (), {}, comparison=comparison)
    shown = text.render(report)
    assert max(map(len, shown.splitlines())) <= 80
    assert "1 difference from kept|run, over 4 parameters, first to show first:" in shown
    assert "there 1 clear, 1 pass a step" in shown
    assert "at    iteration 0, train.py:11" in shown
    document = json.loads(json_form.render(report))["comparison"]
    assert (document["with"], document["parameters"]) == ("kept|run", 4)
    assert document["differences"][0] | {"file": ""} == {
        "what": "cycle", "subject": "clear, fill, step", "there": "1 clear, 1 pass a step",
        "here": "0 clears, 1 pass a step", "iteration": 0, "file": "", "line": 11,
    }  # fmt: skip
    assert "| cycle | clear, fill, step | 1 clear, 1 pass a step |" in md.render(report)
    assert json.loads(sarif.render(report))["runs"][0]["properties"]["comparison"]["differences"]
    none = dataclasses.replace(report, comparison=compare(run_of(), run_of(), name="g"))
    assert "0 differences from g, over 4 parameters" in text.render(none)
    assert isinstance(comparison.differences[0], Difference)
