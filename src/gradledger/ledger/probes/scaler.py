"""Loss scaling: each call of a GradScaler, which steps it withheld, and whose gradients are still scaled."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from gradledger.core.events import ScalerCalled
from gradledger.core.site import NOWHERE
from gradledger.ledger import _site
from gradledger.ledger._identity import WeakTable
from gradledger.ledger._patch import Nest, Undo, observe, together
from gradledger.ledger._session import Session


class _Scale:
    """One scaler since its last `update`: has it scaled a loss, and whose gradients has it divided again."""

    def __init__(self) -> None:
        self.scaled = False
        self.divided: set[int] = set()


class _Scalers:
    def __init__(self) -> None:
        self.of: weakref.WeakKeyDictionary[GradScaler, _Scale] = weakref.WeakKeyDictionary()
        self.losses: WeakTable[torch.Tensor] = WeakTable()

    def state(self, scaler: GradScaler) -> _Scale:
        return self.of.setdefault(scaler, _Scale())


def scaled_unfinished(session: Session, tensors: Iterable[torch.Tensor]) -> float | None:
    """The factor that a scaler put into the gradients of `tensors` and has not taken out again; None for none."""
    recorder = session.recorder
    wanted = {id(t) for t in tensors}
    for scaler, state in recorder.part(_Scalers).of.items():
        if not state.scaled:
            continue
        holders = {
            number
            for optimizer, number in recorder.optimizers.live()
            if any(id(p) in wanted for group in optimizer.param_groups for p in group["params"])
        }
        if not holders & state.divided:
            return float(scaler.get_scale())
    return None


def install(session: Session) -> Undo:
    """Watch `GradScaler` (and its cpu and cuda subclasses)."""
    recorder = session.recorder
    scalers = recorder.part(_Scalers)
    nest = Nest()

    def scale_now(scaler: GradScaler) -> float | None:
        held = scaler._scale
        if held is None:
            return float(scaler._init_scale)
        # reading it waits for the device: on an accelerator only in watched iterations
        return float(held) if held.device.type == "cpu" or recorder.detail else None

    def tell(method: str, scaler: Any, optimizer: int | None = None, skipped: bool = False) -> None:
        values = {"method": method, "optimizer": optimizer, "skipped": skipped, "scale": scale_now(scaler)}
        recorder.note(ScalerCalled, _site.here(2), tuple(values.values()), values)

    def scaled(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler = args[0]
        if not scaler.is_enabled():
            return
        scalers.state(scaler).scaled = True
        for tensor in (
            [result] if isinstance(result, torch.Tensor) else result if isinstance(result, (list, tuple)) else []
        ):
            if isinstance(tensor, torch.Tensor):
                scalers.losses.number(tensor)
        tell("scale", scaler)

    def unscaled(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler = args[0]
        if scaler.is_enabled():
            optimizer = args[1] if len(args) > 1 else kwargs["optimizer"]
            number = session.know_optimizer(optimizer, NOWHERE)
            scalers.state(scaler).divided.add(number)
            session.lifecycle.changed_by_torch(p for group in optimizer.param_groups for p in group["params"])
            tell("unscale_", scaler, number)

    def before_step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return recorder.steps

    def stepped(steps: int | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler = args[0]
        if scaler.is_enabled():
            number = session.know_optimizer(args[1] if len(args) > 1 else kwargs["optimizer"], NOWHERE)
            scalers.state(scaler).divided.add(number)
            skipped = steps is not None and recorder.steps == steps
            tell("step", scaler, number, skipped)

    def updated(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler = args[0]
        if scaler.is_enabled():
            state = scalers.state(scaler)
            state.scaled = False
            state.divided.clear()
            tell("update", scaler)

    session.is_scaled = lambda root: scalers.losses.find(root) is not None
    session.scale_of = lambda tensors: scaled_unfinished(session, tensors)
    return together(
        observe(recorder, GradScaler, "scale", after=scaled, nest=nest),
        observe(recorder, GradScaler, "unscale_", after=unscaled, nest=nest),
        observe(recorder, GradScaler, "step", before=before_step, after=stepped, nest=nest),
        observe(recorder, GradScaler, "update", after=updated, nest=nest),
    )
