"""Calls that a function only promises between `eval()` and `train()`: `map(net, data)`, or a generator expression.

They run when somebody walks the result, and by then the mode is the other one.
"""

from __future__ import annotations

import ast

from gradledger.audit._code import parsed, walk
from gradledger.core.site import Frame, Site

_LAZY = frozenset({"map", "filter"})


def promised(asked: Site, back: Site, call: Site) -> int:
    """The line of an expression between the lines of the two mode switches (of one function) that calls nothing yet,
    when the line `call`, or one that led to it, walks what the function gives back; 0 when there is none."""
    tree = parsed(asked.file)
    if tree is None or asked.function != back.function or asked.file != back.file or asked.line >= back.line:
        return 0
    # (a generator's own line is the innermost one)
    places = (Frame(call.file, call.line, call.function), *call.callers)
    lines = {place.line for place in places if place.file == asked.file}
    if not any(_names(walked, asked.function) for line in lines for walked in _walking(tree, line)):
        return 0
    eager: set[int] = set()
    for node in walk(tree):
        if isinstance(node, ast.Call) and not _is_lazy(node):  # `list(map(...))` runs at once
            eager.update(id(argument) for argument in node.args)
    put_off = [
        node.lineno
        for node in walk(tree)
        if isinstance(node, ast.expr) and _is_lazy(node) and id(node) not in eager
        if asked.line < node.lineno < back.line
    ]
    return min(put_off, default=0)


def _is_lazy(node: ast.expr) -> bool:
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LAZY
    return named or isinstance(node, ast.GeneratorExp)


def _walking(tree: ast.Module, line: int) -> list[ast.AST]:
    """What loops, comprehensions and calls on a line walk over."""
    found: list[ast.AST] = []
    for node in walk(tree):
        if isinstance(node, ast.For) and node.lineno == line:
            found.append(node.iter)
        elif isinstance(node, (ast.Assign, ast.Expr, ast.Return)) and node.lineno <= line <= (node.end_lineno or 0):
            found.append(node)
    return found


def _names(node: ast.AST, function: str) -> bool:
    """Whether something calls the function."""
    return any(
        isinstance(n, ast.Call) and (getattr(n.func, "id", "") or getattr(n.func, "attr", "")) == function
        for n in walk(node)
    )
