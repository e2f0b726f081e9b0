"""GL-T03: the target lives in the network's memory."""

from __future__ import annotations

from audit.build import Run, at, judge, lines
from audit.targets import td_step
from gradledger.audit.rules import t03_target_shares_storage as t03
from gradledger.core import events as ev


def shared(run: Run, target: int, source: int, line: int = 18) -> None:
    run.emit(ev.StorageShared, at(line, 20), target=target, source=source, how="data")


def test_a_sync_that_binds_memory() -> None:
    run = Run()
    net, target = run.module("net", line=5), run.module("target", line=6)
    run.freeze(target, line=6)
    opt = run.optimizer(net, line=7)
    for t, s in zip(target.tensors, net.tensors, strict=True):
        shared(run, t, s)
    for _ in range(10):
        td_step(run, net, target, opt)
    (finding,) = judge(t03, run)
    assert finding.severity == "error"
    assert finding.site.line == 18
    assert lines(finding) >= {11, 18, 20}
    assert finding.evidence["tensors"] == 2


def test_a_repeated_sync_counts_without_a_comparison() -> None:
    run = Run()
    net, target = run.module("net", line=5), run.module("target", line=6)
    opt = run.optimizer(net, line=7)
    for _ in range(4):
        for t, s in zip(target.tensors, net.tensors, strict=True):
            shared(run, t, s)
        run.backward(net, line=15)
        run.step(opt, line=16)
    (finding,) = judge(t03, run)
    assert finding.evidence["repeated_in_iterations"] == 4


def test_sharing_once_between_modules_that_meet_in_no_loss_is_deliberate() -> None:
    run = Run()
    learner, actor = run.module("learner", line=5), run.module("actor", line=6)
    opt = run.optimizer(learner, line=7)
    for t, s in zip(actor.tensors, learner.tensors, strict=True):
        shared(run, t, s)
    for _ in range(6):
        run.backward(learner, line=15)
        run.step(opt, line=16)
    assert judge(t03, run) == []


def test_a_shallow_copy_holds_the_very_parameters() -> None:
    run = Run()
    net, target = run.module("net", line=5), run.module("target", line=6, tensors=0)
    for i, tensor in enumerate(net.tensors):
        run.emit(
            ev.TensorRegistered, at(6), tensor=tensor, module=target.ident, name=f"w{i}", role="parameter",
            shape=(4, 4), requires_grad=True,
        )  # fmt: skip
    opt = run.optimizer(net, line=7)
    for _ in range(5):
        td_step(run, net, target, opt)
    (finding,) = judge(t03, run)
    assert finding.evidence["how"] == "same tensors"
    assert lines(finding) >= {10, 11}


def test_a_wrapper_and_what_it_wraps_are_one_network() -> None:
    run = Run()
    net = run.module("net", line=5)
    wrapper = run.module("wrapper", line=6, tensors=0)
    run.attach(wrapper, net, "module", line=6)
    opt = run.optimizer(net, line=7)
    for _ in range(5):
        td_step(run, wrapper, net, opt)
    assert judge(t03, run) == []
