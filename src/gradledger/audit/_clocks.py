"""Whether the program's own `step` gives a time limit as its fourth value, read from the text."""

from __future__ import annotations

import ast

from gradledger.audit._code import last_name, walk

_DEEP = 4


def gives_clock(tree: ast.Module) -> bool | None:
    """Whether the fourth value of each `step` that the file defines comes from comparing a counter of steps with a
    limit, and that counter is used for nothing else: one that the agent sees makes the limit a part of the task.

    None when the file defines no `step` that says what its values are.
    """
    found: list[bool] = []
    for function in walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and function.name == "step":
            for node in walk(function):
                value = node.value if isinstance(node, ast.Return) else None
                if isinstance(value, ast.Tuple) and len(value.elts) in (4, 5):
                    found.append(_counts(tree, function, value.elts[3], _DEEP))
    return all(found) if found else None


def _counts(tree: ast.Module, function: ast.AST, value: ast.expr, deep: int) -> bool:
    for node in walk(value):
        if isinstance(node, ast.Compare) and any(_is_counter(tree, side) for side in (node.left, *node.comparators)):
            return True
    names = {n.id for n in walk(value) if isinstance(n, ast.Name)}
    made = [n for n in walk(function) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    for node in made if deep else ():
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id in names:
            if _counts(tree, function, node.value, deep - 1):
                return True
        elif isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            for target, part in zip(node.targets[0].elts, node.value.elts, strict=False):
                if last_name(target) in names and _counts(tree, function, part, deep - 1):
                    return True
    return False


def _is_counter(tree: ast.Module, side: ast.expr) -> bool:
    """`self.age`, where `self.age += 1` stands in the file, and is read in comparisons only."""
    if not isinstance(side, ast.Attribute):
        return False
    uses: set[int] = set()
    counted = False
    for node in walk(tree):
        if isinstance(node, ast.AugAssign) and last_name(node.target) == side.attr:
            counted = counted or (isinstance(node.op, ast.Add) and getattr(node.value, "value", None) == 1)
        elif isinstance(node, (ast.Compare, ast.JoinedStr)):
            uses |= {id(n) for n in walk(node)}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):  # self.age[over] = 0
            uses.add(id(node.value))
    reads = (n for n in walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    return counted and all(id(n) in uses for n in reads if n.attr == side.attr)
