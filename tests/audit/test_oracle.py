"""What the oracle's facts become: sentences, a section of each report, and evidence for or against a finding."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from audit.build import Run, at, judge, mean_term
from audit.build_graph import constant
from gradledger.audit import oracle
from gradledger.audit.engine import Judge, audit
from gradledger.audit.render import html, md, text
from gradledger.audit.render import json as json_form
from gradledger.audit.report import Report
from gradledger.audit.rule import Finding
from gradledger.audit.rules import g01_zero_grad_missing as g01
from gradledger.audit.rules import g05_repeated_backward as g05
from gradledger.audit.rules import g07_term_counted_twice as g07
from gradledger.audit.rules import g08_accumulated_means_not_divided as g08
from gradledger.audit.rules import g11_term_without_graph as g11
from gradledger.audit.rules import g21_gradient_of_other_loss as g21
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import Site

PROGRAM = """\
task = F.mse_loss(net(x), y)
penalty = net.weight.pow(2).sum()
reg = 0.1 * net.weight.abs().sum()
(task + penalty).backward()
"""


def share(
    kind: str = "term", op: str = "mse_loss", line: int = 90, passes: Sequence[int] = (1,), written: float = 1.0,
    found: float = 1.0, *, bound: float = 1e-4, tied: int = 0, file: str = "train.py",
) -> ev.Share:  # fmt: skip
    return ev.Share(kind, op, Site(file, line, "main"), tuple(passes), written, found, bound, tied)


def explained(*shares: ev.Share, fit: str = "written", scale: float = 1.0, **values: object) -> ev.OracleExplained:
    fields = {"optimizer": 1, "tensors": (1, 2), "residual": 0.0, "tolerance": 3e-5, "site": at(10), **values}
    return ev.OracleExplained(fit=fit, shares=shares, scale=scale, **fields)  # type: ignore[arg-type]


def abstained(iteration: int, line: int = 12) -> ev.OracleAbstained:
    what = "`dropout` draws random numbers"
    return ev.OracleAbstained(iteration=iteration, optimizer=1, reason="random", what=what, where=at(line))


# ------------------------------------------------------------------------------------------- sentences


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def test_a_term_is_named_by_what_its_line_makes_it(program: str) -> None:
    shares = (
        share(line=1, file=program), share(op="sum", line=2, written=2.0, found=2.0, file=program),
        share(op="sum", line=3, written=0.1, found=0.1, file=program),
    )  # fmt: skip
    said = oracle.sentence(explained(*shares), World())
    assert said == "consumed = 1.00·task (train.py:1) + 2.00·penalty (train.py:2) + 0.10·sum (train.py:3)"


def test_two_operations_of_one_line_are_told_apart() -> None:
    said = oracle.sentence(explained(share(op="mean"), share(op="sum", written=-0.5, found=-0.5)), World())
    assert said == "consumed = 1.00·mean (train.py:90) - 0.50·sum (train.py:90)"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (explained(*(share(passes=(n,)) for n in range(4))), "1.00·mse_loss (train.py:90) in each of 4 passes"),
        (explained(share(op="mean"), share(op="mean")), "1.00·mean (train.py:90) for each of 2 terms"),
        (explained(share(found=0.5, tied=1), share(found=0.5, tied=1)), "1.00·mse_loss (train.py:90)"),
        (explained(share(), share("constant", "mean", 91, found=0.0)), "0.00·mean (train.py:91, no graph)"),
        (explained(*(share("earlier", "pass", 8, (n,)) for n in (1, 2))), "= 2 earlier passes (train.py:8)"),
        (explained(share("earlier", "pass", 8, found=0.5)), "0.50·1 earlier pass (train.py:8)"),
        (explained(share(found=0.0371), fit="scaled", scale=0.0371), "0.0371 × (1.00·mse_loss (train.py:90))"),
        (explained(share(written=1024.0), fit="scaled", scale=1 / 1024), "consumed = 1.00·mse_loss (train.py:90)"),
        (explained(*(share(op=f"op{n}") for n in range(14))), " + 5 more"),
    ],
)  # fmt: skip
def test_the_words_of_a_sum(event: ev.OracleExplained, words: str) -> None:
    said = oracle.sentence(event, World())
    assert said.startswith("consumed = ")
    assert said.endswith(words)


# ------------------------------------------------------------------------------------------- the section


def report_of(*events: ev.Event) -> oracle.Summary:
    world = World()
    for number, event in enumerate(events):
        world.apply(dataclasses.replace(event, seq=number))
    found = oracle.summary(world)
    assert found is not None
    return found


def test_iterations_are_counted_once_and_by_the_worst() -> None:
    found = report_of(
        explained(share(), iteration=0), explained(share(), iteration=0, optimizer=2),
        explained(share(), iteration=1), abstained(1), explained(share(), iteration=2, weight=5),
        explained(share(), iteration=3, fit="none", residual=0.25), abstained(4), abstained(4, line=13),
    )  # fmt: skip
    assert (found.explained, found.unexplained, found.abstained) == (6, 1, 2)
    assert oracle.headline(found) == "oracle: 6 iterations explained, 1 not explained, 2 not replayable"
    assert [(a.iterations, a.site.line) for a in found.reasons] == [(2, 12), (1, 13)]
    assert any("0.25 is left of" in e.text for e in found.explanations)


def test_what_differs_in_a_count_or_a_scale_only_is_one_line() -> None:
    growing = [
        explained(share(), *(share("earlier", "pass", 8, (n,)) for n in range(k)), iteration=k) for k in range(1, 5)
    ]
    scaled = [explained(share(found=s), fit="scaled", scale=s, iteration=9) for s in (0.1234, 0.0371)]
    texts = [e.text for e in report_of(*growing, *scaled).explanations]
    assert texts == [
        "consumed = 1.00·mse_loss (train.py:90) + 1 to 4 earlier passes (train.py:8)",
        "consumed = s × (1.00·mse_loss (train.py:90)), s from 0.0371 to 0.1234",
    ]


def test_memory_is_bounded() -> None:
    world = World()
    for number in range(1000):
        world.apply(explained(share(), iteration=number, seq=number))
        world.apply(abstained(number, line=number))
    assert len(world.oracle.of(1)) <= 128
    assert len(world.oracle.reasons) <= 64
    assert world.oracle.tallies["abstained"] == 1000


def test_every_form_of_the_report_tells_it() -> None:
    run = Run()
    run.emit(ev.OracleExplained, at(10), **{
        f: getattr(explained(share(), share("earlier", "pass", 8)), f)
        for f in ("optimizer", "tensors", "fit", "shares", "scale", "residual", "tolerance")
    })  # fmt: skip
    run.iteration = 1
    run.emit(ev.OracleAbstained, at(10), optimizer=1, reason="random", what="`dropout` draws", where=at(12))
    run.end()
    report = audit(run.events)
    said = "consumed = 1.00·mse_loss (train.py:90) + 1 earlier pass (train.py:8)"
    for document in (text.render(report, width=200), md.render(report)):
        assert "oracle: 1 iteration explained, 1 not replayable" in document
        assert f"{said}: 1 iteration, first 0" in document
        assert "not replayable: `dropout` draws (train.py:12): 1 iteration" in document
    page = html.render(report)
    assert 'id="oracle"' in page
    assert said in page
    document = json.loads(json_form.render(report))["oracle"]
    assert (document["explained"], document["unexplained"], document["not_replayable"]) == (1, 0, 1)
    assert document["explanations"][0]["text"] == said
    assert document["reasons"][0] | {"line": 12, "reason": "random"} == document["reasons"][0]
    assert "·" not in text.render(report, ascii_only=True)


def test_a_run_without_it_says_nothing() -> None:
    run = Run()
    run.end()
    report = audit(run.events)
    assert report.oracle is None
    assert "oracle" not in text.render(report)
    assert 'id="oracle"' not in html.render(report)
    assert json.loads(json_form.render(report))["oracle"] is None


def test_the_evidence_of_a_finding_is_a_line_of_its_own() -> None:
    evidence = {"steps": 3, "oracle": "consumed = 1.00·task + " + "x" * 90}
    finding = Finding("G1", "error", at(8), "m", "f", evidence=evidence)
    judged = Judge()
    for document in (
        text.render(_with(judged, finding), width=200), md.render(_with(judged, finding)),
        html.render(_with(judged, finding)),
    ):  # fmt: skip
        assert "x" * 90 in document
    assert "evidence  steps 3\n" in text.render(_with(judged, finding), width=200)


def _with(judged: Judge, finding: Finding) -> Report:
    return dataclasses.replace(judged.finish(), findings=(finding,), events=1)


# ------------------------------------------------------------------------------------------- evidence


def missing() -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(6):
        run.backward(net, line=8)
        run.step(opt, line=10)
    return run


def repeated() -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(6):
        run.zero_grad(opt, line=6)
        first = run.backward(net, line=7, retain_graph=True)
        run.backward(net, line=8, repeats=first)
        run.step(opt, line=10)
    return run


def doubled() -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(6):
        run.zero_grad(opt, line=6)
        run.backward(net, line=8, terms=(mean_term(0.5, times=2), mean_term(op="l1_loss")))
        run.step(opt, line=10)
    return run


def undivided() -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(6):
        run.zero_grad(opt, line=6)
        for _ in range(4):
            run.backward(net, line=8, terms=(mean_term(),))
        run.step(opt, line=10)
    return run


def without_graph() -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(6):
        run.zero_grad(opt, line=6)
        run.backward(net, line=8, terms=(mean_term(), constant(*net.tensors)))
        run.step(opt, line=10)
    return run


def foreign() -> Run:
    from audit.rules.test_g21 import actor_critic

    return actor_critic(6)


def four(fit: str = "written", scale: float = 1.0) -> ev.OracleExplained:
    """Four passes, all of them with one coefficient."""
    return explained(*(share(passes=(n,), found=scale) for n in range(4)), fit=fit, scale=scale)


CONSTANT = constant(1)
GONE = share(line=15, passes=(1,), found=0.0)
CASES: list[tuple[ModuleType, object, ev.OracleExplained, str]] = [
    (g01, missing, explained(share(), share("earlier", "pass", 8, (1,))), "certain"),
    (g01, missing, explained(share(), share("earlier", "pass", 8, (1,), found=0.0), fit="free"), "denied"),
    (g01, missing, explained(share(), share("earlier", "pass", 8, (1,), found=0.0, bound=9.0)), "as it was"),
    (g01, missing, explained(share(), share("earlier", "pass", 8, (1,)), fit="none"), "as it was"),
    (g01, missing, explained(share(), share("earlier", "pass", 8, (1,)), optimizer=9), "as it was"),
    (g05, repeated, explained(share(passes=(1, 2), written=2.0, found=2.0)), "certain"),
    (g05, repeated, explained(share(passes=(1, 2), written=2.0, found=1.0), fit="free"), "denied"),
    (g05, repeated, explained(share(passes=(1, 2), written=2.0, found=0.5), fit="scaled", scale=0.25), "certain"),
    (g05, repeated, explained(share(passes=(1, 2), written=2.0, found=2.0, bound=4.0)), "as it was"),
    (g05, repeated, explained(share(passes=(1,))), "as it was"),
    (g07, doubled, explained(share(written=1.0, found=1.0)), "certain"),
    (g07, doubled, explained(share(written=1.0, found=0.5), fit="free"), "denied"),
    (g07, doubled, explained(*(share(written=0.5, found=0.5, tied=1) for _ in range(2))), "certain"),
    (g07, doubled, explained(*(share(written=0.5, found=0.5) for _ in range(2))), "denied"),
    (g07, doubled, explained(share(op="l1_loss")), "as it was"),
    (g08, undivided, four(), "certain"),
    (g08, undivided, four("scaled", 0.25), "denied"),
    (g08, undivided, four("scaled", 0.3), "as it was"),
    (g11, without_graph, explained(share(), share("constant", CONSTANT.op, CONSTANT.site.line, found=0.0)), "certain"),
    (g11, without_graph, explained(share()), "as it was"),
    (g21, foreign, explained(share(), share(line=15, passes=(1,)), optimizer=2), "certain"),
    (g21, foreign, explained(share(passes=(2,)), GONE, fit="free", optimizer=2), "denied"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "make", "event", "outcome"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_finding_takes_the_numbers_as_evidence(rule: ModuleType, make, event, outcome: str) -> None:  # type: ignore[no-untyped-def]
    run: Run = make()
    (before,) = judge(rule, run)
    run.events.append(event)
    (after,) = judge(rule, run)
    if outcome == "certain":
        assert (after.severity, after.confidence) == ("error", "certain")
        assert str(after.evidence["oracle"]).startswith("consumed = ")
    elif outcome == "denied":
        assert (after.severity, after.confidence) == ("info", "likely")
        assert str(after.evidence["oracle"]).endswith(": not so in numbers")
    else:
        assert after == before
