"""A run of blocks as a module over plain tensors, and the nested states as what crosses a stage's boundary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from gradledger.core.errors import SweepError
from gradledger.sweep._block import Block, Blocks
from gradledger.sweep._chain import Chain
from gradledger.sweep._replay import Found, RandomState


class Wire:
    """A nested state as the plain tensors that cross a stage boundary, each once, and back."""

    def __init__(self, state: Any, where: str) -> None:
        flat, self._spec = pytree.tree_flatten(state)
        once: dict[int, int] = {}
        self.example: list[Tensor] = []
        self._leaves: list[Any] = []  # a place among the tensors, or the value itself in a tuple
        for value in flat:
            if isinstance(value, Tensor):
                if id(value) not in once:
                    once[id(value)] = len(self.example)
                    self.example.append(value)
                self._leaves.append(once[id(value)])
            elif value is None or isinstance(value, bool | int | float | str):
                self._leaves.append((value,))
            else:
                raise wrong(f"a {type(value).__name__} in the state {where}", "tensors", "hand it to the blocks")
        if not self.example:
            raise wrong(f"a state without tensors {where}", "at least one tensor", "return the tensors that go on")

    def pack(self, state: Any) -> Tensor | tuple[Tensor, ...]:
        """The tensors of a state like the example's."""
        flat, spec = pytree.tree_flatten(state)
        constant = [(v,) for v in flat if not isinstance(v, Tensor)]
        if spec != self._spec or constant != [v for v in self._leaves if isinstance(v, tuple)]:
            raise wrong("a state of another form than the example's", "the same nesting and values", "give a batch")
        out: dict[int, Tensor] = {}
        for value, place in zip(flat, self._leaves, strict=True):
            if isinstance(value, Tensor):
                out.setdefault(place, value.contiguous())
        tensors = tuple(out[k] for k in range(len(self.example)))
        return tensors[0] if len(tensors) == 1 else tensors

    def unpack(self, tensors: Sequence[Tensor]) -> Any:
        """The state from its tensors."""
        leaves = [v[0] if isinstance(v, tuple) else tensors[v] for v in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)


class _Received(torch.autograd.Function):
    """Passes a received tensor on; its gradient goes back in the dense layout that is sent."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


class Stage(nn.Module):
    """A run of blocks as one module over plain tensors; it holds the blocks' own modules."""

    def __init__(self, blocks: Blocks, takes: Wire, gives: Wire) -> None:
        super().__init__()
        self._calls = [b.call for b in blocks]
        self._takes, self._gives = takes, gives
        for k, block in enumerate(blocks):
            self.add_module(str(k), _held(block))

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The blocks in turn."""
        state = self._takes.unpack([_Received.apply(t) for t in tensors])  # type: ignore[no-untyped-call]
        for call in self._calls:
            state = call(state)
        return self._gives.pack(state)


def _held(block: Block) -> nn.Module:
    if isinstance(block.call, nn.Module):
        return block.call
    holder = nn.ModuleList(block.modules)
    for k, tensor in enumerate(block.tensors):
        if not isinstance(tensor, nn.Parameter):
            raise wrong(
                f"block {block.name}, a function with a trained tensor that is no nn.Parameter",
                "parameters",
                "make it an nn.Parameter, or a module of the function",
            )
        holder.register_parameter(f"tensor{k}", tensor)
    return holder


def wires_of(chain: Chain, x: Any, y: Any) -> list[Wire]:
    """What crosses each boundary, found by one run that leaves no trace."""
    random = RandomState(chain.generators)
    buffers = [Found([(m, n) for m, n, _ in b.buffers()], None) for b in chain.blocks]
    try:
        state = x
        wires = [Wire(state, "before the first block")]
        for block in chain.blocks[:-1]:
            state = block.call(state)
            wires.append(Wire(state, f"after block {block.name}"))
        loss = chain.blocks[-1].call(state, y)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise wrong("a loss that is no scalar tensor", "one number", "sum the losses in the loss function")
    finally:
        for found in reversed(buffers):
            found.put_back()
        random.restore()
    for wire in wires:
        wire.example = [t.detach().clone().contiguous().requires_grad_(t.requires_grad) for t in wire.example]
    return wires


def wrong(got: str, wanted: str, next_step: str) -> SweepError:
    """What is wrong with what a pipeline was given."""
    return SweepError(got=got, wanted=wanted, where="sweep.pipeline", next_step=next_step)
