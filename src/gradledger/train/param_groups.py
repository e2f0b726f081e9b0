"""Parameter groups that cover a model exactly: each trainable parameter in one group, none left out, none twice."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gradledger.core.errors import GradledgerError

Match = str | Callable[[str, nn.Parameter], bool]


class ParamGroupError(GradledgerError):
    """Groups that leave a parameter out, hold one twice, or match nothing."""

    slug = "param-groups"


@dataclass(frozen=True)
class Group:
    """A named group before it is filled.

    match: a pattern of names as in a shell (`backbone.*`, `*.bias`), or (name, parameter) -> bool.
    options: what the optimizer takes for this group (`lr`, `weight_decay`, ...).
    """

    name: str
    match: Match
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ParamGroups:
    """Groups for an optimizer, and who is in none of them because it is frozen.

    groups: dictionaries with `params`, `name` and the options, to be handed to an optimizer.
    names: group name -> names of its parameters, in the model's order. frozen: names with requires_grad False.
    """

    groups: list[dict[str, Any]]
    names: dict[str, tuple[str, ...]]
    frozen: tuple[str, ...]


def exact_cover(model: nn.Module, groups: Iterable[Group], *, allow_empty: bool = False) -> ParamGroups:
    """Sort every trainable parameter of `model` into exactly one group. A tied parameter counts once, under its first
    name.

    Args:
        model: the module whose parameters are sorted; frozen ones are listed, not grouped.
        groups: in the order that the optimizer is to have.
        allow_empty: let a group match nothing; by default that is an error, for it is mostly a mistyped name.

    Raises:
        ParamGroupError: parameters in no group or in several, a group that matches nothing, a group name twice.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
        >>> sorted_out = exact_cover(net, [
        ...     Group("decayed", lambda name, p: p.dim() > 1, {"weight_decay": 0.1}),
        ...     Group("others", lambda name, p: p.dim() <= 1, {"weight_decay": 0.0}),
        ... ])
        >>> sorted_out.names["decayed"]
        ('0.weight',)
    """
    wanted = list(groups)
    twice = sorted({g.name for g in wanted if sum(other.name == g.name for other in wanted) > 1})
    if twice:
        raise _error(f"the group names {twice} twice", "a name of its own for each group", "rename one")
    filled: dict[str, list[tuple[str, nn.Parameter]]] = {group.name: [] for group in wanted}
    frozen, uncovered, several = [], [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            frozen.append(name)
            continue
        takers = [group.name for group in wanted if _matches(group.match, name, parameter)]
        if not takers:
            uncovered.append(f"{name} {tuple(parameter.shape)}")
        elif len(takers) > 1:
            several.append(f"{name} in {' and '.join(takers)}")
        for taker in takers:
            filled[taker].append((name, parameter))
    if uncovered or several:
        parts = {"in no group": uncovered, "in several": several}
        told = "; ".join(f"{what}: {_some(names)}" for what, names in parts.items() if names)
        raise _error(told, "each trainable parameter in exactly one group", "change the patterns")
    empty = [name for name, members in filled.items() if not members]
    if empty and not allow_empty:
        raise _error(
            f"nothing in {', '.join(empty)}" + (f" (frozen parameters: {_some(frozen)})" if frozen else ""),
            "at least one trainable parameter in each group",
            "correct the pattern, unfreeze before grouping, or pass allow_empty=True",
        )
    return ParamGroups(
        [
            {"params": [parameter for _, parameter in filled[group.name]], "name": group.name, **group.options}
            for group in wanted
        ],
        {name: tuple(member for member, _ in members) for name, members in filled.items()},
        tuple(frozen),
    )


def decay_groups(model: nn.Module, weight_decay: float) -> ParamGroups:
    """The usual two groups: matrices and kernels decay, vectors and scalars (biases, gains of norms) do not."""
    return exact_cover(
        model,
        [
            Group("decay", lambda _, parameter: parameter.dim() > 1, {"weight_decay": weight_decay}),
            Group("no_decay", lambda _, parameter: parameter.dim() <= 1, {"weight_decay": 0.0}),
        ],
        allow_empty=True,
    )


def _matches(match: Match, name: str, parameter: nn.Parameter) -> bool:
    return fnmatch.fnmatchcase(name, match) if isinstance(match, str) else bool(match(name, parameter))


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _error(got: str, wanted: str, next_step: str) -> ParamGroupError:
    return ParamGroupError(got=got, wanted=wanted, where="train.param_groups.exact_cover", next_step=next_step)
