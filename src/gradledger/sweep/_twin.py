"""A model's copy in float64 that gives the same loss every time it is asked."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradledger.core.errors import SweepError
from gradledger.sweep._block import Block, Blocks, one_block
from gradledger.sweep._copy import Memo, copy_blocks
from gradledger.sweep._replay import RandomState
from gradledger.sweep._seed import roots_and_seeds
from gradledger.sweep._state import same_bits

Backward = Callable[[Sequence[Callable[[Any], Any]], Any, Any, Callable[[Any, Any], Any]], Any]


class Twin:
    """The model's copy in float64, run from the same random state, buffers and data every time."""

    def __init__(self, chain: Blocks, x: Any, y: Any, loss_fn: Callable[[Any, Any], Any]) -> None:
        memo: Memo = {}
        self.chain = copy_blocks(chain, memo)
        self.last = copy_blocks((one_block("loss", loss_fn),), memo)[0]
        self.loss_fn: Callable[..., Any] = self.last.call
        self.random, self.numpy, self.python = RandomState(), np.random.get_state(), random.getstate()
        self.generators = [(g, g.get_state()) for block in self._all() for g in block.generators()]
        for block in self._all():
            _to_double(block)
        self.x, self.y = pytree.tree_map(_data, x), pytree.tree_map(_data, y)
        self.buffers = [(m, n, b.detach().clone()) for block in self._all() for m, n, b in block.buffers()]
        with in_double():
            first, second = self._states(), self._states()
        self._refuse_what_differs(first, second)

    def fill(self, backward: Backward | None) -> None:
        """One reverse pass (None: autograd's own), whose gradients stay in ``.grad``."""
        if backward is None:
            torch.autograd.backward(*roots_and_seeds(self._states()[-1]))
            return
        self._put_back()
        x = pytree.tree_map(_data, self.x)  # leaves of its own: a sweep may cut the graph at the data
        with torch.enable_grad():
            backward([block.call for block in self.chain], x, self.fresh(self.y), self.loss_fn)
        for own, given in zip(pytree.tree_leaves(self.x), pytree.tree_leaves(x), strict=True):
            if isinstance(own, Tensor) and own.requires_grad:
                own.grad = given.grad

    def loss(self) -> float:
        """The loss from the start, named losses added up."""
        roots, _ = roots_and_seeds(self._states()[-1])
        for root in roots:
            if root.dtype != torch.float64:
                raise SweepError(
                    got=f"a loss in {str(root.dtype).removeprefix('torch.')}",
                    wanted="float64 throughout: finite differences of a rounded loss say nothing",
                    where="check_gradients",
                    next_step="look for a conversion through NumPy or a custom kernel that returns a fixed dtype",
                )
        return math.fsum(float(root.detach()) for root in roots)

    def named_leaves(self) -> dict[str, Tensor]:
        """What may be checked: parameters by name, and the data's leaves."""
        found = named_parameters(self._all())
        for path, leaf in pytree.tree_leaves_with_path(self.x):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                found[f"x{pytree.keystr(path)}"] = leaf
        return {name: leaf for name, leaf in found.items() if leaf.requires_grad}

    @staticmethod
    def fresh(data: Any) -> Any:
        """The data in new containers and new memory: a block may write to it. Gradients still arrive at the leaves."""
        return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, data)

    def _all(self) -> Blocks:
        return (*self.chain, self.last)

    def _put_back(self) -> None:
        self.random.restore()
        np.random.set_state(self.numpy)
        random.setstate(self.python)
        for generator, state in self.generators:
            generator.set_state(state)
        for module, name, value in self.buffers:
            module._buffers[name] = value.clone()

    def _states(self) -> list[Any]:
        """Every boundary of one run, the loss last."""
        self._put_back()
        state, states, name = self.fresh(self.x), [], "loss"
        with torch.enable_grad():
            try:
                for block in self.chain:
                    name = block.name
                    state = block.call(state)
                    states.append(state)
                name = "loss"
                states.append(self.loss_fn(state, self.fresh(self.y)))
            except (RuntimeError, TypeError, ValueError) as fault:
                raise SweepError(
                    got=f"{type(fault).__name__}: {str(fault).splitlines()[0]}",
                    wanted="a model that runs in float64 on the data given",
                    where=f"block {name}",
                    next_step="run the model on these data as it is; if that works, look for a fixed dtype inside",
                ) from fault
        return states

    def _refuse_what_differs(self, first: list[Any], second: list[Any]) -> None:
        roots_and_seeds(first[-1])  # a loss that is not a number says so first
        for block, a, b in zip(self._all(), first, second, strict=True):
            what = same_bits(a, b)
            if what is not None:
                raise SweepError(
                    got=f"two results for the same data, parameters, buffers and random state ({what})",
                    wanted="a model that can be run again: a difference would measure the change, not the slope",
                    where=f"block {block.name}",
                    next_step="look for a counter or cache in a plain attribute: make it a buffer, or switch it off",
                )
        roots, _ = roots_and_seeds(first[-1])
        if not all(bool(torch.isfinite(root)) for root in roots):
            raise SweepError(
                got=f"a loss of {[float(root.detach()) for root in roots]}",
                wanted="a finite loss",
                where="check_gradients",
                next_step="find the block in which the first inf or NaN appears, with the forward half of the ledger",
            )


def named_parameters(chain: Blocks) -> dict[str, Tensor]:
    """Each parameter once, under ``block.name``."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for block in chain:
        if isinstance(block.call, nn.Module):
            own: list[tuple[str, Tensor]] = list(block.call.named_parameters())
        else:
            own = [(f"{k}.{n}", p) for k, m in enumerate(block.modules) for n, p in m.named_parameters(recurse=False)]
            own += [(f"closure{k}", t) for k, t in enumerate(block.tensors)]
        for name, parameter in own:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                whole = f"{block.name}.{name}" if block.name else name
                found[whole.replace("_orig_mod.", "")] = parameter
    return found


def _to_double(block: Block) -> None:
    for module in block.modules:
        module.double()
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(module, name, value.double())
    for tensor in block.tensors:
        tensor.data = tensor.data.double()


def _data(leaf: Any) -> Any:
    """A copy of a leaf of the data, in float64 if it is floating-point."""
    if not isinstance(leaf, Tensor):
        return leaf
    value = leaf.detach().clone()
    return (value.double() if value.is_floating_point() else value).requires_grad_(leaf.requires_grad)


class _Lifted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Casts and factories that ask for a lower precision are given float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and kwargs.get("dtype") in (torch.float32, torch.bfloat16, torch.float16):
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Float64 as the default, no cast below it, nothing compiled."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.compiler.set_stance("force_eager"), _Lifted():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(before)
