"""GL-M03: modules or parameters in a plain container."""

from __future__ import annotations

from audit import build_modules as bm
from audit.build import Run, judge, lines
from gradledger.audit.rules import m03_modules_in_plain_container as m03


def hidden(*, registered: bool = False, passed: bool = False, filled: bool = True) -> Run:
    run = Run()
    net = run.module("net", line=3)
    blocks = [run.module(f"block{i}", line=4) for i in range(2)]
    tensors = tuple(t for b in blocks for t in b.tensors)
    bm.plain(run, net, "blocks", "modules", tensors=tensors, modules=tuple(b.ident for b in blocks), line=5)
    if registered:
        for i, block in enumerate(blocks):
            run.attach(net, block, f"block{i}", 6)
    opt = run.optimizer(net, *(blocks if passed or registered else ()), line=7)
    return bm.loop(run, opt, net, *(blocks if filled else ()))


def test_the_container_is_one_finding() -> None:
    (finding,) = judge(m03, hidden())
    assert finding.severity == "error"
    assert finding.site.line == 5
    assert lines(finding) >= {7, bm.BACKWARD}
    assert finding.evidence["tensors"] == 4
    assert "ModuleList" in finding.fix


def test_registered_under_another_name_too() -> None:
    assert judge(m03, hidden(registered=True)) == []


def test_passed_to_the_optimizer() -> None:
    assert judge(m03, hidden(passed=True)) == []


def test_frozen_and_kept_out_on_purpose() -> None:
    assert judge(m03, hidden(filled=False)) == []


def test_a_list_of_parameters() -> None:
    run = Run()
    net = run.module("net", line=3)
    weights = [run.leaf(line=5, is_parameter=True, attribute_of=net.ident) for _ in range(2)]
    bm.plain(run, net, "ws", "tensors", tensors=tuple(weights), requires_grad=True, floating=True, is_parameter=True)
    opt = run.optimizer(net, line=6)
    (finding,) = judge(m03, bm.loop(run, opt, net, *weights))
    assert "ParameterList" in finding.fix
