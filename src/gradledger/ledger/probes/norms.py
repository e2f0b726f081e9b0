"""Sizes at each step of a watched iteration: norms of gradients, of values, and of the change that the step made.

Only reads; the values before a step are copied where they are few, and dropped right after it.
"""

from __future__ import annotations

import torch

from gradledger.core.events import StepMeasured
from gradledger.core.site import Site
from gradledger.ledger._lifecycle import grad_of
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session

MAX_TENSORS = 2048  # of one optimizer
MAX_ELEMENTS = 50_000_000  # above, norms are not taken either: they would cost a pass over the memory
MAX_COPIED = 1_000_000  # elements whose values are copied to see the change


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.open: tuple[int, Site, list[torch.Tensor], list[float], list[float], list[torch.Tensor]] | None = None

    def before(self, tensors: list[torch.Tensor], site: Site) -> None:
        self.open = None
        number = self.session.trace.optimizer_running
        if not self.recorder.detail or not number:  # 0: a step with a closure, told when its values have changed
            return
        chosen = [t for t in tensors if _measurable(t)][:MAX_TENSORS]
        size = sum(t.numel() for t in chosen)
        if not chosen or size > MAX_ELEMENTS:
            return
        values = [t.detach() for t in chosen]
        gradients = [g.detach() for t in chosen if (g := grad_of(t)) is not None]
        copies = [v.clone() for v in values] if size <= MAX_COPIED else []
        self.open = (number, site, chosen, _norms(gradients), _norms(values), copies)

    def after(self) -> None:
        opened, self.open = self.open, None
        if opened is None:
            return
        number, site, chosen, gradients, values, copies = opened
        updates = _norms([t.detach() - c for t, c in zip(chosen, copies, strict=True)]) if copies else []
        self.recorder.emit(
            StepMeasured,
            site,
            optimizer=number,
            tensors=tuple(self.recorder.tensor_id(t) for t in chosen),
            gradients=tuple(gradients),
            values=tuple(values),
            updates=tuple(updates),
        )


def _measurable(tensor: torch.Tensor) -> bool:
    """A plain dense floating tensor with a gradient of its own kind: reading others can do more than read."""
    grad = grad_of(tensor)
    return (
        grad is not None
        and type(tensor) in (torch.nn.Parameter, torch.Tensor)
        and type(grad) is torch.Tensor
        and all(t.layout is torch.strided and t.is_floating_point() for t in (tensor, grad))
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_inference()
    )


def _norms(tensors: list[torch.Tensor]) -> list[float]:
    """Euclidean norms, taken in float32 at least; one transfer for all."""
    if not tensors:
        return []
    wide = [torch.linalg.vector_norm(t, dtype=_at_least_single(t.dtype)).double().cpu() for t in tensors]
    return [float(n) for n in torch.stack(wide).tolist()]


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def install(session: Session) -> Undo:
    """Measure before and after steps of watched iterations."""
    probe = _Probe(session)

    def before(tensors: list[torch.Tensor], site: Site) -> None:
        with session.recorder.guard("norms"), torch.no_grad():
            probe.before(tensors, site)

    def after() -> None:
        with session.recorder.guard("norms"), torch.no_grad():
            probe.after()

    session.at_step.append(before)
    session.step_done.append(after)
    return lambda: None
