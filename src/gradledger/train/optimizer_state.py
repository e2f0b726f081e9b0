"""An optimizer's state by parameter *name*: positions shift as soon as a layer is added, names do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gradledger.core.errors import GradledgerError
from gradledger.train._tree import TreeError, decode, encode

TREE = "tree:"


class OptimizerStateError(GradledgerError):
    """An optimizer and a saved state do not belong together."""

    slug = "optimizer-state"


def capture(
    optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The state as (tensors "<parameter>/<entry>", facts), views of the live tensors.

    Args:
        optimizer: any whose state is tensors, numbers, text, and nestings of these (all of torch's).
        named: `model.named_parameters()`; every parameter of the optimizer must be in it.

    Raises:
        OptimizerStateError: the optimizer holds a parameter without a name, or an entry that is none of these.
    """
    names = _names(optimizer, named)
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    trees: dict[str, dict[str, Any]] = {}
    odd: dict[str, list[int]] = {}  # entries of another shape than their parameter, as Adafactor has them
    for parameter, entries in optimizer.state.items():
        name = names[id(parameter)]
        for entry, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{name}/{entry}"] = value.detach()
                if value.dim() > 0 and value.shape != parameter.shape:
                    odd[f"{name}/{entry}"] = list(value.shape)
            elif value is None or isinstance(value, bool | int | str):
                scalars.setdefault(name, {})[entry] = value
            else:
                try:
                    text, within = encode(value, f"{TREE}{name}/{entry}")
                except TreeError as cause:
                    raise OptimizerStateError(
                        got=f"{cause.got}, '{entry}' of {name}",
                        wanted=cause.wanted,
                        where=f"train.optimizer_state.capture of {type(optimizer).__name__}",
                        next_step="keep other state outside of the optimizer",
                    ) from None
                trees.setdefault(name, {})[entry] = text
                tensors |= within
    groups = [
        {
            "parameters": [names[id(parameter)] for parameter in group["params"]],
            "options": {
                key: {"tensor": value.tolist(), "dtype": str(value.dtype)} if isinstance(value, torch.Tensor) else value
                for key, value in group.items()
                if key != "params" and _saved(value)
            },
        }
        for group in optimizer.param_groups
    ]
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "scalars": scalars, "trees": trees, "odd": odd}


def restore(
    optimizer: torch.optim.Optimizer,
    named: Iterable[tuple[str, nn.Parameter]],
    tensors: Mapping[str, torch.Tensor],
    facts: Mapping[str, Any],
) -> None:
    """Put back what `capture` returned.

    Raises:
        OptimizerStateError: another class, other groups, other parameters in them, or a state of another shape. Nothing
            is changed then.
    """
    named = list(named)
    wrong = misfit(optimizer, named, tensors, facts)
    if wrong is not None:
        raise OptimizerStateError(
            got=wrong,
            wanted="the optimizer of the saved run",
            where="train.optimizer_state.restore",
            next_step="build the optimizer as the saved run did: same class, same groups, same order",
        )
    names = _names(optimizer, named)
    by_name = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    state: dict[str, dict[str, Any]] = {name: dict(entries) for name, entries in facts["scalars"].items()}
    copies = {key: tensor.clone() for key, tensor in tensors.items() if key.startswith(TREE)}
    for name, texts in facts.get("trees", {}).items():
        device = by_name[name].device
        placed = {key: tensor.to(device) for key, tensor in copies.items() if key.startswith(f"{TREE}{name}/")}
        state.setdefault(name, {}).update({entry: decode(text, placed) for entry, text in texts.items()})
    for key, tensor in tensors.items():
        if key.startswith(TREE):
            continue
        name, _, entry = key.rpartition("/")
        parameter = by_name[name]
        if key in facts.get("odd", {}):
            mine = tensor.clone().to(parameter.device)
        elif tensor.dim() > 0:  # in the parameter's own memory format, as the optimizer would have made it
            mine = torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
        else:  # counters such as Adam's `step` stay on the CPU unless the optimizer is fused or capturable
            mine = tensor.clone().to(parameter.device if _step_on_device(optimizer) else tensor.device)
        state.setdefault(name, {})[entry] = mine
    for group, saved in zip(optimizer.param_groups, facts["groups"], strict=True):
        for option, value in saved["options"].items():
            group[option] = _option(value, group.get(option))
    optimizer.state.clear()
    for name, entries in state.items():
        optimizer.state[by_name[name]] = entries


def check_names(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise `OptimizerStateError` when the optimizer holds a parameter that is not among the named ones."""
    _names(optimizer, named)


def misfit(
    optimizer: torch.optim.Optimizer,
    named: Iterable[tuple[str, nn.Parameter]],
    tensors: Mapping[str, torch.Tensor],
    facts: Mapping[str, Any],
) -> str | None:
    """Why `restore` would refuse this state, or None."""
    try:
        names = _names(optimizer, named)
    except OptimizerStateError as cause:
        return cause.got
    ours = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    theirs = [group["parameters"] for group in facts["groups"]]
    kind = type(optimizer).__name__
    if kind != facts["kind"]:
        return f"{kind} here, and {facts['kind']} saved"
    if ours != theirs:
        return _groups_differ(ours, theirs)
    by_name = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    for key, tensor in tensors.items():
        if key.startswith(TREE):
            continue
        parameter = by_name.get(key.rpartition("/")[0])
        if parameter is None:
            return f"{key} of shape {tuple(tensor.shape)}, of a parameter that is not here"
        if tensor.dim() and tensor.shape != parameter.shape and facts.get("odd", {}).get(key) != list(tensor.shape):
            return f"{key} of shape {tuple(tensor.shape)} for a parameter of shape {tuple(parameter.shape)}"
    return None


def _groups_differ(ours: list[list[str]], theirs: list[list[str]]) -> str:
    """The first thing that differs: the whole lists would fill a screen."""
    if len(ours) != len(theirs):
        return f"{len(ours)} groups here, and {len(theirs)} saved"
    for number, (mine, saved) in enumerate(zip(ours, theirs, strict=True)):
        if lost := [name for name in saved if name not in mine]:
            return f"group {number} lacks {_some(lost)}"
        if more := [name for name in mine if name not in saved]:
            return f"group {number} also holds {_some(more)}"
        if mine != saved:
            return f"group {number} holds its parameters in another order"
    return "other groups"


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _names(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]]) -> dict[int, str]:
    names = {id(parameter): name for name, parameter in named}
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                raise OptimizerStateError(
                    got=f"an unnamed parameter of shape {tuple(parameter.shape)} at {position} in group {index}",
                    wanted="every parameter of the optimizer among the named ones",
                    where="train.optimizer_state",
                    next_step="pass the named_parameters of all modules that this optimizer trains",
                )
    return names


def _saved(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple | list | torch.Tensor)


def _option(value: Any, now: Any) -> Any:
    if isinstance(value, Mapping):
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"].removeprefix("torch.")))
    return tuple(value) if isinstance(now, tuple) else value


def _step_on_device(optimizer: torch.optim.Optimizer) -> bool:
    return any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
