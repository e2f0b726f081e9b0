"""What a module holds and a `state_dict` forgets: buffers that are not persistent, ties, modes, what is frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gradledger.core.errors import GradledgerError
from gradledger.train._tree import decode, encode

GRADIENT, EXTRA = "grad:", "extra:"


class WeightsError(GradledgerError):
    """A file holds no weights that can be read without running code."""

    slug = "weights"


def bare(module: nn.Module) -> nn.Module:
    """The module inside of torch.compile's and DistributedDataParallel's wrappers, whose names have no prefix."""
    while True:
        inner = None
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule):
            inner = module._orig_mod
        elif isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def tensors_of(module: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Parameters and buffers, all of them, each once; and the other names of those that have several.

    Two names are one tensor when they are one object, as `embedding.weight = head.weight` makes them.
    """
    first: dict[int, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    ties: dict[str, str] = {}
    every = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in every:
        if id(tensor) in first:
            ties[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor
    return tensors, ties


def capture(module: nn.Module, *, gradients: bool) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The state as (tensors by name, facts), views of the live tensors."""
    tensors, ties = tensors_of(module)
    held: dict[str, torch.Tensor] = {name: tensor.detach() for name, tensor in tensors.items()}
    extra, extra_tensors = encode(_extra(module), "extra")
    held |= {EXTRA + name: tensor for name, tensor in extra_tensors.items()}
    if gradients:
        held |= {
            GRADIENT + name: parameter.grad.detach()
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }
    facts = {
        "ties": ties,
        "frozen": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        "eval": [name for name, one in module.named_modules() if not one.training],
        "modules": {name: type(one).__name__ for name, one in module.named_modules()},
        "extra": extra,
    }
    return held, facts


def misfits(module: nn.Module, saved: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> list[str]:
    """Why this state is not this module's."""
    wrong = weight_misfits(module, weights(saved))
    _, ties = tensors_of(module)
    for name, first in facts["ties"].items():
        if ties.get(name) != first:
            wrong.append(f"{name} was tied to {first} and is not here")
    new = {name: first for name, first in ties.items() if name not in facts["ties"]}
    wrong += [f"{name} is tied to {first} here and was not" for name, first in new.items()]
    classes = {name: type(one).__name__ for name, one in module.named_modules()}
    if not wrong:
        other = [name for name in classes if classes[name] != facts["modules"].get(name, classes[name])]
        # The root is left out: a subclass of the same parts is the same network for a resume.
        wrong += [f"{name} is a {classes[name]} and was a {facts['modules'][name]}" for name in other if name]
    return wrong


def weight_misfits(module: nn.Module, saved: Mapping[str, torch.Tensor]) -> list[str]:
    """Names that are missing, unexpected, of another shape or dtype."""
    tensors, ties = tensors_of(module)
    known = tensors.keys() | ties.keys()
    temporary = _temporary(module)
    missing = [name for name in tensors if name not in saved and name not in temporary]
    wrong = [f"{name} {tuple(tensors[name].shape)} is missing" for name in missing]
    wrong += [f"{name} {tuple(saved[name].shape)} is unexpected" for name in saved if name not in known]
    for name, tensor in tensors.items():
        if name not in saved:
            continue
        other = saved[name]
        if other.shape != tensor.shape:
            wrong.append(f"{name} is {tuple(tensor.shape)} here and was {tuple(other.shape)}")
        elif other.dtype != tensor.dtype:
            wrong.append(f"{name} is {tensor.dtype} here and was {other.dtype}")
    return wrong


@torch.no_grad()
def restore(module: nn.Module, saved: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
    """Put back what `capture` returned; `misfits` was empty."""
    copy_weights(module, weights(saved))
    extra = {name.removeprefix(EXTRA): tensor.clone() for name, tensor in saved.items() if name.startswith(EXTRA)}
    parts = dict(module.named_modules())
    for name, state in decode(facts["extra"], extra).items():
        parts[name].set_extra_state(state)
    frozen, asleep = set(facts["frozen"]), set(facts["eval"])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in frozen)
        gradient = saved.get(GRADIENT + name)  # there only if it was asked for
        parameter.grad = None if gradient is None else gradient.to(parameter.device).clone()
    for name, one in module.named_modules():
        one.training = name not in asleep


@torch.no_grad()
def copy_weights(module: nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Overwrite parameters and buffers in place, so that optimizers and aliases keep what they hold."""
    for name, tensor in tensors_of(module)[0].items():
        if name in saved:
            tensor.copy_(saved[name])


def weights(saved: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Only parameters and buffers of what `capture` returned."""
    return {name: tensor for name, tensor in saved.items() if not name.startswith((GRADIENT, EXTRA))}


def read_weights(path: Path, where: str) -> dict[str, torch.Tensor]:
    """A safetensors file. Pickles are refused: reading one runs what it says."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as cause:
        pickled = path.suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl")
        raise WeightsError(
            got=f"{path.name}" + (", a pickle" if pickled else f" ({type(cause).__name__}: {cause})"),
            wanted="a .safetensors file",
            where=where,
            next_step="convert it once, where you trust it: safetensors.torch.save_file("
            "torch.load(path, weights_only=True), 'model.safetensors')"
            if pickled
            else "check the path and the file",
        ) from cause


def _temporary(module: nn.Module) -> set[str]:
    """Buffers that `state_dict` leaves out: a file of weights alone need not hold them."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, one in module.named_modules()
        for name in one._non_persistent_buffers_set
    }


def _extra(module: nn.Module) -> dict[str, Any]:
    """What modules say for themselves, by the path of the module."""
    kept = {}
    for name, one in module.named_modules():
        if type(one).get_extra_state is not nn.Module.get_extra_state:
            kept[name] = one.get_extra_state()
    return kept
