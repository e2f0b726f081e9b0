"""Builders for the facts about terms, cuts, comparisons and graphs; see `build` for the run they go into."""

from __future__ import annotations

from typing import Any

from audit.build import Net, Run, at, mean_term
from gradledger.core import events as ev


def constant(*depends: int, how: str = "detach", line: int = 7, cut: int = 6, **more: Any) -> ev.Term:
    """A loss term without graph whose value depends on these tensors through a cut at line `cut`."""
    values = {"site": at(line), "has_graph": False, "depends": depends, "cut": ev.Cut(how, at(cut)), **more}
    return mean_term(**values)


def number(value: float, *depends: int, how: str = "item", line: int = 7, cut: int = 6, factor: float = 1.0) -> ev.Term:
    """A Python number in a loss, after a value that depends on these tensors left the tensor world at line `cut`."""
    return constant(*depends, how=how, line=line, cut=cut, op="number", kind="number", value=value, factor=factor)


def trained() -> tuple[Run, Net, int]:
    """A run with one module (line 3) in one optimizer (line 4)."""
    run = Run()
    net = run.module("net", line=3)
    return run, net, run.optimizer(net, line=4)


def iterate(run: Run, net: Net, opt: int, steps: int, terms: tuple[ev.Term, ...], **values: Any) -> None:
    """`steps` iterations: clear at 8, backward at 9 of a loss summed at 7, step at 10."""
    for _ in range(steps):
        run.zero_grad(opt, line=8)
        run.backward(net, line=9, terms=terms, root_site=at(7), root_op="add", **values)
        run.step(opt, line=10)


def operand(op: str = "linear", line: int = 5, *, graph: bool = True, **more: Any) -> ev.Operand:
    """One side of a comparison."""
    return ev.Operand((4, 2), graph, op, at(line), **more)


def compare(run: Run, left: ev.Operand, right: ev.Operand, *, op: str = "mse_loss", line: int = 7, **more: Any) -> None:
    """A comparison inside a walked loss."""
    run.emit(ev.Comparison, at(line), backward=1, op=op, left=left, right=right, **more)


def discarded(run: Run, net: Net, calls: int, in_a_row: int, *callers: int, line: int = 12, **more: Any) -> None:
    """Forward calls whose graphs nobody walked."""
    values: dict[str, Any] = {
        "walked": 0, "then": "", "then_site": at(0), "training": True, "inputs_need_grad": False, **more,
    }  # fmt: skip
    run.emit(ev.GraphDiscarded, at(line, *callers), module=net.ident, calls=calls, in_a_row=in_a_row, **values)
