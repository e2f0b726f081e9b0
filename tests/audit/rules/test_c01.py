"""GL-C01: resumed without the optimizer."""

from __future__ import annotations

import pytest

from audit.build import Net, Run, at, judge
from audit.build_graph import iterate
from gradledger.audit.rules import c01_resumed_without_optimizer as c01
from gradledger.core import events as ev

FILE = ("module", "optimizer", "number")


def read(run: Run, *what: str, line: int) -> None:
    run.emit(ev.FileTouched, at(line), method="load", what=what)


def fill(run: Run, net: Net, line: int) -> None:
    run.emit(ev.StateLoaded, at(line), owner="module", ident=net.ident, matched=len(net.tensors), origin="file")


def hand(run: Run, optimizer: int) -> None:
    run.emit(ev.StateLoaded, at(0), owner="optimizer", ident=optimizer, matched=2, origin="hand")


@pytest.mark.parametrize("what", [FILE, ("module", "optimizer")])
def test_moments_that_are_in_the_file_and_stay_there(what: tuple[str, ...]) -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    read(run, *what, line=5)
    fill(run, net, line=6)
    iterate(run, net, opt, 3, ())
    (finding,) = judge(c01, run)
    assert finding.site.line == 6
    assert "the file holds it, and nothing loads it" in finding.message


def test_moments_put_back_by_hand_right_before_the_first_step() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    read(run, *FILE, line=5)
    fill(run, net, line=6)
    hand(run, opt)
    iterate(run, net, opt, 3, ())
    assert judge(c01, run) == []


@pytest.mark.parametrize("between", ["state", "step"])
def test_what_was_read_for_one_network_is_not_what_the_next_one_was_filled_from(between: str) -> None:
    """A resumed run reads the optimizer's file after the network's; later another network is filled from another."""
    run = Run()
    net, other = run.module("net", line=3), run.module("other", line=3)
    opt = run.optimizer(net, line=4)
    read(run, "module", line=5)
    fill(run, net, line=5)
    read(run, "optimizer", "number", line=6)
    if between == "state":
        hand(run, opt)
    iterate(run, net, opt, 2, ())
    read(run, "module", line=11)
    fill(run, other, line=11)
    new = run.optimizer(other, line=12)
    iterate(run, other, new, 2, ())
    if between == "state":
        assert judge(c01, run) == []
    else:  # the first network's own optimizer was never given what was read for it
        assert [finding.site.line for finding in judge(c01, run)] == [5]
