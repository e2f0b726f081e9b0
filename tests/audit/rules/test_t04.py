"""GL-T04: one module object is prediction and target."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit import build
from audit.build import Run, at, judge, lines
from audit.targets import deep_copy, td_step
from gradledger.audit.rules import t04_one_module_is_both as t04
from gradledger.core import events as ev


def self_copy(run: Run, net: build.Net, line: int = 18) -> None:
    run.emit(
        ev.Copied, at(line, 20), how="load_state_dict", source=net.ident, target=net.ident,
        pairs=tuple((t, t) for t in net.tensors), same=True,
    )  # fmt: skip


def test_a_sync_into_itself_and_a_target_by_itself() -> None:
    run = Run()
    net = run.module("net", line=5)
    opt = run.optimizer(net, line=7)
    for step in range(12):
        td_step(run, net, net, opt)
        if step % 4 == 3:
            self_copy(run, net)
    (finding,) = judge(t04, run)
    assert finding.severity == "error"
    assert finding.site.line == 11
    assert lines(finding) >= {10, 11, 18, 20}
    assert finding.evidence["self_copies"] == 3


def test_the_line_of_the_target_called_a_separate_copy_before() -> None:
    run = Run()
    net = run.module("net", line=5)
    target = deep_copy(run, net)
    opt = run.optimizer(net, line=7)
    for step in range(10):
        td_step(run, net, target if step < 5 else net, opt)
    (finding,) = judge(t04, run)
    assert finding.evidence["former_targets"] == 1


@pytest.mark.parametrize(("name", "found"), [("target_net", 1), ("net", 0)])
def test_a_second_name_for_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: int) -> None:
    program = tmp_path / "train.py"
    text = ["pass"] * 30
    text[7] = f"self.{name} = self.q_net"
    text[9] = "q = self.q_net(s)"
    text[10] = f"y = self.{name}(s2)"
    program.write_text("\n".join(text), encoding="utf-8")
    monkeypatch.setattr(build, "FILE", str(program))
    run = Run()
    net = run.module("net", line=5)
    opt = run.optimizer(net, line=7)
    for _ in range(6):
        td_step(run, net, net, opt)
    findings = judge(t04, run)
    assert len(findings) == found
    if found:
        assert findings[0].site.line == 8
        assert findings[0].evidence["alias"] == "target_net = q_net"


def test_semi_gradient_learning_and_restored_states_are_silent() -> None:
    run = Run()
    net = run.module("net", line=5)
    opt = run.optimizer(net, line=7)
    for _ in range(8):
        td_step(run, net, net, opt)
    assert judge(t04, run) == []

    run = Run()
    net = run.module("net", line=5)
    opt = run.optimizer(net, line=7)
    for _ in range(8):
        run.backward(net, line=15)
        run.step(opt, line=16)
        self_copy(run, net)
    assert judge(t04, run) == []
