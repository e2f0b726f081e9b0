"""Gradient clipping: `clip_grad_norm_`, `clip_grad_value_`, and `clip_grads_with_norm_`, which is given the norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import torch
from torch.nn import utils
from torch.nn.utils import clip_grad

from gradledger.core.events import Clip, ClippedRescaled
from gradledger.core.site import Site
from gradledger.ledger import _site
from gradledger.ledger._lifecycle import grad_of
from gradledger.ledger._patch import Undo, together
from gradledger.ledger._session import Session

GRADIENTS = 8  # of one clip whose norms are kept until the step
ELEMENTS = 4_000_000  # of one gradient
UNIFORM = 1e-3  # relative: above, they were not all multiplied by one number


@dataclass
class _Clipped:
    """The latest clip: its line, the passes that filled what it clipped, norms of some gradients right after it."""

    site: Site
    pending: tuple[int, ...]
    norms: dict[int, float]


class _Clips:
    """What becomes of clipped gradients before the step: the part that all wrappers of one session share."""

    def __init__(self) -> None:
        self.latest: _Clipped | None = None


def _remember(session: Session, facts: dict[str, Any], site: Site) -> None:
    leaves = session.lifecycle.leaves
    chosen = [t for n in facts["tensors"][:GRADIENTS] if (leaf := leaves.get(n)) and (t := leaf.ref()) is not None]
    norms = {session.recorder.tensor_id(t): norm for t in chosen if (norm := _norm(t))}
    session.recorder.part(_Clips).latest = _Clipped(site, facts["pending"], norms) if norms else None


def _compare(session: Session, tensors: list[torch.Tensor]) -> None:
    """A step is about to use the gradients: were they all multiplied by one number since they were clipped?"""
    clips = session.recorder.part(_Clips)
    clipped, clips.latest = clips.latest, None
    if clipped is None or not session.recorder.detail:
        return
    numbers = {session.recorder.tensors.find(t): t for t in tensors}
    ratios = [_norm(numbers[n]) / norm for n, norm in clipped.norms.items() if n in numbers]
    if not ratios or min(ratios) <= 0 or max(ratios) - min(ratios) > UNIFORM * max(ratios):
        return
    factor = sum(ratios) / len(ratios)
    if abs(factor - 1) > UNIFORM:
        session.recorder.emit(ClippedRescaled, clipped.site, factor=factor, pending=clipped.pending)


def _norm(tensor: torch.Tensor) -> float:
    """Of a plain dense gradient; 0 when there is none, or none that can be looked at."""
    grad = grad_of(tensor)
    if type(grad) is not torch.Tensor or grad.layout is not torch.strided or grad.numel() > ELEMENTS:
        return 0.0
    norm = float(torch.linalg.vector_norm(grad.detach(), dtype=torch.float64)) if grad.is_floating_point() else 0.0
    return norm if math.isfinite(norm) else 0.0


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
                site = _site.here(1)
                if recorder.detail and facts["pending"]:
                    _remember(session, facts, site)
                recorder.note(Clip, site, signature, values, key=("clip", _site.mark(0), count))
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

    def before_step(tensors: list[torch.Tensor], site: Site) -> None:
        with session.recorder.guard("clip"), torch.no_grad():
            _compare(session, tensors)

    session.at_step.append(before_step)
    return together(lambda: session.at_step.remove(before_step), *undos)


def _restore(module: Any, name: str, wrapper: Any, original: Any) -> None:
    if getattr(module, name, None) is wrapper:
        setattr(module, name, original)
