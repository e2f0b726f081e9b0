"""Gradients that a program keeps in memory of its own: a flat buffer, of which each parameter's `.grad` is a view.

Whoever owns that memory clears it, averages it and steps it under another name: a flat parameter in an optimizer, an
update by hand.  That this happens shows in the values: they change although no optimizer holds the leaf.
"""

from __future__ import annotations

import torch

from gradledger.core.events import GradientInView
from gradledger.core.site import NOWHERE
from gradledger.ledger._digest import digest
from gradledger.ledger._lifecycle import grad_of
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session

LEAVES = 4096  # looked at in one iteration


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.digests: dict[int, str] = {}
        self.told: set[int] = set()

    def look(self) -> None:
        """Which leaves have such a gradient, and which of these have other values than at the first look."""
        moved = []
        for number, leaf in list(self.session.lifecycle.leaves.items())[:LEAVES]:
            if number in self.session.held or number in self.told:
                continue
            tensor = leaf.ref()
            if tensor is None or not _in_view(tensor):
                continue
            now = digest([tensor])
            if now and self.digests.setdefault(number, now) != now:
                moved.append(number)
        self.told.update(moved)
        if moved:
            self.recorder.emit(GradientInView, NOWHERE, tensors=tuple(moved))


def _in_view(tensor: torch.Tensor) -> bool:
    """Whether the gradient is a view that the program made; autograd, too, hands out parts of larger memory, but no
    views."""
    grad = grad_of(tensor)
    return type(grad) is torch.Tensor and grad.layout is torch.strided and grad._is_view()


def install(session: Session) -> Undo:
    """Look at iterations 1, 2, 4, 8 ... and at the end."""
    probe = _Probe(session)
    recorder = session.recorder

    def look() -> None:
        with recorder.guard("views"), torch.no_grad():
            probe.look()

    def begins(iteration: int) -> None:
        if iteration & (iteration - 1) == 0:
            look()

    recorder.on_iteration.append(begins)
    session.at_end.append(look)
    return lambda: recorder.on_iteration.remove(begins)
