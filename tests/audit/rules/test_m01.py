"""GL-M01: a raw tensor where a parameter is meant."""

from __future__ import annotations

from audit import build_modules as bm
from audit.build import Run, judge, lines
from gradledger.audit.rules import m01_raw_tensor_as_parameter as m01


def raw(*, handed_over: bool = False, by_hand: bool = False, trained: bool = True, parameter: bool = False) -> Run:
    run = Run()
    net, other = run.module("net", line=3), run.module("other", line=4)
    gain = run.leaf(line=5, attribute_of=net.ident)
    kind = "tensors" if parameter else "tensor"
    bm.plain(run, net, "gain", kind, tensors=(gain,), requires_grad=True, floating=True, is_parameter=parameter)
    held = [net if trained else other, *([gain] if handed_over else [])]
    opt = run.optimizer(*held, line=6)
    for _ in range(10):
        run.zero_grad(opt, line=8)
        run.backward(net, gain, line=10)
        run.step(opt, line=12)
        if by_hand:
            run.read(gain, line=13)
            run.clear(gain, line=14)
    return run


def test_the_attribute_is_named_with_its_optimizer() -> None:
    (finding,) = judge(m01, raw())
    assert finding.severity == "error"
    assert finding.site.line == 5
    assert lines(finding) >= {6, 12}
    assert finding.evidence["reverse_passes"] == 10
    assert finding.subject.endswith(".gain")


def test_a_tensor_that_the_optimizer_holds() -> None:
    assert judge(m01, raw(handed_over=True)) == []


def test_a_tensor_that_the_program_updates_by_hand() -> None:
    assert judge(m01, raw(by_hand=True)) == []


def test_a_model_that_nobody_trains() -> None:
    assert judge(m01, raw(trained=False)) == []


def test_parameters_in_a_list_are_another_rule() -> None:
    assert judge(m01, raw(parameter=True)) == []
