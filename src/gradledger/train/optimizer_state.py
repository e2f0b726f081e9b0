"""An optimizer's state by parameter *name*: positions shift as soon as a layer is added, names do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gradledger.core.errors import GradledgerError


class OptimizerStateError(GradledgerError):
    """An optimizer and a saved state do not belong together."""

    slug = "optimizer-state"


def capture(
    optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The state as (tensors "<parameter>/<entry>", facts), views of the live tensors.

    Args:
        optimizer: any whose state per parameter is tensors, numbers, text and None (all of torch's but LBFGS).
        named: `model.named_parameters()`; every parameter of the optimizer must be in it.

    Raises:
        OptimizerStateError: the optimizer holds a parameter without a name, or an entry that is neither of these.
    """
    names = _names(optimizer, named)
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for parameter, entries in optimizer.state.items():
        name = names[id(parameter)]
        for entry, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{name}/{entry}"] = value.detach()
            elif value is None or isinstance(value, bool | int | float | str):
                scalars.setdefault(name, {})[entry] = value
            else:
                raise OptimizerStateError(
                    got=f"{type(value).__name__} as '{entry}' of {name}",
                    wanted="tensors, numbers, text or None",
                    where=f"train.optimizer_state.capture of {type(optimizer).__name__}",
                    next_step="keep other state outside of the optimizer",
                )
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
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "scalars": scalars}


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
    names = _names(optimizer, named)
    ours = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    theirs = [group["parameters"] for group in facts["groups"]]
    kind = type(optimizer).__name__
    if kind != facts["kind"] or ours != theirs:
        raise OptimizerStateError(
            got=f"{kind} over {ours}",
            wanted=f"{facts['kind']} over {theirs}",
            where="train.optimizer_state.restore",
            next_step="build the optimizer as the saved run did: same class, same groups, same order",
        )
    by_name = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    state: dict[str, dict[str, Any]] = {name: dict(entries) for name, entries in facts["scalars"].items()}
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        parameter = by_name.get(name)
        if parameter is None or (tensor.dim() > 0 and tensor.shape != parameter.shape):
            raise OptimizerStateError(
                got=f"{key} of shape {tuple(tensor.shape)}",
                wanted="a known parameter's shape" if parameter is None else f"shape {tuple(parameter.shape)}",
                where="train.optimizer_state.restore",
                next_step="resume with the model of the run that was saved",
            )
        if tensor.dim() > 0:  # in the parameter's own memory format, as the optimizer would have made it
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
