"""Gradient clipping: `clip_grad_norm_`, `clip_grad_value_`, and `clip_grads_with_norm_`, which is given the norm."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import GeneratorType
from typing import Any

import torch
from torch.nn import utils
from torch.nn.utils import clip_grad

from gradledger.core.events import Clip
from gradledger.ledger import _site
from gradledger.ledger._patch import Undo, together
from gradledger.ledger._session import Session


def _wrap(session: Session, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        # a generator can be walked once only: keep what it gives, and hand that on, as a generator again (torch warns
        # about an empty one)
        handed = parameters
        if not isinstance(parameters, (torch.Tensor, list, tuple)):
            generator = isinstance(parameters, GeneratorType)
            parameters = list(parameters)
            handed = (p for p in parameters) if generator else parameters
        recorder = session.recorder
        count = 1 if isinstance(parameters, torch.Tensor) else len(parameters)
        if recorder.doze.asleep and recorder.passes(("clip", _site.mark(0), count)):
            return original(handed, *args, **kwargs)
        facts = None
        if session.recorder.enabled:
            with session.recorder.guard(name):
                facts = _look(session, parameters, args, kwargs)
        session.trace.rest()
        try:
            result = original(handed, *args, **kwargs)
        finally:
            session.trace.settle()
        if facts is not None:
            with session.recorder.guard(name):
                session.lifecycle.changed_by_torch([parameters] if isinstance(parameters, torch.Tensor) else parameters)
                total = result if result is not None else kwargs.get("total_norm", args[1] if len(args) > 1 else None)
                norm = float(total.detach()) if isinstance(total, torch.Tensor) and total.device.type == "cpu" else None
                signature = tuple(bool(v) if k == "pending" else v for k, v in facts.items())
                values = {"method": name, "total_norm": norm, **facts}
                recorder.note(Clip, _site.here(1), signature, values, key=("clip", _site.mark(0), count))
        return result

    return wrapper


def _look(session: Session, parameters: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    life = session.lifecycle
    gone: list[Any] = []
    leaves = [leaf for t in tensors if t.is_leaf for leaf in [life.follow(t)] if life._look(leaf, gone) is not None]
    fills = [f for leaf in leaves for f in leaf.fills]
    limit = args[0] if args else next((kwargs[k] for k in ("max_norm", "clip_value") if k in kwargs), 0.0)
    scale = session.scale_of(tensors)
    return {
        "tensors": tuple(leaf.number for leaf in leaves),
        "given": len(tensors),
        "limit": float(limit),
        "pending": tuple(sorted({b for b, c in fills if c == 0})),
        "consumed": bool(fills) and all(c > 0 for _, c in fills),
        "scaled": scale is not None,
        "scale": scale,
    }


def install(session: Session) -> Undo:
    """Watch clipping wherever the functions are reached from."""
    undos: list[Undo] = []
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_"):
        # The last has its public name in `utils` alone; under its private one `clip_grad_norm_` calls it.
        original = getattr(utils, name, None)
        if original is None:
            continue  # not in every version
        wrapper = _wrap(session, name, original)
        for module in (clip_grad, utils):
            if getattr(module, name, None) is original:
                setattr(module, name, wrapper)
                undos.append(functools.partial(_restore, module, name, wrapper, original))
    return together(*undos)


def _restore(module: Any, name: str, wrapper: Any, original: Any) -> None:
    if getattr(module, name, None) is wrapper:
        setattr(module, name, original)
