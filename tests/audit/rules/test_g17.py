"""GL-G17: data that requires grad."""

from __future__ import annotations

from typing import Any

import pytest

from audit.build import Run, judge, lines
from gradledger.audit.rules import g12_gradient_on_unheld_leaf as g12
from gradledger.audit.rules import g17_data_requires_grad as g17


def run_with(read: bool = False, **leaf: Any) -> Run:
    run = Run()
    net = run.module("net", line=3)
    data = run.leaf(line=4, shape=(256, 6), **leaf)
    opt = run.optimizer(net, line=5)
    for _ in range(12):
        run.zero_grad(opt, line=7)
        run.backward(net, data, line=8)
        if read:
            run.read(data, line=9)
        run.step(opt, line=10)
    return run


@pytest.mark.parametrize("leaf", [{"fed_to": (1,)}, {"in_loss": True}])
def test_data_fed_to_a_model_or_a_loss(leaf: dict[str, Any]) -> None:
    run = run_with(**leaf)
    (finding,) = judge(g17, run)
    assert finding.severity == "warning"
    assert finding.site.line == 4
    assert lines(finding) >= {4, 8}
    assert judge(g12, run) == [], "one code explains it"


def test_read_gradients_and_other_leaves_are_silent() -> None:
    assert judge(g17, run_with(read=True, fed_to=(1,))) == []
    assert judge(g17, run_with()) == []
    assert judge(g17, run_with(fed_to=(1,), is_parameter=True)) == []
