"""GL-G21: an optimizer applies the gradient of another network's loss."""

from __future__ import annotations

from audit.build import Net, Run, at, judge, lines
from gradledger.audit.rules import g21_gradient_of_other_loss as g21
from gradledger.core import events as ev


def call(run: Run, net: Net, line: int, *, from_graph: bool) -> ev.CallRef:
    ref = run.forward(net, line=line)
    event = run.events[-1]
    assert isinstance(event, ev.ModuleCalled)
    run.events[-1] = ev.ModuleCalled(
        seq=event.seq, iteration=event.iteration, site=event.site, call=event.call, module=event.module, training=True,
        grad_on=True, output_has_graph=True, inputs_need_grad=from_graph, batch=32,
    )  # fmt: skip
    return ref


def actor_critic(steps: int, *, clear_between: bool = False, freeze: bool = False) -> Run:
    run = Run()
    actor, critic = run.module("actor", line=3), run.module("critic", line=4)
    opt_a, opt_c = run.optimizer(actor, line=5), run.optimizer(critic, line=6)
    for _ in range(steps):
        run.zero_grad(opt_c, line=8)
        run.zero_grad(opt_a, line=9)
        own = call(run, critic, 10, from_graph=False)
        if clear_between:
            run.backward(critic, line=11, calls=(own,))
            run.step(opt_c, line=12)
        act = call(run, actor, 13, from_graph=False)
        through = call(run, critic, 14, from_graph=True)
        if freeze:
            run.freeze(critic, line=20)
        run.backward(actor, critic, line=15, calls=(act, through))
        if freeze:
            run.freeze(critic, line=21, value=True)
        if not clear_between:
            run.backward(critic, line=11, calls=(own,))
            run.step(opt_c, line=12)
        run.step(opt_a, line=16)
    return run


def test_the_actors_gradient_is_in_the_critics_step() -> None:
    (finding,) = judge(g21, actor_critic(10))
    assert finding.site.line == 15
    assert lines(finding) >= {11, 12, 14, 15}
    assert finding.count == 10


def test_cleared_or_frozen_critics_are_silent() -> None:
    assert judge(g21, actor_critic(10, clear_between=True)) == []
    assert judge(g21, actor_critic(10, freeze=True)) == []


def test_an_encoder_with_a_loss_of_its_own_is_silent() -> None:
    run = Run()
    enc, dec = run.module("enc", line=3), run.module("dec", line=4)
    opt_e, opt_d = run.optimizer(enc, line=5), run.optimizer(dec, line=6)
    for _ in range(10):
        first = call(run, enc, 8, from_graph=False)
        second = call(run, dec, 9, from_graph=True)
        run.backward(enc, line=10, calls=(first,))
        run.backward(enc, dec, line=11, calls=(first, second))
        for opt in (opt_e, opt_d):
            run.step(opt, line=12)
            run.zero_grad(opt, line=13)
    assert judge(g21, run) == []


def test_summed_losses_of_one_optimizer_are_silent() -> None:
    run = Run()
    trunk, head = run.module("trunk", line=3), run.module("head", line=4)
    opt = run.optimizer(trunk, head, line=5)
    for _ in range(10):
        run.backward(trunk, line=7)
        run.backward(trunk, head, line=8)
        run.step(opt, line=9)
        run.zero_grad(opt, line=10)
    assert judge(g21, run) == []
    assert at(9).line == 9
