"""Where gradients come from: the one thing that training knows about the engine that computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class GradientEngine(Protocol):
    """Fills gradients for one batch.

    `backward(x, y)` runs the model on x, the loss against y, and *adds* the gradients of the loss to the `.grad` of the
    parameters, as `Tensor.backward` does; clearing is the caller's. `gradient` is the seed cotangent of the loss, what
    all gradients are multiplied with: a number, or a tensor like the loss; None is one. It returns the loss, a scalar
    without a graph, not multiplied.
    """

    def backward(self, x: Any, y: Any, *, gradient: Tensor | float | None = None) -> Tensor: ...


class PlainBackward:
    """The engine that torch brings: one forward, one `loss.backward()`."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Tensor]) -> None:
        """loss(model(x), y) is a scalar; whether it is a sum or a mean is its own affair."""
        self._model = model
        self._loss = loss

    def backward(self, x: Any, y: Any, *, gradient: Tensor | float | None = None) -> Tensor:
        """See `GradientEngine`."""
        loss = self._loss(self._model(x), y)
        if isinstance(gradient, int | float):
            gradient = torch.full_like(loss, gradient)
        loss.backward(gradient)  # type: ignore[no-untyped-call]
        return loss.detach()
