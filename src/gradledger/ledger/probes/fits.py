"""Regressions on small tables: rows of input and target as they are trained on, and whether one follows from the other.

Rows are collected in the watched iterations, up to a few hundred for each line that compares; the numbers are worked
out once, when there are enough or when the run ends.  Of wide inputs (images) only a number for each row is kept: it
tells which rows come again, and whether with the same target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gradledger.core.events import TargetExplained, TargetsExchanged
from gradledger.core.site import Site
from gradledger.ledger import _regress
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session

COLUMNS = 12  # of input or target, at most
WIDE = 64  # of the target of a wide input, those that are kept
ELEMENTS = 1 << 18  # of a wide input
TRIED = 8  # iterations in which wide inputs are kept although nothing is compared
ENOUGH = _regress.NEAR_ROWS
LEAST = 200
BATCHES = 200
SPOTS = 4
AGAIN = 40  # rows that came again with another target
APART = 0.1  # from here on a function of the input is tried
EXPLAINED = 0.85  # a target column below this is not explained
_LOSSES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub"})
_VISITS = 400


@dataclass
class _Spot:
    """One line that compares: rows so far; `unfit` when they are no tables of one width; `wide`: the inputs are one
    number a row."""

    site: Site
    module: int
    x: list[Any] = field(default_factory=list)
    y: list[Any] = field(default_factory=list)
    rows: int = 0
    unfit: bool = False
    told: bool = False
    wide: bool = False


def _table(tensor: torch.Tensor, most: int) -> Any:
    """[B, columns] in float64; None when it is none, or has more than `most` elements."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_complex():
        return None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if tensor.is_quantized or tensor.dim() == 0 or not 0 < tensor.numel() <= most:
        return None
    found = tensor.detach().to(torch.float64).numpy().reshape(tensor.shape[0], -1).copy()
    return found if np.isfinite(found).all() else None


def _is_wide(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 2 or (tensor.dim() == 2 and tensor.shape[1] > COLUMNS)


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.trace = session.trace
        self.inputs: dict[int, tuple[Any, bool] | None] = {}  # of a call: a table, and whether it is a wide one
        self.iteration = -1
        self.iterations = 0
        self.spots: dict[tuple[str, int], _Spot] = {}

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """Keep the inputs of this iteration's calls: tables, or None for anything else."""
        if call.iteration != self.iteration:
            self.iteration = call.iteration
            self.iterations += 1
            self.inputs.clear()
        if not self.trace.active or not call.grad_on or len(self.inputs) > 64:
            return
        tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
        if len(tensors) != len(inputs) or not tensors or any(t.requires_grad and not t.is_leaf for t in tensors):
            if call.inputs_need_grad:
                return  # a later part of a model: what it was given came from another call
            self.inputs[call.number] = None
            return
        wide = any(_is_wide(t) for t in tensors)
        if wide and not self._wanted():
            self.inputs[call.number] = None
            return
        tables = [_table(t, ELEMENTS) for t in tensors]
        fits = all(t is not None and len(t) == len(tables[0]) for t in tables)
        self.inputs[call.number] = (np.concatenate(tables, axis=1), wide) if fits else None

    def _wanted(self) -> bool:
        """Whether anything is compared that would be looked up in wide inputs, which cost time to copy."""
        spots = self.spots.values()
        return any(not (s.told or s.unfit) for s in spots) if spots else self.iterations <= TRIED

    def op_seen(self, op: Op, results: list[Value], args: Any) -> None:
        if op.name not in _LOSSES or op.in_forward or len(op.ins) != 2 or len(args) < 2 or not results[0].graph:
            return
        left, right = self.trace.values.get(op.ins[0]), self.trace.values.get(op.ins[1])
        if left is None or right is None or left.graph == right.graph or left.shape != right.shape:
            return
        spot = self.spots.get(op.site.key())
        if spot is None:
            if len(self.spots) >= SPOTS:
                return
            spot = self.spots[op.site.key()] = _Spot(op.site, -1)
        if spot.unfit or spot.told or len(spot.x) >= BATCHES:
            return
        prediction, target = (left, right) if left.graph else (right, left)
        tensor = args[1] if left.graph else args[0]
        calls, _ = self._calls(prediction.token)
        made, depends = self._calls(target.token)
        x, wide = self._input(calls)
        y = _table(tensor, ELEMENTS) if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else None
        if x is not None and y is not None:
            spot.wide = spot.wide or wide or _is_wide(tensor)
            if spot.wide:
                x, y = _regress.keys(x), y[:, np.unique(np.linspace(0, y.shape[1] - 1, WIDE).astype(int))]
        same = (
            x is not None
            and y is not None
            and len(x) == len(y)
            and (not spot.x or (spot.x[0].shape[1], spot.y[0].shape[1]) == (x.shape[1], y.shape[1]))
        )
        if made or depends or not same:  # a target that comes from a model is another matter
            spot.unfit = True
            spot.x.clear()
            spot.y.clear()
            return
        spot.module = calls[0].module
        spot.x.append(x)
        spot.y.append(y)
        spot.rows += len(x)
        if spot.rows >= ENOUGH:
            self._judge(spot)

    def _calls(self, token: int) -> tuple[list[Call], bool]:
        """Calls of this iteration below a value, nearest first, and whether it depends on a parameter."""
        found: dict[int, Call] = {}
        queue, seen, depends = [token], {token}, False
        while queue and len(seen) < _VISITS:
            value = self.trace.values.get(queue.pop(0))
            if value is None:
                continue
            depends = depends or value.is_parameter
            if value.call is not None and value.iteration == self.session.recorder.iteration:
                found.setdefault(value.call.number, value.call)
            for t in value.op.ins if value.op is not None else ():
                if t not in seen:
                    seen.add(t)
                    queue.append(t)
        return list(found.values()), depends

    def _input(self, calls: list[Call]) -> tuple[Any, bool]:
        """What all calls together were given, and whether that is wide; None when some of it is no table."""
        given = [self.inputs[c.number] for c in calls if c.number in self.inputs]
        tables = [g[0] for g in given if g is not None]
        if not given or len(tables) < len(given) or any(len(t) != len(tables[0]) for t in tables):
            return None, False
        together = np.concatenate(tables, axis=1)
        return together, together.shape[1] > COLUMNS or any(g is not None and g[1] for g in given)

    def _judge(self, spot: _Spot) -> None:
        spot.told = True
        x, y = np.concatenate(spot.x), np.concatenate(spot.y)
        spot.x.clear()
        spot.y.clear()
        again, apart = _regress.exchanged(x, y)
        if again >= AGAIN and apart >= APART:
            self.session.recorder.emit(
                TargetsExchanged, spot.site, module=spot.module, rows=len(x), again=again, apart=round(apart, 4)
            )
        if spot.wide:
            return
        rows = np.unique(np.concatenate([x, y], axis=1), axis=0, return_index=True)[1]
        rows = np.sort(rows)
        x, y = x[rows], y[rows]
        units = y.std(0)
        varies = units > 1e-9 * (1.0 + np.abs(y).max(0))
        a, b = _regress.scaled(x), _regress.scaled(y)
        if len(rows) < LEAST or not a.shape[1] or not b.shape[1]:
            return
        near = _regress.near(a, b)
        if not near.close or max(near.apart) < APART:
            return
        mine = _regress.explained(a, b)
        bad = np.array([share < EXPLAINED for share in mine])
        if not bad.any():
            return
        back = min(_regress.explained(b, a))
        without = min(_regress.explained(b[:, ~bad], a)) if back > EXPLAINED else 0.0
        remains = (1.0 - np.minimum(np.array(mine), 1.0)) * units[varies] ** 2
        self.session.recorder.emit(
            TargetExplained,
            spot.site,
            module=spot.module,
            rows=len(rows),
            inputs=a.shape[1],
            targets=b.shape[1],
            explained=tuple(round(v, 4) for v in mine),
            apart=tuple(round(v, 4) for v in near.apart),
            inverse=round(back, 5),
            without=round(without, 5),
            branches=near.branches,
            floor=float(remains.sum() / y.shape[1]),
        )

    def end(self) -> None:
        """The run is over: what was collected is judged."""
        for spot in self.spots.values():
            if not spot.told and not spot.unfit and spot.rows >= LEAST:
                self._judge(spot)


def install(session: Session) -> Undo:
    """Listen to calls and to operations that compare."""
    probe = _Probe(session)
    session.at_call.append(probe.called)
    session.trace.listeners.op.append(probe.op_seen)
    session.at_end.append(probe.end)

    def undo() -> None:
        session.at_call.remove(probe.called)
        session.trace.listeners.op.remove(probe.op_seen)

    return undo
