"""GL-T08: no update ever reaches the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit import build
from audit.build import Net, Run, at, judge, lines
from audit.targets import deep_copy, td_step
from gradledger.audit.rules import t08_target_never_updated as t08
from gradledger.core import events as ev


def copied(run: Run, source: Net, target: Net, **values: object) -> None:
    run.emit(
        ev.Copied, at(18, 20), **{
            "how": "load_state_dict", "source": source.ident, "target": target.ident,
            "pairs": tuple(zip(source.tensors, target.tensors, strict=True)), "tau": 1.0, "changed": True, **values,
        },
    )  # fmt: skip


def agent() -> tuple[Run, Net, Net, int]:
    run = Run()
    net = run.module("net", line=5)
    target = deep_copy(run, net)
    return run, net, target, run.optimizer(net, line=7)


def test_copied_into_itself() -> None:
    run, net, target, opt = agent()
    for step in range(12):
        td_step(run, net, target, opt)
        if step % 4 == 3:
            copied(run, target, target, same=True)
    (finding,) = judge(t08, run)
    assert finding.severity == "error"
    assert finding.site.line == 18
    assert finding.evidence["self_copies"] == 3


def test_weight_zero_changes_nothing() -> None:
    run, net, target, opt = agent()
    for _ in range(6):
        td_step(run, net, target, opt)
        copied(run, net, target, how="lerp_", tau=0.0, changed=False)
    (finding,) = judge(t08, run)
    assert finding.evidence["updates"] == 6


def test_the_wrong_way_round() -> None:
    run, net, target, opt = agent()
    for _ in range(6):
        td_step(run, net, target, opt)
        copied(run, target, net)
    (finding,) = judge(t08, run)
    assert finding.evidence["why"] == "wrong direction"


def never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: str, *, still: bool = True, steps: int = 60) -> Run:
    program = tmp_path / "train.py"
    text = ["pass"] * 30
    text[9], text[10], text[20] = "q = self.net(s)", "y = self.target(s2)", update
    program.write_text("\n".join(text), encoding="utf-8")
    monkeypatch.setattr(build, "FILE", str(program))
    run, net, target, opt = agent()
    for _ in range(steps):
        td_step(run, net, target, opt)
    run.emit(ev.ValuesCompared, at(0), module=target.ident, since=1, changed=not still)
    return run


def test_an_update_in_the_source_that_never_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = judge(t08, never(tmp_path, monkeypatch, "self.target.load_state_dict(self.net.state_dict())"))
    assert finding.site.line == 21
    assert lines(finding) >= {11, 21}
    assert finding.evidence["why"] == "never ran"


@pytest.mark.parametrize(
    ("update", "more"),
    [
        ("pass", {}),
        ("self.target.load_state_dict(torch.load(path))", {}),
        ("self.target.load_state_dict(self.net.state_dict())", {"still": False}),
        ("self.target.load_state_dict(self.net.state_dict())", {"steps": 20}),
    ],
    ids=["frozen reference", "pretrained", "moved by means unseen", "too early to tell"],
)
def test_near_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: str, more: dict[str, object]) -> None:
    assert judge(t08, never(tmp_path, monkeypatch, update, **more)) == []  # type: ignore[arg-type]


def test_an_update_that_arrives_is_silent() -> None:
    run, net, target, opt = agent()
    for step in range(12):
        td_step(run, net, target, opt)
        if step % 4 == 3:
            copied(run, net, target)
    assert judge(t08, run) == []
