"""Blocks with their loss, and what is known of them for each kind of input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from gradledger.sweep._block import Blocks, blocks, one_block
from gradledger.sweep._facts import Facts
from gradledger.sweep._parallel import reduction_of

Key = tuple[Any, ...]

KINDS = 256
"""Kinds of input that a chain remembers at most; a batch of another length each time must not fill the memory."""


class Chain:
    """A chain, its loss as the last block.

    Args:
        model: as `sweep.blocks` takes it.
        loss_fn: (state, target) -> loss.
        generators: random generators that blocks draw from and that no module carries as an attribute.

    Attributes:
        generators: those, and the ones that modules carry.
        reduction: how gradients are reduced over processes; None in one.
    """

    def __init__(self, model: Any, loss_fn: Callable[..., Any], generators: Sequence[torch.Generator] = ()) -> None:
        self._given = (model, loss_fn, tuple(generators))
        self._read()

    def _read(self) -> None:
        model, loss_fn, generators = self._given
        self.blocks: Blocks = (*blocks(model), one_block("loss", loss_fn))
        self.reduction = reduction_of(self.blocks)
        carried = [g for b in self.blocks for g in b.generators()]
        self.generators = tuple({id(g): g for g in (*carried, *generators)}.values())
        self.modules = tuple({id(m): m for b in self.blocks for m in b.modules}.values())
        self._facts: dict[Key, list[Facts]] = {}
        chain = model._modules if isinstance(model, nn.Module) else model
        self._listed: Sequence[Any] = chain if isinstance(chain, list) else ()
        self._holders = [part for m in self.modules for part in (m._parameters, m._modules)]
        if isinstance(chain, dict):
            self._holders.append(chain)
        self._there = self._objects()  # kept alive, or another object may be found at the same address
        self._known = [*map(id, self._there)]

    def unchanged(self) -> bool:
        """Whether modules and parameters are the objects that they were; else the chain is read again.

        A layer may be exchanged, a parameter replaced (`load_state_dict(assign=True)`): what is known of the blocks
        is then of others.  Blocks that communicate exchange their own parameters while they run, and are left alone.
        """
        if self.reduction is not None or self._known == [*map(id, self._objects())]:
            return True
        self._read()
        return False

    def _objects(self) -> list[Any]:
        return [*self._listed, *[one for part in self._holders for one in part.values()]]

    @classmethod
    def of(cls, blocks: Blocks, generators: Sequence[torch.Generator] = ()) -> Chain:
        """A chain from blocks that are read already, the loss the last of them."""
        return cls(blocks[:-1], blocks[-1].call, generators)

    def key(self, x: Any) -> Key:
        """What a block's behaviour depends on: the input's kind, the modes, what is trained, autocast."""
        kind = _kind(x) if isinstance(x, Tensor) else tuple(_kind(t) for t in pytree.tree_leaves(x))
        trained = tuple(p.requires_grad for m in self.modules for p in m._parameters.values() if p is not None)
        return (kind, tuple(m.training for m in self.modules), trained, _autocast())

    def parameters(self) -> list[Tensor]:
        """Every parameter of the chain and its loss, each once, in forward order."""
        return list({id(p): p for b in self.blocks for p in b.parameters()}.values())

    def facts(self, key: Key) -> list[Facts]:
        """What is known for inputs of this kind (filled in by the first step)."""
        known = self._facts.get(key)
        if known is None:
            while len(self._facts) >= KINDS:
                self._facts.pop(next(iter(self._facts)))
            known = self._facts[key] = [Facts() for _ in self.blocks]
        return known

    def adopt(self, key: Key, facts: list[Facts]) -> None:
        """Take over what a profile of the same blocks found; what was found on another model does not hold here."""
        modules = {id(m) for m in self.modules}
        parameters = {id(p) for p in self.parameters()}
        if all(
            all(id(p) in parameters for p in one.parameters) and all(id(m) in modules for m, _ in one.buffers)
            for one in facts
        ):
            self._facts[key] = facts

    def knows(self, key: Key) -> bool:
        """Whether inputs of this kind have been looked at."""
        return key in self._facts

    def forget(self) -> None:
        """Look again at the next step where a step that failed may have seen half."""
        self._facts = {k: f for k, f in self._facts.items() if all(one.looked for one in f)}


def _kind(x: Any) -> Any:
    if isinstance(x, Tensor):
        if x.layout is torch.jagged:  # its shape holds a number of its own for each set of lengths
            inner = x.values()
            return (len(x), inner.shape, x.dtype, x.device, x.requires_grad)
        return (x.shape, x.dtype, x.device, x.requires_grad, x.stride() if x.layout is torch.strided else None)
    return type(x)


def _autocast() -> Any:
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return tuple(torch.get_autocast_dtype(k) for k in kinds if torch.is_autocast_enabled(k))
