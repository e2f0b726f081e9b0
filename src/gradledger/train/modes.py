"""Modes that come back: evaluation and freezing as scopes which leave every module as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(*models: nn.Module, gradients: bool = False) -> Iterator[None]:
    """All modules in eval mode inside, and each in the mode that it had before outside, whatever happens.

    `model.train()` after an evaluation is not that: it wakes the normalisation layers that were frozen in eval mode.

    Args:
        models: the modules to evaluate, with all that they contain.
        gradients: False runs the scope under `torch.no_grad`; True is for input gradients and adversarial tests.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
        >>> with evaluating(net):
        ...     net.training, torch.is_grad_enabled()
        (False, False)
        >>> [module.training for module in net.modules()]
        [True, True, False]
    """
    modes = [(module, module.training) for model in models for module in model.modules()]
    with ExitStack() as stack:
        if not gradients:
            stack.enter_context(torch.no_grad())
        try:
            for model in models:
                model.eval()
            yield
        finally:
            for module, mode in modes:
                module.training = mode


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """No parameter of `modules` asks for a gradient inside; outside, each asks as it did before.

    The graph still runs *through* them, so that what comes before can learn: this is no `torch.no_grad`, and what an
    actor needs of its critic. Parameters that are frozen already stay so.

    Example:
        >>> actor, critic = nn.Linear(2, 2), nn.Linear(2, 1)
        >>> with frozen(critic):
        ...     critic(actor(torch.ones(1, 2))).sum().backward()
        >>> actor.weight.grad is not None, critic.weight.grad is None
        (True, True)
    """
    asked = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    for parameter in asked:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asked:
            parameter.requires_grad_(True)
