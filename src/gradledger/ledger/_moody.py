"""Layers that compute something else in train mode than in eval mode."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from gradledger.ledger._registry import tree

ROOTS = 8
# Weak: a class that is made for one module (a parametrized layer) holds that module.
_reads_mode: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


class Moody:
    """The mode-dependent layers below each module that the program calls; looked up once, then by weak reference."""

    def __init__(self) -> None:
        self._layers: dict[int, list[weakref.ref[torch.nn.Module]]] = {}

    def count(self, number: int, root: torch.nn.Module, fresh: bool) -> tuple[int, int]:
        """(mode-dependent layers below `root`, those of them in train mode now); `fresh`: look at the tree again."""
        known = self._layers.get(number)
        if known is None or fresh:
            known = self._layers[number] = [weakref.ref(m) for _, m in tree(root) if is_moody(m)]
        layers = [layer for ref in known if (layer := ref()) is not None]
        return len(layers), sum(bool(layer.__dict__.get("training")) for layer in layers)

    def modes(self) -> tuple[bool, ...]:
        """Of the first roots that were called: is the first of their mode-dependent layers in train mode?"""
        firsts = [known[0]() for known in list(self._layers.values())[:ROOTS] if known]
        return tuple(layer is not None and bool(layer.__dict__.get("training")) for layer in firsts)


def is_moody(module: torch.nn.Module) -> bool:
    """Whether this very layer (not its children) depends on its mode."""
    if isinstance(module, (_DropoutNd, torch.nn.AlphaDropout, torch.nn.FeatureAlphaDropout)):
        return float(module.p) > 0
    if isinstance(module, _NormBase):
        return isinstance(getattr(module, "running_mean", None), torch.Tensor)
    if isinstance(module, torch.nn.RNNBase):
        return float(module.dropout) > 0 and module.num_layers > 1
    if isinstance(module, torch.nn.MultiheadAttention):
        return float(module.dropout) > 0
    if isinstance(module, torch.nn.RReLU):
        return True
    cls = type(module)
    known = _reads_mode.get(cls)
    if known is None:
        known = not cls.__module__.startswith("torch.") and _names_training(vars(cls).get("forward"))
        _reads_mode[cls] = known
    return known


def _names_training(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and _in_code(code)


def _in_code(code: CodeType) -> bool:
    return "training" in code.co_names or any(_in_code(c) for c in code.co_consts if isinstance(c, CodeType))
