"""GL-G12: gradients grow on a leaf that no optimizer holds."""

from __future__ import annotations

from audit.build import Net, Run, judge, lines
from gradledger.audit import _orphans
from gradledger.audit.rules import g12_gradient_on_unheld_leaf as g12
from gradledger.audit.world import World


def loop(run: Run, net: Net, extra: Net | int, *, steps: int = 12, read_every: int = 0, clear: bool = False) -> Run:
    opt = run.optimizer(net, line=5)
    for i in range(steps):
        run.zero_grad(opt, line=7)
        if clear:
            run.clear(extra, line=8)
        run.forward(net, line=9)
        run.backward(net, extra, line=10)
        if read_every and i % read_every == 0:
            run.read(extra, line=11)
        run.step(opt, line=12)
    return run


def test_a_free_leaf_is_reported_at_the_optimizer() -> None:
    run = Run()
    net, free = run.module("net", line=3), run.leaf(line=4)
    (finding,) = judge(g12, loop(run, net, free))
    assert finding.severity == "error"
    assert finding.site.line == 5
    assert lines(finding) >= {4, 5, 10}
    assert finding.evidence["fills"] == 12


def test_a_target_network_is_a_warning_at_its_call() -> None:
    run = Run()
    net, target = run.module("net", line=3), run.module("target", line=4)
    opt = run.optimizer(net, line=5)
    for i in range(12):
        run.forward(net, line=8)
        run.forward(target, line=9)
        run.zero_grad(opt, line=10)
        run.backward(net, target, line=11)
        run.step(opt, line=12)
        if i % 4 == 0:
            run.copied(net, target, line=13)
    (finding,) = judge(g12, run)
    assert finding.severity == "warning"
    assert finding.site.line == 9


def test_a_buffer_whose_flag_was_switched_on() -> None:
    run = Run()
    net = run.module("net", line=3)
    zero = run.module("zero", line=4, tensors=1, role="buffer", parent=net)
    run.freeze(zero, line=5)
    opt = run.optimizer(net, line=6)
    for _ in range(12):
        run.freeze(zero, line=9, value=True)
        run.zero_grad(opt, line=7)
        run.forward(net, line=8)
        run.backward(net, zero, line=10)
        run.step(opt, line=11)
    (finding,) = judge(g12, run)
    assert finding.severity == "warning"
    assert finding.site.line == 9
    assert "clone()" in finding.fix


def test_read_or_cleared_gradients_are_wanted() -> None:
    for how in ({"read_every": 1}, {"clear": True}):
        run = Run()
        net, free = run.module("net", line=3), run.leaf(line=4)
        assert judge(g12, loop(run, net, free, **how)) == []  # type: ignore[arg-type]


def test_a_rare_look_does_not_excuse_it() -> None:
    run = Run()
    net, free = run.module("net", line=3), run.leaf(line=4)
    assert len(judge(g12, loop(run, net, free, steps=200, read_every=50))) == 1


def test_fresh_leaves_programs_without_optimizer_and_late_holders_are_silent() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=5)
    for _ in range(12):
        run.backward(net, run.leaf(line=6), line=10)
        run.step(opt, line=12)
        run.zero_grad(opt, line=7)
    assert judge(g12, run) == []
    run = Run()
    free = run.leaf(line=4)
    for _ in range(12):
        run.backward(free, line=10)
    assert judge(g12, run) == []
    run = Run()
    net, free = run.module("net", line=3), run.leaf(line=4)
    loop(run, net, free)
    run.optimizer(free, line=20)
    assert judge(g12, run) == []


def classify(run: Run, tensor: int) -> str:
    world = World()
    for event in run.events:
        world.apply(event)
    return _orphans.classify(tensor, world)


def test_one_code_explains_each_orphan() -> None:
    run = Run()
    net = run.module("net", line=3)
    backbone = run.module("backbone", line=3, parent=net)
    run.freeze(backbone, line=4)
    opt = run.optimizer(net, line=5)
    late = run.module("adapter", line=6, parent=net)
    run.freeze(backbone, line=7, value=True)
    data = run.leaf(line=8, shape=(64, 4), fed_to=(net.ident,))
    free = run.leaf(line=9)
    run.backward(net, line=10)
    run.step(opt, line=11)
    assert classify(run, backbone.tensors[0]) == "M7"
    assert classify(run, late.tensors[0]) == "M4"
    assert classify(run, data) == "G17"
    assert classify(run, free) == "G12"
    assert classify(run, net.tensors[0]) == ""


def test_a_rebuilt_model_is_the_optimizers_fault() -> None:
    run = Run()
    old = run.module("model", line=3)
    opt = run.optimizer(old, line=4)
    new = run.module("model", line=5)
    for _ in range(4):
        run.backward(new, line=7)
        run.step(opt, line=8)
    assert classify(run, new.tensors[0]) == "M5"
