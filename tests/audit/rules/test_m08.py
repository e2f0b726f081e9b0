"""GL-M08: running statistics that move inside a frozen part."""

from __future__ import annotations

from audit import build_modules as bm
from audit.build import Net, Run, at, judge, lines
from gradledger.audit.rules import m08_statistics_move_in_frozen_part as m08
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site


def model() -> tuple[Run, Net, Net, int]:
    run = Run()
    net = run.module("net", line=2, tensors=0)
    norm, head = run.module("norm", line=3, parent=net), run.module("head", line=4, parent=net)
    run.freeze(norm, line=5)
    return run, net, norm, run.optimizer(head, line=6)


def moved(run: Run, net: Net, norm: Net, *, frozen: bool = True, mode: Site = NOWHERE, line: int = 9) -> None:
    run.emit(
        ev.StatisticsMoved, at(line), module=norm.ident, root=net.ident, frozen=frozen, grad_on=True, mode_site=mode
    )


def train(
    run: Run, net: Net, norm: Net, opt: int, *, steps: int = 6, mode: Site = NOWHERE, toggles: bool = False
) -> Run:
    for _ in range(steps):
        moved(run, net, norm, mode=mode)
        if toggles:
            moved(run, net, norm, frozen=False)
        bm.loop(run, opt, Net(net.ident, (3, 4)), steps=1)
    return run


def test_the_switch_to_train_mode_is_named() -> None:
    run, net, norm, opt = model()
    (finding,) = judge(m08, train(run, net, norm, opt, mode=at(7)))
    assert finding.severity == "warning"
    assert finding.site.line == 7
    assert 9 in lines(finding)
    assert finding.evidence["layers"] == 1


def test_without_a_switch_the_call_is_named() -> None:
    run, net, norm, opt = model()
    (finding,) = judge(m08, train(run, net, norm, opt))
    assert finding.site.line == 9


def test_statistics_taken_before_training() -> None:
    run, net, norm, opt = model()
    for _ in range(10):
        moved(run, net, norm)
    assert judge(m08, bm.loop(run, opt, Net(net.ident, (3, 4)))) == []


def test_a_part_that_is_frozen_for_a_pass_only() -> None:
    run, net, norm, opt = model()
    assert judge(m08, train(run, net, norm, opt, toggles=True)) == []


def test_a_network_that_is_copied_from_another() -> None:
    run, net, norm, opt = model()
    online = run.module("online", line=20)
    for _ in range(6):
        moved(run, net, norm)
        bm.loop(run, opt, Net(net.ident, (3, 4)), steps=1)
        run.copied(online, norm, 21, how="mul_add", tau=0.1)
    assert judge(m08, run) == []


def test_nothing_was_trained_afterwards() -> None:
    run, net, norm, opt = model()
    bm.loop(run, opt, Net(net.ident, (3, 4)), steps=3)
    for _ in range(4):
        moved(run, net, norm)
        run.iteration += 1
    assert judge(m08, run) == []
