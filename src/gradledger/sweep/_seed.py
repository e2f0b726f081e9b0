"""From a loss to the roots of the reverse pass and their seed cotangents.

A loss is one tensor, a (nested) mapping of named losses, or a TensorDict. The rules are those of
`TensorDict.backward` and `Tensor.backward`: without `gradient` every root has a single element and is seeded with 1, so
that named losses are differentiated as their sum; with `gradient` every root is seeded with the entry under its own
nested key. Leaves that require no gradient are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep._tensordict import NestedKey, entry, is_tensordict, leaves

Roots = tuple[Tensor, ...]
Seeds = tuple[Tensor, ...]


def roots_and_seeds(loss: Any, gradient: Any = None, *, create_graph: bool = False) -> tuple[Roots, Seeds]:
    """The tensors a reverse pass starts from, and the cotangent that each is given.

    Args:
        loss: a tensor, a mapping of names to tensors or to further mappings, or a TensorDict. Of several leaves the
            gradients are added up: a sum, never a mean.
        gradient: None (a seed of 1 for each root; each must have a single element), or the seeds: for one tensor a
            tensor, otherwise a mapping or TensorDict with an entry of the leaf's shape, dtype and device under the
            leaf's nested key. Entries without a differentiable leaf are ignored.
        create_graph: must be False; see the error.

    Returns:
        (roots, seeds) of equal length, in the order of the leaves.

    Raises:
        SweepError: nothing is differentiable; a root has several elements and no seed; a seed is missing, or its shape,
            dtype or device is not its root's; `create_graph` is True.

    Example:
        >>> import torch
        >>> from gradledger.sweep._seed import roots_and_seeds
        >>> w = torch.ones(3, requires_grad=True)
        >>> roots, seeds = roots_and_seeds({"actor": w.sum(), "critic": {"value": w.square().sum()}})
        >>> torch.autograd.grad(roots, w, seeds)
        (tensor([3., 3., 3.]),)
    """
    if create_graph:
        raise SweepError(
            got="create_graph=True",
            wanted="a reverse pass that is not differentiated itself",
            where="the loss of the sweep",
            next_step=(
                "a sweep cuts the graph at every boundary and frees it on the way, so nothing is left to differentiate"
                " twice; compute a gradient penalty with torch.autograd.grad(..., create_graph=True) inside one block"
                " or inside loss_fn, or use a plain loss.backward(create_graph=True)"
            ),
        )
    if isinstance(loss, Tensor):
        if gradient is None and loss.requires_grad and loss.numel() == 1 and not loss.is_complex():
            return (loss,), (torch.ones_like(loss),)
        return _one_tensor(loss, gradient)
    return _named(loss, gradient)


def _one_tensor(loss: Tensor, gradient: Any) -> tuple[Roots, Seeds]:
    if not loss.requires_grad:
        raise _nothing(f"a loss of {_looks(loss)} that requires no gradient")
    if gradient is None:
        raise _no_seed("the loss", loss)
    return (loss,), (_checked("the loss", loss, gradient),)


def _named(loss: Any, gradient: Any) -> tuple[Roots, Seeds]:
    if gradient is not None and not (isinstance(gradient, Mapping) or is_tensordict(gradient)):
        raise SweepError(
            got=f"gradient of type {type(gradient).__name__}",
            wanted="a mapping or TensorDict with one entry for each differentiable leaf of the loss",
            where="gradient",
            next_step="give the seeds under the same nested keys as the losses, e.g. {'actor': torch.tensor(0.5)}",
        )
    found = [(key, leaf) for key, leaf in _leaves(loss) if leaf.requires_grad]
    if not found:
        names = [_show(key) for key, _ in _leaves(loss)]
        raise _nothing(f"losses {', '.join(names) or 'without a single tensor'}, none of which requires a gradient")
    seeds: list[Tensor] = []
    for key, leaf in found:
        where = f"the loss at key {_show(key)}"
        if gradient is None:
            if leaf.numel() != 1 or leaf.is_complex():
                raise _no_seed(where, leaf)
            seeds.append(torch.ones_like(leaf))
            continue
        seed = _entry(gradient, key)
        if seed is None:
            have = ", ".join(_show(k) for k, _ in _leaves(gradient, of="gradient")) or "nothing"
            raise SweepError(
                got=f"a gradient with {have}",
                wanted=f"an entry of {_looks(leaf)} at key {_show(key)}",
                where=where,
                next_step="add the entry, or detach this loss if it is not to be differentiated",
            )
        seeds.append(_checked(where, leaf, seed))
    return tuple(leaf for _, leaf in found), tuple(seeds)


def _leaves(value: Any, path: tuple[Any, ...] = (), *, of: str = "loss") -> Iterator[tuple[NestedKey, Tensor]]:
    """Tensors with their nested keys, depth first; plain numbers, strings and None are no losses."""
    if isinstance(value, Tensor):
        yield path[0] if len(path) == 1 else path, value
    elif is_tensordict(value):
        for key, leaf in leaves(value):
            whole = (*path, *(key if isinstance(key, tuple) else (key,)))
            yield whole[0] if len(whole) == 1 else whole, leaf
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, (*path, key), of=of)
    elif not path or (isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value)):
        where = f"the {of} at key {_show(path[0] if len(path) == 1 else path)}" if path else f"the {of}"
        raise SweepError(
            got=f"a {type(value).__name__}",
            wanted="a tensor, a mapping of named tensors, or a TensorDict",
            where=where,
            next_step="add the parts up yourself, or give them names: {'actor': ..., 'critic': ...}",
        )


def _entry(gradient: Any, key: NestedKey) -> Any:
    """The seed under a nested key, through mappings and TensorDicts; None where there is none."""
    if is_tensordict(gradient):
        return entry(gradient, key)
    here = gradient
    for part in key if isinstance(key, tuple) else (key,):
        if is_tensordict(here):
            here = entry(here, part)
        elif isinstance(here, Mapping):
            here = here.get(part)
        else:
            return None
    return here


def _checked(where: str, leaf: Tensor, seed: Any) -> Tensor:
    """`seed`, if the engine may take it for `leaf` as it is: a silent cast or broadcast would change the result.

    A python number weighs a loss of one floating value; it has no dtype or shape that could be meant otherwise.
    """
    if type(seed) in (int, float) and leaf.dim() == 0 and leaf.is_floating_point():
        return torch.full_like(leaf, seed)
    if not isinstance(seed, Tensor):
        got = f"a gradient of type {type(seed).__name__}"
    elif (seed.shape, seed.dtype, seed.device) != (leaf.shape, leaf.dtype, leaf.device):
        got = f"a gradient of {_looks(seed)}"
    elif seed.layout != leaf.layout:
        got = f"a gradient of layout {seed.layout}"
    elif seed.requires_grad:
        return seed.detach()  # the walk is not differentiated: a graph behind the seed would only be kept alive
    else:
        return seed
    raise SweepError(
        got=got,
        wanted=f"{_looks(leaf)}, as the leaf itself",
        where=where,
        next_step="torch.full_like(leaf, weight) or weight.expand_as(leaf).to(leaf) gives one that fits",
    )


def _no_seed(where: str, leaf: Tensor) -> SweepError:
    what = "a complex leaf" if leaf.is_complex() else "a leaf with several elements"
    return SweepError(
        got=f"{what}, {_looks(leaf)}, and no gradient for it",
        wanted="a real leaf with a single element, for which the gradient is 1",
        where=where,
        next_step="take its sum or mean, or hand in gradient= with an entry of the same shape",
    )


def _nothing(got: str) -> SweepError:
    return SweepError(
        got=got,
        wanted="at least one leaf that requires a gradient",
        where="the loss of the sweep",
        next_step=(
            "look for detach(), no_grad(), .item() or a NumPy round trip between parameters and loss, and for"
            " requires_grad=False on every parameter"
        ),
    )


def _show(key: NestedKey) -> str:
    return repr(key)


def _looks(tensor: Tensor) -> str:
    """Shape, dtype and device in one phrase."""
    return f"shape {tuple(tensor.shape)} ({str(tensor.dtype).removeprefix('torch.')} on {tensor.device})"
