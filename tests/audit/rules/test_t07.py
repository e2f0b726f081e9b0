"""GL-T07: a copy follows parameters but not buffers."""

from __future__ import annotations

import pytest

from audit.build import Net, Run, at, judge, lines
from audit.targets import deep_copy
from gradledger.audit.rules import t07_target_buffers_left_behind as t07
from gradledger.core import events as ev


def follow(
    run: Run, source: Net, target: Net, *, followed: int = 0, differ: tuple[str, ...] = ("1.running_mean",)
) -> None:
    run.emit(
        ev.Copied, at(18, 20), how="lerp_", source=source.ident, target=target.ident,
        pairs=tuple(zip(source.tensors, target.tensors, strict=True)), tau=0.1, changed=True, buffers=2,
        buffers_followed=followed, buffers_differ=differ,
    )  # fmt: skip


def averaged(steps: int, *, used: bool = True, own_statistics: bool = False, **how: object) -> Run:
    run = Run()
    net = run.module("net", line=5)
    target = deep_copy(run, net)
    opt = run.optimizer(net, line=7)
    for _ in range(steps):
        run.backward(net, line=15)
        run.step(opt, line=16)
        follow(run, net, target, **how)  # type: ignore[arg-type]
        if own_statistics:
            run.emit(ev.StatisticsMoved, at(11), module=target.ident, root=target.ident, frozen=True, grad_on=False)
    if used:
        run.forward(target, line=30, graph=False)
    return run


def test_statistics_stay_behind() -> None:
    (finding,) = judge(t07, averaged(9))
    assert finding.severity == "error"
    assert finding.site.line == 18
    assert lines(finding) >= {18, 20}
    assert finding.evidence["updates"] == 9
    assert "running_mean" in finding.message


@pytest.mark.parametrize(
    "case",
    [{"used": False}, {"own_statistics": True}, {"followed": 2, "differ": ()}, {"differ": ()}],
    ids=["shadow never runs", "moves its own", "buffers copied", "equal anyway"],
)
def test_near_misses(case: dict[str, object]) -> None:
    assert judge(t07, averaged(9, **case)) == []  # type: ignore[arg-type]


def test_one_copy_is_no_following() -> None:
    assert judge(t07, averaged(1)) == []


def test_buffers_by_a_second_chain_of_copies() -> None:
    run = averaged(4)
    net, target = (e.module for e in run.events if isinstance(e, ev.ModuleMade))
    run.emit(ev.Copied, at(19), how="copy_", source=net, target=target, pairs=(), buffers=2, buffers_followed=2)
    assert judge(t07, run) == []


@pytest.mark.parametrize(("given_back", "found"), [(True, 0), (False, 1)])
def test_an_average_that_is_saved_and_given_back_to_the_network(given_back: bool, found: int) -> None:
    run = averaged(9, used=False)
    net, average = Net(1, (1, 2)), Net(2, (3, 4))
    run.emit(ev.StateTaken, at(31), owner="module", ident=average.ident)
    if given_back:  # its statistics are made anew there
        follow(run, average, net)
    assert len(judge(t07, run)) == found
