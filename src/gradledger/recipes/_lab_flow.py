"""The gradient audit of one iteration, as a table: what carries a gradient, what does not, and what stopped it.

Everything in it is read from the tensors: each is made by `Flow.made`, which looks at what goes in and what comes out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Made:
    """One tensor. kept: bytes that its operation saved for the backward. stopped: what cut the flow through it, here or
    further up, "" where nothing did."""

    name: str
    tensor: Tensor
    kept: int
    stopped: str


class Flow:
    """The tensors of an iteration, in the order in which they are made."""

    def __init__(self) -> None:
        self.rows: list[Made] = []

    def leaf(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor that no operation made: data, or a parameter."""
        frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        self.rows.append(Made(name, tensor, 0, "frozen leaf" if frozen else ""))
        return tensor

    def made(self, name: str, operation: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """The result of an operation over these inputs; parameters that it uses stand among them, or in a module."""
        kept = 0

        def pack(saved: Tensor) -> Tensor:
            nonlocal kept
            kept += saved.nbytes
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            result = operation(*inputs)
        stopped = ""
        if not result.requires_grad and any(one.requires_grad for one in inputs):
            shared = any(one.untyped_storage().data_ptr() == result.untyped_storage().data_ptr() for one in inputs)
            stopped = "integer op" if not result.is_floating_point() else "detach" if shared else "no_grad"
        elif not result.requires_grad:
            above = [row.stopped for row in self.rows if row.stopped and any(row.tensor is one for one in inputs)]
            stopped = ", ".join(dict.fromkeys(above))
        if result.requires_grad:
            result.retain_grad()
        self.rows.append(Made(name, result, kept, stopped))
        return result

    def table(self) -> list[dict[str, Any]]:
        """After the backward: a row each."""
        return [
            {
                "tensor": one.name,
                "leaf": one.tensor.is_leaf,
                "grad_fn": type(one.tensor.grad_fn).__name__ if one.tensor.grad_fn is not None else None,
                "carries a gradient": one.tensor.requires_grad and one.tensor.grad is not None,
                "stopped by": one.stopped or None,
                "saved bytes": one.kept,
            }
            for one in self.rows
        ]


def gradient_audit() -> list[dict[str, Any]]:
    """One iteration of Q-learning: a frozen target network, a detached choice of what follows, the best action, and a
    value that is logged."""
    torch.manual_seed(0)
    online = nn.Linear(4, 2)
    frozen = copy.deepcopy(online).requires_grad_(False)
    flow = Flow()
    state, following, reward = (
        flow.leaf(name, torch.randn(16, width)) for name, width in (("state", 4), ("following state", 4), ("reward", 1))
    )
    weight, bias = flow.leaf("online.weight", online.weight), flow.leaf("online.bias", online.bias)
    flow.leaf("target_net.weight", frozen.weight)
    flow.leaf("target_net.bias", frozen.bias)
    values = flow.made("Q(state)", F.linear, state, weight, bias)
    action = flow.made("best action", lambda q: q.argmax(dim=1, keepdim=True), values)
    taken = flow.made("Q(state, action)", lambda q: q.gather(1, action), values)
    own = flow.made("Q(following)", F.linear, following, weight, bias)
    choice = flow.made("Q(following), detached", Tensor.detach, own)
    other = flow.made("target_net(following)", F.linear, following, frozen.weight, frozen.bias)
    td_target = flow.made(
        "td_target", lambda r, q, c: r + 0.99 * q.gather(1, c.argmax(dim=1, keepdim=True)), reward, other, choice
    )
    loss = flow.made("loss", F.mse_loss, taken, td_target)

    def logged(q: Tensor) -> Tensor:
        with torch.no_grad():
            return q.mean()

    flow.made("logged mean of Q", logged, values)
    loss.backward()  # type: ignore[no-untyped-call]
    return flow.table()


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table for a screen of 80 columns."""
    shown = [f"{'tensor':<22} {'leaf':<4} {'grad_fn':<16} {'gradient':<8} {'stopped by':<19} {'saved':>5}"]
    for row in rows:
        leaf, carries = ("yes" if row[key] else "no" for key in ("leaf", "carries a gradient"))
        shown.append(
            f"{row['tensor']:<22} {leaf:<4} {row['grad_fn'] or '-':<16} {carries:<8} {row['stopped by'] or '-':<19} "
            f"{row['saved bytes']:>5}"
        )
    return shown
