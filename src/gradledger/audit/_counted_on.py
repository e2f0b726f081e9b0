"""Whether a program counts on from a number that a file holds: `start = checkpoint["epoch"]`, `range(start, total)`."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from gradledger.audit._code import asked_entry, last_name, parsed, walk

_NAMED = (ast.Name, ast.Attribute)


def counts_on(file: str, names: Iterable[str]) -> tuple[str, int] | None:
    """Which of these entries of a file a loop of the program begins at, and the line of that loop."""
    tree = parsed(file) if file else None
    if tree is None:
        return None
    for name in names:
        begun = {
            last_name(target)
            for node in walk(tree)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
            for whole in (node.targets if isinstance(node, ast.Assign) else [node.target])
            for target, value in _pairs(whole, node.value)
            if isinstance(target, _NAMED) and _asks(value, name)
        }
        line = next((line for node in walk(tree) if (line := _begins(node, begun))), 0)
        if line:
            return name, line
    return None


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """`a, b = c, d` as a = c and b = d."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _asks(value: ast.expr, name: str) -> bool:
    """`checkpoint["epoch"] + 1`, `state.get("epoch", 0)`"""
    return any((key := asked_entry(node)) is not None and key.value == name for node in walk(value))


def _begins(node: ast.AST, names: set[str]) -> int:
    """The line of a loop that begins at one of `names`; 0 for anything else."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        for call in walk(node.iter):
            if isinstance(call, ast.Call) and last_name(call.func) in ("range", "trange", "count") and call.args:
                first = call.args[0]
                alone = last_name(call.func) != "count" and len(call.args) == 1  # there it is the end
                if not alone and any(last_name(n) in names for n in walk(first) if isinstance(n, _NAMED)):
                    return node.lineno
    elif isinstance(node, ast.While):
        compared = [n.left for n in walk(node.test) if isinstance(n, ast.Compare)]
        if any(isinstance(side, _NAMED) and last_name(side) in names for side in compared):
            return node.lineno
    return 0
