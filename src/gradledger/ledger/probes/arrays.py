"""Batches that are cut from arrays of numpy and changed in place by torch: do the arrays drift?

`torch.from_numpy` of a slice shares the memory of the array, and what is computed into the tensor stays there.  A
slice is told by its address; but a copy of rows may get the address of an earlier copy, so the address alone says
nothing: the slice must come again with the very values with which it was left.
"""

from __future__ import annotations

from typing import Any

import torch

from gradledger.core.events import StoredDataChanged
from gradledger.core.site import Site
from gradledger.ledger._digest import digest
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

PIECES = 512
ELEMENTS = 65_536  # of one piece
LEAST = 2  # slices that came as they had been left and were changed again
DIRTY = 4096  # values that come of them
_COMPUTES = frozenset({"add_", "sub_", "mul_", "div_", "masked_fill_", "clamp_", "neg_", "add", "sub", "mul", "div"})
_Piece = tuple[int, tuple[int, ...]]


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.left: dict[_Piece, tuple[str, int]] = {}  # as it was left, and in which iteration
        self.back: set[_Piece] = set()  # came again just so
        self.again: dict[tuple[str, int], set[_Piece]] = {}  # by the line that changes them
        self.dirty: dict[int, Site] = {}  # token of what was made of one that drifts
        self.told: set[tuple[str, int]] = set()

    def skip(self, args: Any, kwargs: Any) -> bool:
        return not self.left or not self.session.trace.active

    def came(self, before: Any, tensor: Any, args: Any, kwargs: Any) -> None:
        """A tensor is made over an array."""
        piece = _piece(tensor)
        known = self.left.get(piece) if piece is not None else None
        if piece is None or known is None or known[1] >= self.recorder.iteration:
            return
        if digest([tensor]) == known[0]:
            self.back.add(piece)
        else:
            del self.left[piece]  # other rows at the same address, or filled anew

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        """Something was written in place."""
        trace = self.session.trace
        if op.name == "as_tensor" and self.left and outs:
            self.came(None, outs[0], args, {})
        if not op.inplace or op.name not in _COMPUTES or trace.reversing or trace.optimizer_running or op.in_forward:
            return
        piece = _piece(args[0]) if args else None
        if piece is None or (piece not in self.left and len(self.left) >= PIECES):
            return
        self.left[piece] = digest([args[0]]), self.recorder.iteration
        if piece in self.back:
            self.back.discard(piece)
            self.again.setdefault(op.site.key(), set()).add(piece)
            if len(self.dirty) >= DIRTY:
                self.dirty.clear()
            self.dirty.update((value.token, op.site) for value in results[:1])
        elif op.ins and op.ins[0] in self.dirty:
            self.dirty.update((value.token, self.dirty[op.ins[0]]) for value in results[:1])

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """A forward call of the program itself: is it given a slice that drifts?"""
        if not self.dirty or not call.grad_on or not self.recorder.backwards:
            return
        for tensor in inputs:
            site = self.dirty.get(self.session.trace.token_of(tensor)) if type(tensor) is torch.Tensor else None
            pieces = self.again.get(site.key(), set()) if site is not None else set()
            if site is not None and len(pieces) >= LEAST and site.key() not in self.told:
                self.told.add(site.key())
                self.recorder.emit(
                    StoredDataChanged, site, dataset="tensor", attribute="", passes=2, items=len(pieces)
                )


def _piece(tensor: Any) -> _Piece | None:
    """Address and shape of a tensor whose memory torch did not take itself; None for any other."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout != torch.strided:
        return None
    if tensor.device.type != "cpu" or not 0 < tensor.numel() <= ELEMENTS or tensor._base is not None:
        return None
    return None if tensor.untyped_storage().resizable() else (tensor.data_ptr(), tuple(tensor.shape))


def install(session: Session) -> Undo:
    """Listen to operations, calls and tensors made over arrays."""
    probe = _Probe(session)
    session.trace.listeners.made.append(probe.made)
    session.at_call.append(probe.called)

    def undo() -> None:
        session.trace.listeners.made.remove(probe.made)
        session.at_call.remove(probe.called)

    return together(undo, observe(session.recorder, torch, "from_numpy", after=probe.came, skip=probe.skip))
