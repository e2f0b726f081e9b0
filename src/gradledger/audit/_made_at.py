"""Where the names that a line uses were made: the lines that assign them, and those of the program's own functions that
they come from."""

from __future__ import annotations

import ast

from gradledger.audit._code import last_name, parsed
from gradledger.audit._loops import enclosing_function
from gradledger.core.site import Site

_MOST = 10
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def made_at(site: Site) -> tuple[Site, ...]:
    """Lines that give the names on the line of `site` their values, in the function around it; of values that come
    from functions of the same file, what these return or yield, and their first lines."""
    tree = parsed(site.file) if site.file else None
    if tree is None:
        return ()
    own = enclosing_function(site.file, site.line)
    scope: ast.AST = own if own is not None else tree
    here = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.lineno == site.line]
    names = {n.id for n in here if isinstance(n.ctx, ast.Load)}
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS)}
    lines: dict[int, None] = {}
    for node in ast.walk(scope):
        if isinstance(node, (ast.Assign, ast.For)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = node.value if isinstance(node, ast.Assign) else node.iter
            made = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            if not made & names:
                continue
            lines[node.lineno] = None
            for call in (n for n in ast.walk(value) if isinstance(n, ast.Call)):
                function = functions.get(last_name(call.func))
                if function is not None and function is not own:
                    lines[function.lineno] = None
                    lines.update(dict.fromkeys(_gives(function)))
    return tuple(Site(site.file, line, site.function) for line in list(lines)[:_MOST])


def _gives(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    """Lines of what a function returns or yields, and of the assignments to names in it."""
    given = [n for n in ast.walk(function) if isinstance(n, (ast.Return, ast.Yield)) and n.value is not None]
    names = {n.id for g in given for n in ast.walk(g) if isinstance(n, ast.Name)}
    made = [
        n.lineno
        for n in ast.walk(function)
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in n.targets)
    ]
    return [*(g.lineno for g in given), *made]
