"""Parameters of an optimizer that is gone, which reverse passes of a later stage go on filling (G12).

That an optimizer is gone is told by the text and the run together: it is a local variable of a function that has
returned without it, another optimizer was built since its last step, and it never steps or clears again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit import _growing
from gradledger.audit._code import bindings, parsed, walk
from gradledger.audit._loops import enclosing_function
from gradledger.audit.world import OptimizerInfo, World
from gradledger.core.site import Site

MANY = 20  # reverse passes that filled what nobody clears


@dataclass(frozen=True, slots=True)
class Left:
    """An optimizer that is gone, the one that came after it, and its tensors that are filled still."""

    gone: OptimizerInfo
    later: OptimizerInfo
    tensors: tuple[int, ...]
    filled: _growing.Filled


def left_behind(state: _growing.State, world: World) -> Iterator[Left]:
    """Optimizers that are gone and whose tensors accumulate all the same, until the run is over."""
    found: dict[int, list[tuple[int, _growing.Filled]]] = {}
    over = _growing.over(world)
    for tensor, filled in state.left.items():
        holders = world.holders(tensor)
        if filled.accumulates and filled.fills >= MANY and len(holders) == 1 and holders[0] in over:
            found.setdefault(holders[0], []).append((tensor, filled))
    for ident, group in found.items():
        gone, filled = world.optimizer(ident), group[0][1]
        if filled.clears or not _is_gone(gone.site, filled.backward):
            continue
        last = gone.last_step.seq if gone.last_step is not None else 0
        since = [o for o in world.optimizers.values() if o.made_seq > last and o.steps >= MANY]
        if since:
            yield Left(gone, max(since, key=lambda o: o.steps), tuple(t for t, _ in group), filled)


def _is_gone(made: Site, filled: Site) -> bool:
    """Whether an optimizer is a local variable of a function that does not give it back, and that is not running at the
    line that fills."""
    function, tree = enclosing_function(made.file, made.line), parsed(made.file)
    running = {(filled.file, filled.function), *((f.file, f.function) for f in filled.callers)}
    if function is None or tree is None or (made.file, made.function) in running:
        return False
    names = {
        name
        for node in walk(function)
        if isinstance(node, ast.Assign) and node.lineno <= made.line <= (node.end_lineno or node.lineno)
        if all(isinstance(t, ast.Name) for t in node.targets)
        for name, _ in bindings(node)
    }
    if not names or any(isinstance(n, (ast.Global, ast.Nonlocal, ast.Yield)) for n in walk(function)):
        return False
    return not any(_gives_away(node, names) for node in walk(function))


def _gives_away(node: ast.AST, names: set[str]) -> bool:
    """Whether a statement gives one of the names back, keeps it elsewhere, or hands it to a call."""
    if isinstance(node, ast.Return):
        given: list[ast.expr] = [node.value] if node.value is not None else []
    elif isinstance(node, ast.Assign):
        given = [node.value] if any(not isinstance(t, ast.Name) for t in node.targets) else []
    elif isinstance(node, ast.Call):
        given = [*node.args, *(k.value for k in node.keywords)]
    else:
        return False
    kept = [n for value in given for n in walk(value)]
    called = {id(n.value) for n in kept if isinstance(n, ast.Attribute)}  # opt.param_groups
    return any(isinstance(n, ast.Name) and n.id in names and id(n) not in called for n in kept)
