"""GL-G06: a clear between two backwards of one step."""

from __future__ import annotations

from audit.build import Run, judge, lines
from gradledger.audit.rules import g02_cleared_before_step as g02
from gradledger.audit.rules import g06_cleared_between_backwards as g06


def two_losses(steps: int, *, clear: bool = True, read: bool = False) -> Run:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(steps):
        run.zero_grad(opt, line=6)
        run.backward(net, line=7)
        if read:
            run.read(net, line=8)
        if clear:
            run.zero_grad(opt, line=9)
        run.backward(net, line=10)
        run.step(opt, line=11)
    return run


def test_the_first_loss_is_lost() -> None:
    run = two_losses(10)
    (finding,) = judge(g06, run)
    assert finding.site.line == 9
    assert lines(finding) >= {7, 9, 10}
    assert judge(g02, run) == []


def test_micro_batches_lost_one_by_one() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(6):
        for _ in range(4):
            run.zero_grad(opt, line=6, to_none=True)
            run.backward(net, line=7)
        run.step(opt, line=9)
    (finding,) = judge(g06, run)
    assert finding.site.line == 6
    assert finding.evidence["reverse_passes_lost"] == 18


def test_sharpness_aware_steps_and_two_losses_are_silent() -> None:
    assert judge(g06, two_losses(10, read=True)) == []
    assert judge(g06, two_losses(10, clear=False)) == []


def test_a_pass_for_the_gradient_of_an_input_is_silent() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for _ in range(10):
        x = run.leaf(line=5, shape=(8, 4))
        run.backward(net, x, line=6)
        run.read(x, line=7)
        run.zero_grad(opt, line=8)
        run.backward(net, line=9)
        run.step(opt, line=10)
    assert judge(g06, run) == []


def test_reads_seen_in_watched_iterations_speak_for_the_others() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    for i in range(60):
        watched = i < 20
        run.zero_grad(opt, line=6)
        run.backward(net, line=7, detailed=watched)
        if watched:
            run.read(net, line=8)
        run.zero_grad(opt, line=9)
        run.backward(net, line=10, detailed=watched)
        run.step(opt, line=11)
    assert judge(g06, run) == []


def test_a_leftover_of_the_epoch_is_not_this() -> None:
    run = Run()
    net = run.module("net", line=3)
    opt = run.optimizer(net, line=4)
    loader = run.loader(line=5, length=7)
    for epoch in range(6):
        run.epoch(loader, line=6, index=epoch)
        run.zero_grad(opt, line=7)
        for i in range(7):
            run.backward(net, line=9)
            if i == 3:
                run.step(opt, line=10)
                run.zero_grad(opt, line=11)
    assert judge(g06, run) == []


def test_who_used_a_pass_is_asked_before_it_is_forgotten() -> None:
    """An actor's loss leaves gradients in the critic, which are cleared there; in a long run with three optimizers."""
    run = Run()
    critic, actor, alpha = (run.module(name, line=1) for name in ("critic", "actor", "alpha"))
    optimizers = [run.optimizer(net, line=2) for net in (critic, actor, alpha)]
    for _ in range(450):
        run.zero_grad(optimizers[2], line=3)
        run.backward(alpha, line=4)
        run.step(optimizers[2], line=5)
        run.zero_grad(optimizers[0], line=6)
        run.backward(critic, line=7)
        run.step(optimizers[0], line=8)
        run.zero_grad(optimizers[1], line=9)
        run.backward(critic, actor, line=10)
        run.step(optimizers[1], line=11)
    run.end()
    assert not judge(g06, run)
