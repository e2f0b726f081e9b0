"""The short way for a chain that asks for nothing special: keep all, one tensor between blocks, no state to guard.

What it does is what `Walk` does under `keep_all`; a step of four small layers takes a quarter less time this way, for
nothing is asked that was answered before.  A chain that draws random numbers, changes buffers, shares parameters,
writes into its input or takes cotangents of another layout goes the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gradledger.core.errors import SweepError
from gradledger.sweep import _vjp
from gradledger.sweep._block import Blocks, place_of
from gradledger.sweep._facts import Facts
from gradledger.sweep._gradients import Gradients
from gradledger.sweep._state import what


def plain_enough(facts: Sequence[Facts]) -> bool:
    """Whether every block has been watched and needs none of the general machinery."""
    *chain, loss = facts
    return (
        bool(chain)
        and all(f.looked and not (f.copies or f.random or f.buffers or f.shared or f.droppable) for f in facts)
        and all(f.needs == (True,) and f.single for f in chain)
        and all(f.single and not f.capture for f in facts)
        and loss.single
    )


class Straight:
    """The steps of one chain for inputs of one kind."""

    def __init__(self, blocks: Blocks, facts: Sequence[Facts], modules: Sequence[nn.Module], x: Tensor) -> None:
        """`x`: an input for which `plain_enough(facts)` was found."""
        self._blocks, self._modules = blocks, modules
        self._calls = [b.call for b in blocks[:-1]]
        self._large = [f.large for f in facts]
        self._parameters = list({id(p): p for f in facts for p in f.parameters}.values())
        self._kind = (x.shape, x.dtype, x.device, x.stride())
        self._training = [m.training for m in modules]
        self._devices = ("cpu", x.device.type) if x.device.type != "cpu" else ("cpu",)

    def fits(self, x: Any) -> bool:
        """Whether what was found still holds: kind of input, modes, what is trained, no autocast."""
        return (
            type(x) is Tensor
            and (x.shape, x.dtype, x.device, x.stride()) == self._kind
            and not x.requires_grad
            and [m.training for m in self._modules] == self._training
            and all(p.requires_grad for p in self._parameters)
            and torch.is_grad_enabled()
            and not any(torch.is_autocast_enabled(d) for d in self._devices)
        )

    def backward(self, x: Tensor, y: Any) -> Tensor:
        """One step: the loss, and every `.grad`; or an error, and none of them."""
        return _backward(self._blocks, self._calls, self._large, self._parameters, x, y)


def _backward(
    blocks: Blocks,
    calls: Sequence[Callable[[Any], Any]],
    large: Sequence[bool],
    parameters: list[Tensor],
    x: Tensor,
    y: Any,
) -> Tensor:
    gradients = Gradients(parameters, aside=False)
    outs: list[_vjp.Root] = []
    leaves: list[Tensor] = []
    out: Any
    state: Any
    state, running = x, True
    try:
        gradients.set_aside()
        for call in calls:
            out = call(state)
            if not out.requires_grad:
                raise _changed(blocks, len(outs))
            outs.append(get_gradient_edge(out) if large[len(outs)] else out)
            state = out.detach()
            state.requires_grad_(True)
            leaves.append(state)
        root: _vjp.Root = blocks[-1].call(state, y)
        running, out, state = False, None, None  # held here, the last boundary would stay all the way back
        assert isinstance(root, Tensor)
        result = root.detach().clone()  # its memory may be that of all its terms
        d: Tensor | None = torch.ones_like(root)
        while d is not None:
            if d.nbytes >= _vjp.LARGE:
                d_out, d = [d], None
                _vjp.hand_over((root,), d_out)
                _vjp.accumulate((root,), tuple(d_out))
                d_out.clear()
            else:
                _vjp.accumulate((root,), (d,))
            if not leaves:
                break
            leaf = leaves.pop()
            root, d = outs.pop(), leaf.grad
            leaf.grad = None
            del leaf  # its memory must not wait for the next product
    except Exception as error:
        gradients.undo()
        at = len(outs)
        if running:
            error.add_note(f"gradledger sweep: in {place_of(blocks, at)}, given {what(state)}")
        raise
    except BaseException:
        gradients.undo()
        raise
    gradients.finish()
    return result


def _changed(blocks: Blocks, at: int) -> SweepError:
    return SweepError(
        got="an output that carries no gradient, where it carried one at an earlier step",
        wanted="a block that does the same for inputs of the same kind",
        where=f"block {at} ({blocks[at].name})",
        next_step="make the branch a property that shows (train or eval, another shape), or put it inside one block",
    )
