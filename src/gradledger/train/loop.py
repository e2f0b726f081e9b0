"""The canonical order of training as small functions, and a loop that is nothing but that order.

clear → forward → loss → backward (once for each micro-batch) → clip → step → scheduler

`steps` is a generator: whoever iterates owns the loop, may leave it, log, evaluate and save between any two steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradledger.core.errors import GradledgerError
from gradledger.train.gradients import GradientEngine

NonFinite = Literal["error", "skip", "step"]


class LoopError(GradledgerError):
    """A loop that cannot do what was asked, or that met what it must not pass over in silence."""

    slug = "loop"


@dataclass(frozen=True, slots=True)
class Stepped:
    """What one optimizer step did.

    number: of the step in this call of `steps`, from 1. loss: mean over the samples of all its micro-batches, a scalar
    without a graph, on its device. norm: global 2-norm of the gradients before the clip, None where no clip was asked.
    taken: False where the gradients were not finite and the step was left out. samples: in the step.
    """

    number: int
    loss: Tensor
    norm: Tensor | None
    taken: bool
    samples: int


def clear(*optimizers: torch.optim.Optimizer) -> None:
    """No parameter of the optimizers has a gradient afterwards: `.grad` is None, not zero."""
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def clip(optimizer: torch.optim.Optimizer, limit: float) -> Tensor:
    """Scale the gradients of all parameters of `optimizer` together so that their global 2-norm is at most `limit`.

    Returns:
        The norm before, a scalar tensor. Where it is not finite, nothing was scaled.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    # A norm of 0 scales nothing; one small operation, on the device, and no wait for its result.
    nn.utils.clip_grads_with_norm_(parameters, limit, norm.nan_to_num(nan=0.0, posinf=0.0))
    return norm


def samples_of(x: Any) -> int:
    """B of a batch: the length of its first tensor, found in nested lists, tuples and dictionaries.

    Raises:
        LoopError: there is no tensor with a first axis.
    """
    pending = [x]
    while pending:
        one = pending.pop(0)
        if isinstance(one, Tensor):
            if one.dim():
                return one.shape[0]
        elif isinstance(one, dict):
            pending = [*one.values(), *pending]
        elif isinstance(one, list | tuple):
            pending = [*one, *pending]
        elif hasattr(one, "batch_size") and len(one.batch_size):  # a TensorDict
            return int(one.batch_size[0])
    raise LoopError(
        got=f"a batch without a tensor that has a first axis ({type(x).__name__})",
        wanted="B to be read from the batch",
        where="train.loop.samples_of",
        next_step="pass samples=... to steps, a function from the batch to its number of samples",
    )


def steps(
    engine: GradientEngine,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Any, Any]],
    *,
    limit: float | None = None,
    accumulate: int = 1,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    scaler: torch.amp.GradScaler | None = None,
    non_finite: NonFinite = "error",
    samples: Callable[[Any], int] = samples_of,
    after_step: Sequence[Callable[[], Any]] = (),
) -> Iterator[Stepped]:
    """One optimizer step at a time, over all of `batches`.

    Args:
        engine: computes the gradients of a loss that is a *mean* over the samples of a batch.
        optimizer: what steps. Its gradients are cleared before each step, not after: they can be looked at between.
        batches: (x, y) pairs. With `accumulate`, the last step takes what is left.
        limit: of the global gradient norm; None: no clip, and no norm is computed.
        accumulate: micro-batches in a step. Each weighs by its number of samples, so a step equals one on the whole
            batch also where the last micro-batch is short.
        scheduler: is stepped once after each optimizer step that was taken. One that counts epochs is yours to step.
        scaler: scales the loss for float16; the clip sees unscaled gradients.
        non_finite: what to do when the clip finds a norm that is not finite: raise, leave the step out, or step all the
            same. A scaler leaves such steps out by itself.
        samples: x -> B.
        after_step: called after each step that was taken, for shadow copies (`lambda: ema.blend(0.005)`).

    Raises:
        LoopError: an option makes no sense, or gradients are not finite and `non_finite` is "error".
    """
    _check(limit, accumulate, non_finite)
    stream = iter(batches)
    device = optimizer.param_groups[0]["params"][0].device
    number = 0
    while micro := list(islice(stream, accumulate)):
        number += 1
        clear(optimizer)
        loss, total = _gradients(engine, micro, samples, scaler, device)
        norm, finite = None, True
        if scaler is not None:
            scaler.unscale_(optimizer)
        if limit is not None:
            norm = clip(optimizer, limit)
            finite = non_finite == "step" or scaler is not None or math.isfinite(float(norm))
            if not finite and non_finite == "error":
                raise LoopError(
                    got=f"a gradient norm of {float(norm)} at step {number} (loss {float(loss)})",
                    wanted="finite gradients",
                    where="train.loop.steps",
                    next_step="look at the batch and the loss; non_finite='skip' leaves such steps out and says so",
                )
        if scaler is not None:
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            finite = scaler.get_scale() >= scale  # it shrinks exactly when it left the step out
        elif finite:
            optimizer.step()
        if finite:
            if scheduler is not None:
                scheduler.step()
            for call in after_step:
                call()
        yield Stepped(number, loss, norm, finite, total)


def _gradients(
    engine: GradientEngine,
    micro: list[tuple[Any, Any]],
    samples: Callable[[Any], int],
    scaler: torch.amp.GradScaler | None,
    device: torch.device,
) -> tuple[Tensor, int]:
    """Fill the gradients of one step. Returns (mean loss, samples)."""
    if len(micro) == 1 and scaler is None:  # the usual case costs what a hand-written loop costs
        x, y = micro[0]
        return engine.backward(x, y), samples(x)
    counts = [samples(x) for x, _ in micro]
    total = sum(counts)
    if not total:
        raise LoopError(
            got="micro-batches without samples",
            wanted="at least one sample in a step",
            where="train.loop.steps",
            next_step="drop empty batches",
        )
    # Asking the scaler to scale something is also what makes it ready to unscale.
    scale = 1.0 if scaler is None else float(scaler.scale(torch.ones((), device=device)))
    mean: Tensor | None = None
    for (x, y), count in zip(micro, counts, strict=True):
        one = engine.backward(x, y, gradient=scale * count / total) * (count / total)
        mean = one if mean is None else mean + one
    assert mean is not None  # micro is not empty
    return mean, total


def _check(limit: float | None, accumulate: int, non_finite: str) -> None:
    wrong = []
    if limit is not None and not limit > 0:
        wrong.append(f"limit={limit}")
    if accumulate < 1:
        wrong.append(f"accumulate={accumulate}")
    if non_finite not in ("error", "skip", "step"):
        wrong.append(f"non_finite={non_finite!r}")
    if non_finite == "skip" and limit is None:
        wrong.append("non_finite='skip' without a limit: nothing is looked at")
    if wrong:
        raise LoopError(
            got=", ".join(wrong),
            wanted="limit above 0 or None, accumulate of at least 1, non_finite of error, skip or step",
            where="train.loop.steps",
            next_step="correct these; limit=float('inf') measures the norm and clips nothing",
        )
