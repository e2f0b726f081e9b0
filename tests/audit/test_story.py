"""What pictures are drawn from: the states of each step against a count by hand, and memory that does not grow."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from audit.build import Run, at
from gradledger.audit._bins import MOST, Curve, States
from gradledger.audit.story import MOST_ITERATIONS, Story, Storyteller
from gradledger.audit.world import World
from gradledger.core import events as ev


def story_of(run: Run) -> Story:
    world, teller = World(), Storyteller()
    for event in run.events:
        world.apply(event)
        teller.put(event, world)
    return teller.story(world)


def test_marks_and_states_of_a_cycle_that_is_cleared_too_rarely() -> None:
    run = Run()
    net = run.module("net", line=3, tensors=2)
    opt = run.optimizer(net, line=4)
    for n in range(6):
        if n % 3 == 0:
            run.zero_grad(opt, line=5)
        run.backward(net, line=6, value=1.0 / (n + 1))
        run.step(opt, line=7)
    story = story_of(run)
    (lane,) = story.lanes
    assert (lane.label, lane.tensors) == ("Adam 1", 2)
    marks = {i: [(m.what, m.standing, m.old) for m in lane.iterations[i]] for i in lane.iterations}
    assert marks[0] == [("clear", 0, 0), ("fill", 1, 0), ("step", 1, 0)]
    assert lane.iterations[0][0].share == 0.0, "there was nothing to clear"
    assert marks[2] == [("fill", 3, 2), ("step", 3, 2)]
    assert marks[3] == [("clear", 0, 0), ("fill", 1, 0), ("step", 1, 0)]
    total = sum((counts for _, counts in lane.states.bins()), Counter())
    assert total == {"fresh": 2, "old": 4}
    (loss,) = story.losses
    assert [p.total for _, p in loss.curve.points()] == pytest.approx([1 / (n + 1) for n in range(6)])


def test_groups_accumulation_empty_steps_and_what_is_unheld() -> None:
    run = Run()
    one, two, loose = (run.module(n, line=3, tensors=1) for n in ("a", "b", "c"))
    run.emit(
        ev.OptimizerMade, at(4), optimizer=1, cls="SGD",
        groups=(ev.Group(one.tensors, 0.1), ev.Group(two.tensors, 0.2, 0.01)),
    )  # fmt: skip
    run._held[1] = [*one.tensors, *two.tensors]
    for _ in range(2):
        run.backward(one, line=5)
        run.backward(one, line=6)
        run.step(1, line=7)
        run.zero_grad(1, line=8)
    story = story_of(run)
    first, second = story.lanes
    assert (first.label, second.label) == ("SGD 1, group 0", "SGD 1, group 1")
    assert sum((c for _, c in first.states.bins()), Counter()) == {"several": 2}
    assert sum((c for _, c in second.states.bins()), Counter()) == {"empty": 2}
    assert story.unheld == ("Net@3.w0",) or len(story.unheld) == 1
    (held,) = story.optimizers
    assert held.groups == ((1, 16, 0.1, None), (1, 16, 0.2, 0.01))
    assert {s.label for s in story.rates} == {"SGD 1", "SGD 1, group 1"}
    assert [(e.kind, e.optimizer) for e in story.registry] == [("parameter", "SGD 1")] * 2 + [("parameter", "")]
    assert loose.tensors


def test_a_late_change_is_kept_with_its_neighbours() -> None:
    run = Run()
    net = run.module("net", line=3, tensors=1)
    opt = run.optimizer(net, line=4)
    for n in range(300):
        if n != 200:
            run.zero_grad(opt, line=5)
        run.backward(net, line=6)
        run.step(opt, line=7)
    (lane,) = story_of(run).lanes
    assert {199, 200, 201, 202} <= set(lane.iterations)
    assert len(lane.iterations) < 30


def test_memory_is_bounded() -> None:
    states, curve = States(), Curve()
    for n in range(50_000):
        states.add(n, "fresh" if n % 3 else "old")
        curve.add(n, float(n))
    assert len(states.bins()) <= MOST
    assert len(curve.points()) <= MOST
    assert sum((c for _, c in states.bins()), Counter()) == {"fresh": 33333, "old": 16667}
    points = [p for _, p in curve.points()]
    assert sum(p.count for p in points) == 50_000
    assert sum(p.total for p in points) == sum(range(50_000))
    assert (min(p.low for p in points), max(p.high for p in points)) == (0.0, 49_999.0)
    run = Run()
    net = run.module("net", line=3, tensors=1)
    opt = run.optimizer(net, line=4)
    for n in range(3000):
        run.backward(net, line=5 + n % 500)  # every iteration looks new
        run.step(opt, line=4)
        run.zero_grad(opt, line=4)
    (lane,) = story_of(run).lanes
    assert len(lane.iterations) <= MOST_ITERATIONS


def test_values_that_are_not_finite_are_counted_apart() -> None:
    curve = Curve()
    for value in (1.0, math.nan, 3.0, math.inf):
        curve.add(0, value)
    ((_, point),) = curve.points()
    assert (point.count, point.total, point.bad, point.mean) == (2, 4.0, 2, 2.0)
    curve.add(1, math.nan)
    assert curve.points()[1][1].mean is None
