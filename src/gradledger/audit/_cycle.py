"""Small readings of the clear, fill, consume cycle that the gradient rules share."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import Site

Path = tuple[tuple[str, int], ...]

_STEP = re.compile(r"([A-Za-z_][\w.\[\]\"']*)\.step\(\s*([A-Za-z_][\w.\[\]\"']*)?")
_ASSIGNED = re.compile(r"((?:self\.)?[A-Za-z_]\w*)\s*(?::[^=]+)?=(?!=)")
_COMMENT = re.compile(r"""\s+#[^'"]*$""")
_BACKWARD = re.compile(r"([A-Za-z_][\w.\[\]\"']*)\.backward\(")


def written(site: Site, world: World) -> str:
    """What the program says on a line, without the comment behind it."""
    return _COMMENT.sub("", world.source(site))


def path_of(site: Site) -> Path:
    """A line together with the lines that called it: two calls of one helper are two paths."""
    return (site.key(), *((f.file, f.line) for f in site.callers))


def optimizer_word(step: Site, world: World) -> str:
    """The optimizer as the program writes it on its `.step()` line; "optimizer" when the line shows no name."""
    match = _STEP.search(world.source(step))
    if match is None:
        return "optimizer"
    receiver, argument = match[1], match[2]
    return argument if argument and "scaler" in receiver.lower() else receiver


def assigned_word(made: Site, world: World) -> str:
    """The name that the line of `made` assigns to; "" when it shows none."""
    match = _ASSIGNED.match(world.source(made))
    return match[1] if match is not None else ""


def loss_word(backward: Site, world: World) -> str:
    """The loss as the program writes it on its `.backward()` line; "loss" when the line shows no name."""
    match = _BACKWARD.search(world.source(backward))
    return match[1] if match is not None else "loss"


def of_steps(looked_at: int, optimizer: int, world: World) -> str:
    """The steps that a count refers to: "40 steps", or "400 steps looked at (of 3000)" when a long run was thinned."""
    total = world.optimizer(optimizer).steps
    return f"{looked_at} steps looked at (of {total})" if total > looked_at else f"{looked_at} steps"


def clear_word(clear: Site, world: World) -> str:
    """The clear as the program writes it; "zero_grad()" when the line is not known."""
    source = written(clear, world)
    return source if source and len(source) <= 60 else "zero_grad()"


def fresh(fills: Iterable[ev.Fill]) -> list[int]:
    """Reverse passes in a gradient that no step has used yet."""
    return [f.backward for f in fills if f.consumed == 0]


def has_gradient(step: ev.Step) -> bool:
    """Whether a step finds a gradient in any tensor that is not frozen."""
    return any(life.grad in ("filled", "assigned") and not life.frozen for life in step.lives)
