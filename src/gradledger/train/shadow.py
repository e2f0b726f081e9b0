"""Shadow copies: a second set of weights that follows the online one and is never trained itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import nn

from gradledger.core.errors import GradledgerError

Model = TypeVar("Model", bound=nn.Module)


class ShadowError(GradledgerError):
    """A copy does not own its weights, or does not match the model that it follows."""

    slug = "shadow"


class Shadow(Generic[Model]):
    """A copy of `online` that owns its storage, needs no gradient, and moves only when `sync` or `blend` is called.

    Attributes: `model`, the copy, in eval mode. Buffers are followed like parameters.
    """

    def __init__(self, online: Model, *, make: Callable[[], Model] | None = None) -> None:
        """Copy `online` now. make: builds a model of the same names and shapes, where a deep copy is not what is wanted
        (another dtype, for one); its random draws do not count, the weights are overwritten.

        Raises:
            ShadowError: names or shapes differ, or the copy shares storage with `online`.
        """
        self.model: Model = copy.deepcopy(online) if make is None else make()
        self.model.requires_grad_(False).eval()
        for parameter in self.model.parameters():
            parameter.grad = None
        mine, theirs = _tensors(self.model), _tensors(online)
        if {name: t.shape for name, t in mine.items()} != {name: t.shape for name, t in theirs.items()}:
            differ = sorted(mine.keys() ^ theirs.keys()) or [n for n in mine if mine[n].shape != theirs[n].shape]
            raise ShadowError(
                got=f"other names or shapes: {', '.join(differ)}",
                wanted="the names and shapes of the online model",
                where="train.shadow.Shadow",
                next_step="build both with the same function and arguments",
            )
        storages = {t.untyped_storage().data_ptr(): name for name, t in theirs.items() if t.numel()}
        shared = [name for name, t in mine.items() if t.numel() and t.untyped_storage().data_ptr() in storages]
        if shared:
            raise ShadowError(
                got=f"shared storage: {', '.join(shared)}",
                wanted="a copy that owns its weights",
                where="train.shadow.Shadow",
                next_step="let `make` build new tensors instead of handing out the online ones",
            )
        self._online = online
        self.sync()

    def sync(self) -> None:
        """Overwrite every parameter and buffer with the online model's value, in place."""
        self.blend(1.0)

    @torch.no_grad()
    def blend(self, tau: float) -> None:
        """copy = (1 - tau) copy + tau online for floating tensors; others are overwritten. `tau` weighs the online
        model.

        Raises:
            ShadowError: tau is not in (0, 1]: with 0 the copy would never move.
        """
        if not 0.0 < tau <= 1.0:
            raise ShadowError(
                got=f"tau={tau}",
                wanted="the weight of the online model, above 0 and at most 1",
                where="train.shadow.Shadow.blend",
                next_step="pass for example 0.005; some libraries call 1 - tau by the same name",
            )
        theirs = _tensors(self._online)
        for name, mine in _tensors(self.model).items():
            if tau == 1.0 or not mine.is_floating_point():
                mine.copy_(theirs[name])
            else:
                mine.lerp_(theirs[name].to(mine.dtype), tau)


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
