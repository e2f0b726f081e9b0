"""Synthetic runs with two networks: predictions, targets, copies.  Lines are those of one small program:

5 network, 6 target, 7 optimizer, 10 prediction, 11 target's call, 12 the target's expression, 13 comparison, 14 clear,
15 backward, 16 step, 18 copy.
"""

from __future__ import annotations

from typing import Any

from audit.build import Net, Run, at
from gradledger.core import events as ev


def side(*calls: ev.CallRef, graph: bool = True, line: int = 12, **more: Any) -> ev.Operand:
    """One side of a comparison that depends on these calls."""
    return ev.Operand((32,), graph, "add", at(line), calls=calls, **more)


def compare(
    run: Run, backward: int, left: ev.Operand, right: ev.Operand, *, line: int = 13, op: str = "mse_loss"
) -> None:
    """A comparison inside what a reverse pass walked."""
    run.emit(ev.Comparison, at(line), backward=backward, op=op, left=left, right=right)


def deep_copy(run: Run, source: Net, line: int = 6, name: str = "target") -> Net:
    """`name = copy.deepcopy(source)`."""
    target = run.module(name, line, len(source.tensors))
    pairs = tuple(zip(source.tensors, target.tensors, strict=True))
    run.emit(ev.DeepCopied, at(line), source=source.ident, target=target.ident, pairs=pairs)
    return target


def td_step(
    run: Run,
    online: Net,
    target: Net,
    optimizer: int,
    *,
    graph: bool = False,
    bootstrap: bool = True,
    fills: tuple[Net, ...] = (),
) -> None:
    """One step of a loss between `online`'s prediction and `target`'s (bootstrapped) output.

    `graph`: the target keeps its graph; `fills`: what the reverse pass fills besides `online`.
    """
    run.zero_grad(optimizer, line=14)
    prediction = run.forward(online, line=10)
    value = run.forward(target, line=11, graph=graph)
    backward = run.backward(online, *fills, line=15)
    right = side(value, graph=graph, bootstrap=bootstrap, discount=0.9 if bootstrap else None)
    compare(run, backward, side(prediction, selection=True, line=10), right)
    run.step(optimizer, line=16)
