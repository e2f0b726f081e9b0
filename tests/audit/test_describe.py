"""Facts in words: every kind can be told, and what it is about is found."""

from __future__ import annotations

import pytest

from audit.build import Run, at
from contract.test_events import made
from gradledger.audit.describe import describe, mentions
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.events import EVENTS, Event


@pytest.mark.parametrize("cls", list(EVENTS.values()), ids=list(EVENTS))
def test_every_kind_is_told_in_one_line(cls: type[Event]) -> None:
    event = made(cls)
    for world in (World(), world_with(event)):
        text = describe(event, world)
        assert text
        assert "\n" not in text
        assert "(stands for 3)" in text, "the weight of a sample is told"
    assert all(isinstance(n, int) for n in (*mentions(event).tensors, *mentions(event).modules))


def world_with(event: Event) -> World:
    world = World()
    world.apply(event)
    return world


def test_words_of_a_small_run() -> None:
    run = Run()
    net = run.module("net", line=3, tensors=2)
    opt = run.optimizer(net, line=4)
    run.backward(net, line=5, value=0.25)
    run.step(opt, line=6)
    run.backward(net, line=7)
    run.step(opt, line=8)
    run.zero_grad(opt, line=9)
    world = World()
    for event in run.events:
        world.apply(event)
    told = {(e.KIND, e.site.line): describe(e, world) for e in run.events}
    assert told["optimizer_made", 4] == "Adam 1: 2 tensors, lr 0.001"
    assert told["backward", 5] == "pass 1 of loss 0.25 fills Net.w0 and Net.w1"
    assert told["step", 6] == "Adam 1, step 0: 2 filled by 1 pass"
    assert told["step", 8] == "Adam 1, step 1: 2 filled by 2 passes (1 used before)"
    assert told["clear", 9] == "zero_grad empties Net.w0 and Net.w1"


def test_what_a_fact_is_about() -> None:
    life = ev.Life((4, 5), "filled")
    step = ev.Step(site=at(1), optimizer=9, index=0, lives=(life,))
    assert mentions(step).tensors == {4, 5}
    term = ev.Term("mean", at(1), 1.0, 1, True, "tensor", 0.0, depends=(7,), leaves=(8,))
    walk = ev.Backward(site=at(1), backward=3, method="backward", leaves=(1,), terms=(term,), calls=(
        ev.CallRef(2, 6, at(1), True, True, True),))  # fmt: skip
    assert mentions(walk).tensors == {1, 7, 8}
    assert mentions(walk).modules == {6}
    shared = ev.StorageShared(site=at(1), target=3, source=4, how="data")
    copied = ev.Copied(site=at(1), how="copy_", source=3, target=4, pairs=((1, 2),))
    assert (mentions(shared).tensors, mentions(shared).modules) == ({3, 4}, set())
    assert (mentions(copied).tensors, mentions(copied).modules) == ({1, 2}, {3, 4})
    loaded = ev.StateLoaded(site=at(1), owner="module", ident=5, origin_ident=6)
    assert mentions(loaded).modules == {5, 6}
    assert mentions(ev.StateLoaded(site=at(1), owner="optimizer", ident=5)).modules == set()
