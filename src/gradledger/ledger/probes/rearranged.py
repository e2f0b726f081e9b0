"""Images that are compared with a map of labels, pixel by pixel: does a map come again with the same pixels in other
places (a flip, a shift, a turn) while it stays as it is?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gradledger.core.events import PixelsMoved
from gradledger.core.site import Site
from gradledger.ledger import _regress
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._padding import array_of
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session

ELEMENTS = 1 << 19  # of a batch of images
MAPS = 2000
ENOUGH = 20  # maps that came again with the pixels moved
DISTINCT = 64  # values of an image: of a drawing, many have the same pixels
_COMPARES = frozenset({"cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy"})


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.trace = session.trace
        self.images: tuple[Call, torch.Tensor] | None = None  # what the first call of this iteration was given
        self.iteration = -1
        self.kept: dict[float, tuple[float, int]] = {}  # of a map: its image, in order and whatever the order
        self.again = self.moved = 0
        self.told = False

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if call.iteration != self.iteration:
            self.iteration, self.images = call.iteration, None
        if self.told or not self.trace.active or not call.grad_on or self.images is not None:
            return
        x = inputs[0] if inputs else None
        if isinstance(x, torch.Tensor) and x.dim() == 4 and x.is_floating_point() and not x.requires_grad:
            if x.numel() <= ELEMENTS and len(self.kept) <= MAPS:
                self.images = call, x

    def op_seen(self, op: Op, results: list[Value], args: Any) -> None:
        if self.told or self.images is None or op.name not in _COMPARES or op.in_forward or len(args) < 2:
            return
        call, x = self.images
        y = args[1]
        if not isinstance(y, torch.Tensor) or y.requires_grad or y.dim() < 3 or not results[0].graph:
            return
        if y.shape[0] != x.shape[0] or y.shape[-2:] != x.shape[-2:]:
            return
        self.images = None
        images, maps = array_of(x), array_of(y)
        if images is None or maps is None:
            return
        images, maps = images.reshape(len(images), -1), maps.reshape(len(maps), -1)
        if maps.dtype.kind == "f" and not np.isin(maps, (0, 1)).all():
            return  # no labels
        places, labels, pixels = _regress.keys(images)[:, 0], _regress.keys(maps)[:, 0], _whatever_order(images)
        for i in range(len(images)):
            if maps[i].min() == maps[i].max() or len(np.unique(images[i])) < DISTINCT:
                continue
            known = self.kept.setdefault(float(labels[i]), (float(places[i]), int(pixels[i])))
            if known[0] != places[i]:
                self.again += 1
                self.moved += int(known[1] == int(pixels[i]))
        if self.moved >= ENOUGH:
            self.told = True
            self.session.recorder.emit(
                PixelsMoved,
                op.site,
                module=call.module,
                again=self.again,
                moved=self.moved,
                made_sites=self._made(self.trace.token_of(x)) + self._made(self.trace.token_of(y)),
            )

    def _made(self, token: int) -> tuple[Site, ...]:
        """Where a batch was put together, and what it was made of."""
        found: dict[tuple[str, int], Site] = {}
        value = self.trace.values.get(token)
        for _ in range(4):
            if value is None or value.op is None:
                break
            found.setdefault(value.op.site.key(), value.op.site)
            value = self.trace.values.get(value.op.ins[0]) if value.op.ins else None
        return tuple(site for site in found.values() if site.file)


def _whatever_order(table: Any) -> Any:
    """A number for each row by its values, the same for every order of them.  [N, columns] -> [N]"""
    raw = np.ascontiguousarray(table, dtype=np.float32).view(np.uint32).astype(np.uint64)
    raw = (raw + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    raw = (raw ^ (raw >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (raw ^ (raw >> np.uint64(32))).sum(1, dtype=np.uint64)


def install(session: Session) -> Undo:
    """Listen to calls and to operations that compare."""
    probe = _Probe(session)
    session.at_call.append(probe.called)
    session.trace.listeners.op.append(probe.op_seen)

    def undo() -> None:
        session.at_call.remove(probe.called)
        session.trace.listeners.op.remove(probe.op_seen)

    return undo
