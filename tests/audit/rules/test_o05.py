"""GL-O05: clipping that clips nothing, or the wrong thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.build import Net, Run, at, judge, lines
from gradledger.audit.rules import o05_clip_without_effect as o05
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Frame, Site

CLIP = 11


def clip(
    run: Run, *nets: Net, line: int = CLIP, limit: float = 1.0, scaled: bool = False, given: int | None = None
) -> None:
    """`clip_grad_norm_` over these modules, as the probe would tell it."""
    tensors = [t for net in nets for t in net.tensors]
    fills = {t: run._leaves[t].fills for t in tensors}
    there = tuple(t for t in tensors if fills[t] or run._leaves[t].assigned)
    every = [f for t in there for f in fills[t]]
    run.emit(
        ev.Clip, at(line), method="clip_grad_norm_", tensors=there, given=len(tensors) if given is None else given,
        limit=limit, pending=tuple(sorted({b for b, c in every if c == 0})),
        consumed=bool(every) and all(c > 0 for _, c in every), scaled=scaled, scale=1024.0 if scaled else None,
        total_norm=3.0 if there else 0.0,
    )  # fmt: skip


def loop(
    order: str, *, steps: int = 10, limit: float = 1.0, other: bool = False, scaled: bool = False, empty_after: int = 99
) -> Run:
    """`order`: z(ero), b(ackward), c(lip), s(tep)."""
    run = Run()
    net, target = run.module("net", line=2), run.module("target", line=3)
    opt = run.optimizer(net, line=4)
    for i in range(steps):
        for letter in order:
            if letter == "z":
                run.zero_grad(opt, line=8)
            elif letter == "b":
                run.backward(net, line=9)
            elif letter == "c":
                clipped = () if i >= empty_after else (target if other else net,)
                clip(run, *clipped, limit=limit, scaled=scaled)
            else:
                run.step(opt, line=12)
    run.end()
    return run


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (loop("zcbs"), "before the reverse pass"),
        (loop("cbsz"), "before the reverse pass"),
        (loop("zbsc"), "after the step"),
        (loop("zbcs", scaled=True), "loss scale 1024"),
        (loop("zbcs", other=True), "None of the gradients that the step uses"),
        (loop("zbcs", empty_after=1), "no parameter at all"),
    ],
    ids=["before the fill", "after a clear at the end", "after the step", "scaled", "other parameters", "used up"],
)
def test_clips_without_effect(run: Run, words: str) -> None:
    (finding,) = judge(o05, run)
    assert finding.severity == "error"
    assert finding.site.line == CLIP
    assert words in finding.message
    assert lines(finding) >= {9, 12}


@pytest.mark.parametrize(
    "run",
    [
        loop("zbcs"),
        loop("bcsz"),
        loop("zbsc", limit=float("inf")),
        loop("zbcs", scaled=True, limit=float("inf")),
        loop("zbbcs"),
        loop("zcb", steps=4),
    ],
    ids=["right", "clear at the end", "measured after", "measured while scaled", "two backwards", "never stepped"],
)
def test_correct_clips_are_silent(run: Run) -> None:
    assert judge(o05, run) == []


def test_per_module_with_one_that_has_no_gradient() -> None:
    run = Run()
    body, head = run.module("body", line=2), run.module("head", line=3)
    opt = run.optimizer(body, head, line=4)
    for _ in range(8):
        run.zero_grad(opt, line=8)
        run.backward(head, line=9)
        clip(run, body, line=10)
        clip(run, head)
        run.step(opt, line=12)
    assert judge(o05, run) == []


def test_clip_for_each_micro_batch() -> None:
    run = Run()
    net = run.module("net", line=2)
    opt = run.optimizer(net, line=4)
    for i in range(16):
        run.backward(net, line=9)
        clip(run, net)
        if i % 4 == 3:
            run.step(opt, line=12)
            run.zero_grad(opt, line=13)
    assert judge(o05, run) == []


def test_gradients_written_by_the_program() -> None:
    run = Run()
    net = run.module("net", line=2)
    opt = run.optimizer(net, line=4)
    for _ in range(8):
        run.assign(net)
        clip(run, net)
        run.step(opt, line=12)
    assert judge(o05, run) == []


BY_HAND = """\
def clip(params, limit):
    for p in params:
        p.grad.mul_(0.5)
params = filter(None, model.parameters())
for step in range(9):
    clip(params, 1.0)
"""


@pytest.mark.parametrize("clears", [False, True], ids=["rescales", "clears"])
def test_a_loop_by_hand_over_a_used_up_iterator(tmp_path: Path, clears: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(BY_HAND.replace("p.grad.mul_(0.5)", "p.grad = None") if clears else BY_HAND)
    run = Run()
    site = Site(str(file), 2, "clip", 1, callers=(Frame(str(file), 6, "<module>"),))
    run.emit(ev.ExhaustedIterator, site, function="clip", name="params", made_site=NOWHERE)
    found = judge(o05, run)
    if clears:
        assert found == []
    else:
        assert found[0].site.line == 4
        assert lines(found[0]) >= {2, 6}
