"""The table of models x inputs x losses that the sweep is tested on, and the independent oracle.

``PROBLEMS`` holds the rows; ``Problem.make(rng_seed)`` builds one, fresh each call and equal for equal seeds. ``plain``
is the oracle: the blocks one after another on the state, and one plain backward. ``outcome`` runs any other reverse
pass under the same random state and collects the same record, and ``differences`` names what is not equal to the bit::

    wanted = plain(problem)
    got = outcome(problem, lambda chain: my_backward(chain.blocks, chain.x, chain.y, chain.loss_fn))
    assert differences(got, wanted) == []
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import problem_models as models


class Chain(NamedTuple):
    """What ``make`` returns: block i gets what block i-1 returned, ``loss_fn(state, y)`` closes the chain."""

    blocks: list[Any]
    x: Any
    y: Any
    loss_fn: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Problem:
    """One row. The flags say what is special; `test_problems.py` shows that each of them tells the truth."""

    id: str
    build: Callable[[], models.Chain]
    train: bool = True
    autocast: torch.dtype | None = None  # the whole forward and the loss run under it
    cache_enabled: bool = True  # of autocast
    random: bool = False  # draws from torch's random stream
    buffers: bool = False  # a run changes buffers
    inplace: bool = False  # a block writes to its input boundary
    shared: bool = False  # a parameter is used by more than one block
    compiled: Literal["aot_eager", "inductor"] | None = None
    replayable: bool = True  # False: a block gives other numbers when it is run again, whatever torch state is restored
    needs: frozenset[str] = field(default_factory=frozenset)  # optional packages

    def make(self, rng_seed: int = 0, *, device: str = "cpu") -> Chain:
        """A fresh chain from `rng_seed`; the caller's random streams are left as they were."""
        with _seeded(rng_seed):
            blocks, x, y, loss_fn = self.build()
        for module in modules_of(blocks):
            module.train(self.train).to(device)
        return Chain(blocks, _to(x, device), _to(y, device), loss_fn)

    def context(self, device: str = "cpu") -> contextlib.AbstractContextManager[Any]:
        """What the forward and the loss run under: autocast or nothing."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(device, dtype=self.autocast, cache_enabled=self.cache_enabled)


@dataclass(frozen=True)
class Outcome:
    """Everything that two ways through one problem must agree on, to the bit."""

    loss: Any  # tensor, or mapping of named losses, detached
    grads: Mapping[str, Tensor | None]
    buffers: Mapping[str, Tensor]
    random_state: Mapping[str, Any]


def plain(problem: Problem, rng_seed: int = 0, *, device: str = "cpu") -> Outcome:
    """The oracle: run the blocks, then one `torch.autograd.backward` over the loss (all named losses at once)."""
    return outcome(problem, _plain_backward, rng_seed, device=device)


def outcome(problem: Problem, backward: Callable[[Chain], Any], rng_seed: int = 0, *, device: str = "cpu") -> Outcome:
    """Run `backward` on a fresh chain under the problem's context and collect what it left behind.

    `backward` fills ``.grad`` and returns the loss. Random streams are set before it, read after it, and put back.
    """
    chain = problem.make(rng_seed, device=device)
    if problem.compiled is not None:
        torch.compiler.reset()  # the limit of recompilations is counted per code object, over all rows
    with _seeded(rng_seed + 1):
        with problem.context(device):
            loss = backward(chain)
        state = _random_state()
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in named_leaves(chain)}
    buffers = {name: b.clone() for name, b in named_buffers(chain.blocks)}
    loss = tree_map(_detached, _plain_mapping(loss))
    return Outcome(loss, grads, buffers, state)


def run(chain: Chain) -> Any:
    """The state after the last block."""
    state = chain.x
    for block in chain.blocks:
        state = block(state)
    return state


def _plain_backward(chain: Chain) -> Any:
    loss = chain.loss_fn(run(chain), chain.y)
    roots = differentiable(loss)
    with torch.autocast(roots[0].device.type, enabled=False):  # a backward belongs outside of the region
        torch.autograd.backward(roots)
    return loss


def differentiable(loss: Any) -> list[Tensor]:
    """The leaves of nested named losses that a gradient comes from, in order."""
    if isinstance(loss, Tensor):
        return [loss] if loss.requires_grad else []
    if hasattr(loss, "items"):
        return [leaf for _, value in loss.items() for leaf in differentiable(value)]
    return []


def differences(got: Outcome, wanted: Outcome) -> list[str]:
    """What is not equal to the bit, by name; empty when all agrees."""
    found: list[str] = []
    for part in ("loss", "grads", "buffers", "random_state"):
        found += _differences(part, getattr(got, part), getattr(wanted, part))
    return found


def _differences(path: str, got: Any, wanted: Any) -> list[str]:
    if isinstance(wanted, Mapping):
        if not isinstance(got, Mapping) or list(got) != list(wanted):
            return [f"{path}: keys {list(got) if isinstance(got, Mapping) else got}, wanted {list(wanted)}"]
        return [line for key in wanted for line in _differences(f"{path}.{key}", got[key], wanted[key])]
    if isinstance(wanted, Tensor) and isinstance(got, Tensor):
        if (got.shape, got.dtype, got.device) != (wanted.shape, wanted.dtype, wanted.device):
            return [f"{path}: {got.dtype} {tuple(got.shape)}, wanted {wanted.dtype} {tuple(wanted.shape)}"]
        if torch.equal(got, wanted) or torch.equal(torch.nan_to_num(got), torch.nan_to_num(wanted)):
            return []
        return [f"{path}: differs by up to {(got.double() - wanted.double()).abs().max().item():.3g}"]
    if isinstance(wanted, Tensor) or isinstance(got, Tensor) or got != wanted:
        return [f"{path}: {_short(got)}, wanted {_short(wanted)}"]
    return []


def _short(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]


# ---------------------------------------------------------------------------------------------------- names
def modules_of(blocks: list[Any]) -> list[nn.Module]:
    """The modules in the blocks, in order, also inside closures, partials and bound methods; each once."""
    found: dict[int, nn.Module] = {}
    for block in blocks:
        for value in _held(block):
            if isinstance(value, nn.Module):
                found.setdefault(id(value), value)
    return list(found.values())


def named_leaves(chain: Chain) -> Iterator[tuple[str, Tensor]]:
    """Parameters as ``block.name``, each once under its first name, then what of `x` requires a gradient."""
    seen: set[int] = set()
    for i, block in enumerate(chain.blocks):
        for name, parameter in block_parameters(block):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{i}.{name}", parameter
    for path, leaf in torch.utils._pytree.tree_leaves_with_path(_plain_mapping(chain.x)):
        if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf:  # a block may write its outputs into `x`
            yield f"x{torch.utils._pytree.keystr(path)}", leaf


def block_parameters(block: Any) -> list[tuple[str, nn.Parameter]]:
    """The parameters that one block holds, by name."""
    found: list[tuple[str, nn.Parameter]] = []
    for j, value in enumerate(_held(block)):
        if isinstance(value, nn.Module):
            found += [(f"{j}.{n}" if j else n, p) for n, p in value.named_parameters()]
        elif isinstance(value, nn.Parameter):
            found.append((f"closure{j}", value))
    return found


def named_buffers(blocks: list[Any]) -> Iterator[tuple[str, Tensor]]:
    """Buffers by name, each once."""
    seen: set[int] = set()
    for i, module in enumerate(modules_of(blocks)):
        for name, buffer in module.named_buffers():
            if id(buffer) not in seen:
                seen.add(id(buffer))
                yield f"{i}.{name}", buffer


def _held(block: Any) -> list[Any]:
    """The modules and parameters that a block is, or holds by closure, partial, default or as a method."""
    if isinstance(block, (nn.Module, nn.Parameter)):
        return [block]
    if isinstance(block, functools.partial):
        parts = [block.func, *block.args, *block.keywords.values()]
    elif hasattr(block, "__self__") and isinstance(block.__self__, nn.Module):
        parts = [block.__self__]
    else:
        cells = getattr(block, "__closure__", None) or ()
        parts = [cell.cell_contents for cell in cells] + list(getattr(block, "__defaults__", None) or ())
    return [value for part in parts for value in _held(part)]


# ---------------------------------------------------------------------------------------------------- random streams
@contextlib.contextmanager
def _seeded(rng_seed: int) -> Iterator[None]:
    """Every random stream set to `rng_seed`, and put back."""
    devices = range(torch.cuda.device_count())
    outer_numpy, outer_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(rng_seed)
        np.random.seed(rng_seed)
        random.seed(rng_seed)
        try:
            yield
        finally:
            np.random.set_state(outer_numpy)
            random.setstate(outer_python)


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    for i in range(torch.cuda.device_count()):
        state[f"cuda:{i}"] = torch.cuda.get_rng_state(i)
    state["numpy"] = str(np.random.get_state())
    state["python"] = random.getstate()
    return state


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _plain_mapping(value: Any) -> Any:
    """A TensorDict as nested dicts; anything else as it is."""
    return value.to_dict() if hasattr(value, "batch_size") else value


def _to(value: Any, device: str) -> Any:
    if hasattr(value, "batch_size"):
        return value.to(device)

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        moved = leaf.to(device)
        return moved if moved is leaf else moved.detach().requires_grad_(leaf.requires_grad)

    return tree_map(move, value)


# ---------------------------------------------------------------------------------------------------- the table
_BF16 = torch.bfloat16
_TD = frozenset({"tensordict"})

PROBLEMS: tuple[Problem, ...] = (
    Problem("mlp", models.mlp),
    Problem("mlp-sum", functools.partial(models.mlp, loss=models.sum_square)),
    Problem("mlp-batch-7", models.uneven_batch),
    Problem("one-block", models.one_block),
    Problem("named-losses", models.named_losses),
    Problem("x-requires-grad", models.x_requires_grad),
    Problem("unused-parameters", models.unused_parameters),
    Problem("weight-norm", models.weight_norm),
    Problem("spectral-norm", models.spectral_norm, buffers=True),
    Problem("spectral-norm-eval", models.spectral_norm, train=False),
    Problem("q-network", models.q_network),
    Problem("conv-batchnorm", models.conv_batch_norm, buffers=True),
    Problem("conv-batchnorm-eval", models.conv_batch_norm, train=False),
    Problem("batchnorm-frozen", models.frozen_batch_norm, buffers=True),
    Problem("channels-last", models.channels_last, buffers=True),
    Problem("u-net", models.u_net),
    Problem("dense-skips", models.dense_skips),
    Problem("dict-state", models.dict_state),
    Problem("tensordict-state", models.tensordict_state, needs=_TD),
    Problem("integer-outputs", models.integer_outputs),
    Problem("none-cotangent", models.none_cotangent),
    Problem("stop-gradient", models.stop_gradient),
    Problem("odd-strides", models.odd_strides),
    Problem("tied-embeddings", models.tied_embeddings, shared=True),
    Problem("thrice-shared", models.thrice_shared, shared=True),
    Problem("same-block-thrice", models.same_block_thrice, shared=True),
    Problem("lora", models.lora),
    Problem("attention", models.attention, random=True),
    Problem("attention-eval", models.attention, train=False),
    Problem("transformer-layer", models.transformer_layer, random=True),
    Problem("transformer-layer-eval", models.transformer_layer, train=False),
    Problem("dropout", models.dropout, random=True),
    Problem("lstm", models.lstm),
    Problem("gru", models.gru),
    Problem("inplace-relu", models.inplace_relu, inplace=True),
    Problem("inplace-conv", models.inplace_conv, inplace=True),
    Problem("inplace-state", models.inplace_state, inplace=True),
    Problem("functions", models.functions),
    Problem("custom-function", models.custom_function),
    Problem("autocast-mlp", models.autocast_float_loss, autocast=_BF16),
    Problem("autocast-mixed", models.autocast_mixed, autocast=_BF16),
    Problem("autocast-conv", models.conv_batch_norm, autocast=_BF16, buffers=True),
    Problem("autocast-dropout", models.dropout, autocast=_BF16, random=True),
    Problem("autocast-tied", models.tied_embeddings, autocast=_BF16, cache_enabled=False, shared=True),
    Problem("compiled-mlp", functools.partial(models.compiled_mlp, backend="aot_eager"), compiled="aot_eager"),
    Problem(
        "compiled-conv",
        functools.partial(models.compiled_conv, backend="aot_eager"),
        compiled="aot_eager",
        buffers=True,
    ),
    Problem("inductor-mlp", functools.partial(models.compiled_mlp, backend="inductor"), compiled="inductor"),
    Problem("numpy-noise", models.numpy_noise, replayable=False),
    Problem("python-draw", models.python_draw, replayable=False),
    Problem("python-counter", models.python_counter, replayable=False),
    Problem("own-generator", models.own_generator, replayable=False),
)

BY_ID: Mapping[str, Problem] = {problem.id: problem for problem in PROBLEMS}
