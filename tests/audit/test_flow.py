"""Where gradients flow and where they stop: each reason from the facts that give it."""

from __future__ import annotations

import json

import pytest

from audit.build import Run, at, mean_term
from gradledger.audit.flow import Flow, FlowWatch, Row
from gradledger.audit.render import flow as form
from gradledger.audit.world import World
from gradledger.core import events as ev


def flow_of(run: Run, iteration: int | None = None) -> Flow | None:
    world, watch = World(), FlowWatch(iteration)
    for event in run.events:
        world.apply(event)
        watch.put(event, world)
    return watch.flow(world)


def rows_of(run: Run, iteration: int | None = None) -> dict[str, Row]:
    flow = flow_of(run, iteration)
    assert flow is not None
    return {row.name: row for row in flow.rows}


def test_what_carries_and_what_is_frozen() -> None:
    run = Run()
    net, base = run.module("net", line=3, tensors=2), run.module("base", line=4, tensors=1)
    opt = run.optimizer(net, line=5)
    run.freeze(base, line=6)
    run.zero_grad(opt, line=7)
    run.forward(net, line=8)
    run.backward(net, line=9)
    run.emit(ev.StepMeasured, at(10), optimizer=opt, tensors=net.tensors, gradients=(3.0, 4.0), values=(1.0, 1.0))
    run.step(opt, line=10)
    flow = flow_of(run)
    assert flow is not None
    assert (flow.iteration, flow.last, flow.carrying, flow.stepped) == (0, 0, 2, ("Adam 1",))
    first, second, frozen = flow.rows
    assert (first.carries, first.passes, first.old, first.norm, second.norm) == (True, 1, 0, 3.0, 4.0)
    assert (frozen.carries, frozen.stop, frozen.site.line, frozen.optimizer) == (False, "frozen", 6, "")


def test_a_cut_a_no_grad_and_an_unused_module() -> None:
    run = Run()
    net, cut, quiet, idle = (run.module(n, line=i, tensors=1) for i, n in enumerate(("a", "b", "c", "d"), start=3))
    opt = run.optimizer(net, cut, quiet, idle, line=8)
    run.forward(net, line=10)
    run.forward(cut, line=11)
    run.forward(quiet, line=12, graph=False)
    detach = ev.Cut("detach", at(13))
    run.backward(net, line=14, terms=(mean_term(), mean_term(has_graph=False, depends=cut.tensors, cut=detach)))
    run.step(opt, line=15)
    flow = flow_of(run)
    assert flow is not None
    assert [(r.carries, r.stop, r.site.line) for r in flow.rows] == [
        (True, "", 0), (False, "detach", 13), (False, "no_grad", 12), (False, "unused", 6)
    ]  # fmt: skip
    assert [(s.how, s.site.line) for s in flow.stops] == [("`.detach()`", 13)]


def test_what_is_cut_off_inside_of_a_model_is_named_by_the_line_that_calls_the_part() -> None:
    run = Run()
    model = run.module("model", line=3, tensors=0)
    encoder = run.module("encoder", line=4, tensors=0, parent=model)
    layer = run.module("0", line=5, tensors=1, parent=encoder)
    head = run.module("head", line=6, tensors=1, parent=model)
    opt = run.optimizer(layer, head, line=7)
    for part, line in ((model, 20), (encoder, 15), (layer, 11), (head, 18)):
        run.emit(ev.ModuleUsed, at(line), module=part.ident)
    run.forward(model, line=20)
    run.backward(head, line=21)
    run.step(opt, line=22)
    inner, outer = rows_of(run).values()
    assert (inner.name.endswith("encoder.0.w0"), inner.stop, inner.site.line) == (True, "unreached", 15)
    assert outer.carries


def test_a_side_of_a_comparison_without_graph() -> None:
    run = Run()
    net, target = run.module("net", line=3, tensors=1), run.module("target", line=4, tensors=1)
    opt = run.optimizer(net, line=5)
    run.forward(net, line=6)
    ref = run.forward(target, line=7, graph=False)
    back = run.backward(net, line=9)
    left = ev.Operand((8,), True, "add", at(6))
    right = ev.Operand((8,), False, "add", at(7), calls=(ref,))
    run.emit(ev.Comparison, at(8), backward=back, op="mse_loss", left=left, right=right)
    run.step(opt, line=10)
    flow = flow_of(run)
    assert flow is not None
    assert [(s.how, s.site.line) for s in flow.stops] == [("no_grad", 7)]
    assert (flow.rows[1].stop, flow.rows[1].site.line) == ("no_grad", 7)


def test_held_by_no_optimizer_and_only_old_gradients() -> None:
    run = Run()
    net, loose = run.module("net", line=3, tensors=1), run.module("loose", line=4, tensors=1)
    opt = run.optimizer(net, line=5)
    run.backward(net, loose, line=6)
    run.step(opt, line=7)
    run.backward(loose, line=8)
    run.step(opt, line=9)
    first, second = rows_of(run).values()
    assert (first.carries, second.carries, second.stop) == (True, True, "not held")
    later = list(rows_of(run, 1).values())
    assert (later[0].carries, later[0].passes, later[0].old) == (False, 1, 1)


def test_several_optimizers_are_seen_together() -> None:
    run = Run()
    one, two = run.module("g", line=3, tensors=1), run.module("d", line=4, tensors=1)
    a, b = run.optimizer(one, line=5), run.optimizer(two, line=6)
    for _ in range(3):
        run.backward(two, line=7)
        run.step(b, line=8)
        run.backward(one, line=9)
        run.step(a, line=10)
    flow = flow_of(run, 2)
    assert flow is not None
    assert (flow.iteration, flow.last, flow.carrying) == (2, 3, 2)
    assert [site.line for site, _, _ in flow.passes] == [7, 9]


def test_the_first_whose_gradients_are_filled_and_used() -> None:
    run = Run()
    net = run.module("net", line=3, tensors=1)
    opt = run.optimizer(net, line=4)
    run.step(opt, line=5)
    run.backward(net, line=6)
    run.step(opt, line=7)
    assert flow_of(run).iteration == 1  # type: ignore[union-attr]
    empty = Run()
    opt = empty.optimizer(empty.module("net", line=3, tensors=1), line=4)
    for _ in range(3):
        empty.step(opt, line=5)
    flow = flow_of(empty)
    assert flow is not None
    assert (flow.iteration, flow.carrying, flow.rows[0].stop) == (0, 0, "no pass")


@pytest.mark.parametrize("iteration", [None, 7])
def test_no_such_iteration(iteration: int | None) -> None:
    run = Run()
    net = run.module("net", line=3, tensors=1)
    run.forward(net, line=4)
    if iteration is not None:
        opt = run.optimizer(net, line=5)
        run.backward(net, line=6)
        run.step(opt, line=7)
    assert flow_of(run, iteration) is None


def test_forms() -> None:
    run = Run()
    net, base = run.module("net", line=3, tensors=1), run.module("base", line=4, tensors=2)
    opt = run.optimizer(net, line=5)
    run.freeze(base, line=6)
    run.backward(net, line=7, value=float("nan"))
    run.step(opt, line=8)
    flow = flow_of(run)
    assert flow is not None
    shown = form.text(flow, program="train.py")
    assert shown.startswith("gradflow: iteration 0 of train.py: 1 of 3 parameters carry a gradient\n")
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("requires_grad is False (train.py:6)") == 1, "a reason is given once for rows alike"
    document = json.loads(form.as_json(flow, program="train.py"))
    assert (document["schema"], document["carrying"]) == (1, 1)
    assert [p["stopped_by"] for p in document["parameters"]] == [None, "frozen", "frozen"]
    assert document["reverse_passes"][0]["loss"] == "nan"
