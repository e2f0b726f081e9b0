"""Activation checkpointing of torch: what ran inside it that its recomputation does not repeat alike.

Nothing is patched: when an operation that draws random numbers or moves running statistics is seen in a watched
iteration, the stack tells whether torch's `checkpoint` is above it, and with which setting.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from gradledger.core.events import Recomputed
from gradledger.core.site import Site
from gradledger.ledger import _site
from gradledger.ledger._often import Often
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session

MAX_MOVED = 256
MAX_FRAMES = 60
_DROPOUTS = frozenset(
    {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "dropout_"}
)
_DRAWS = frozenset(
    {"rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "bernoulli_",
     "normal", "normal_", "uniform_", "multinomial", "rrelu", "gumbel_softmax", "exponential_"}
)  # fmt: skip
_MODULE = "torch.utils.checkpoint"


def _draws(op: Op) -> bool:
    """Whether an operation drew random numbers."""
    if op.name in _DRAWS:
        return True
    if op.name not in _DROPOUTS:
        return False
    given = op.options.get("_args", ())
    share = op.options.get("p", next((a for a in given if type(a) in (int, float)), 0.5))
    training = op.options.get("training", next((a for a in given if type(a) is bool), True))
    return bool(training) and bool(share)


def _checkpoint_above() -> tuple[FrameType, bool] | None:
    """The innermost frame of torch's `checkpoint` on the stack, and whether it keeps the random state."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return None
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_name == "checkpoint" and code.co_filename == module.__file__:
            return frame, bool(frame.f_locals.get("preserve", True))
        frame = frame.f_back
    return None


def _caller(frame: FrameType) -> Site:
    """The line of the program that called."""
    above = frame.f_back
    while above is not None and not _site.is_user_code(above.f_code):
        above = above.f_back
    return _site.of(above if above is not None else frame)


@dataclass(slots=True)
class _Moved:
    """Running statistics that the forward has moved, and their values right after."""

    mean: weakref.ref[torch.Tensor]
    after: torch.Tensor
    site: Site
    op: Op


class _Probe:
    def __init__(self, session: Session) -> None:
        self.recorder, self.trace = session.recorder, session.trace
        self.often = Often()
        self.moved: dict[int, _Moved] = {}

    def op_seen(self, op: Op, results: list[Value], args: Any) -> None:
        """Look at what draws random numbers or moves statistics."""
        if self.trace.reversing or _MODULE not in sys.modules:
            return
        if op.name == "batch_norm":
            mean = args[1] if len(args) > 1 else None
            training = op.options.get("training", any(a is True for a in op.options.get("_args", ())))
            if isinstance(mean, torch.Tensor) and training:
                self._statistics(op, mean)
        elif _draws(op):
            above = _checkpoint_above()
            if above is not None and not above[1]:
                site = _caller(above[0])
                if self.often.worth_telling((site.key(), op.name, op.site.key())):
                    self.recorder.emit(Recomputed, site, what="random", op=op.name, op_site=op.site)

    def _statistics(self, op: Op, mean: torch.Tensor) -> None:
        """Remember the statistics after the latest forward that moved them."""
        known = self.moved.get(id(mean))
        above = _checkpoint_above()
        if above is not None and len(self.moved) < MAX_MOVED:
            self.moved[id(mean)] = _Moved(weakref.ref(mean), mean.detach().clone(), _caller(above[0]), op)
        elif known is not None:
            known.after = mean.detach().clone()

    def root_walked(self, root: torch.Tensor, site: Site) -> None:
        """A reverse pass has recomputed what it needed: were statistics moved once more?"""
        moved, self.moved = self.moved, {}
        for one in moved.values():
            mean = one.mean()
            if mean is None or bool((mean == one.after).all()) or not bool(torch.isfinite(mean).all()):
                continue
            if self.often.worth_telling((one.site.key(), "batch_norm", one.op.site.key())):
                self.recorder.emit(Recomputed, one.site, what="statistics", op="batch_norm", op_site=one.op.site)


def install(session: Session) -> Undo:
    """Listen to operations and reverse passes."""
    probe = _Probe(session)
    session.trace.listeners.op.append(probe.op_seen)
    session.at_root.append(probe.root_walked)

    def undo() -> None:
        session.trace.listeners.op.remove(probe.op_seen)

    return undo
