"""Where the names that a line uses were made: the lines that assign them, and those of the program's own functions that
they come from."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import enclosing_function
from gradledger.core.site import Site

_MOST = 10
_HOPS = 2
_DATA = frozenset({"__getitem__", "__iter__"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def made_at(site: Site) -> tuple[Site, ...]:
    """Lines that give the names on the line of `site` their values, in the function around it; of values that come
    from functions of the same file, what these return or yield, and their first lines, and what its data sets give;
    then the same of the names that those lines use."""
    lines: dict[int, None] = {}
    for line, functions in _steps(site, data=True):
        lines[line] = None
        for function in functions:
            if function.name not in _DATA:
                lines[function.lineno] = None
            lines.update(dict.fromkeys(_gives(function)))
    return tuple(Site(site.file, line, site.function) for line in list(lines)[:_MOST])


def makers(site: Site) -> list[_Function]:
    """The functions of the same file that `made_at` comes by."""
    return list(dict.fromkeys(function for _, functions in _steps(site) for function in functions))


def _steps(site: Site, data: bool = False) -> Iterator[tuple[int, list[_Function]]]:
    """Lines that bind names which the line of `site` uses, or which such a line does, and the functions called there;
    nearest first.  `data`: and of classes that are made there, the methods that give items."""
    tree = parsed(site.file) if site.file else None
    if tree is None:
        return
    own = enclosing_function(site.file, site.line)
    scope = [n for n in walk(own if own is not None else tree) if hasattr(n, "lineno")]
    scope = [n for n in scope if enclosing_function(site.file, n.lineno) is own]  # and not the functions inside
    functions = {n.name: n for n in walk(tree) if isinstance(n, _FUNCTIONS)}
    classes = {n.name: n for n in walk(tree) if isinstance(n, ast.ClassDef)} if data else {}
    binds = [n for n in scope if isinstance(n, (ast.Assign, ast.For))]
    names = {n.id for n in scope if isinstance(n, ast.Name) and n.lineno == site.line and isinstance(n.ctx, ast.Load)}
    known: set[str] = set()
    for _ in range(_HOPS):
        known |= names
        more: set[str] = set()
        for node in binds:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = node.value if isinstance(node, ast.Assign) else node.iter
            if not {n.id for t in targets for n in walk(t) if isinstance(n, ast.Name)} & names:
                continue
            called = [last_name(n.func) for n in walk(value) if isinstance(n, ast.Call)]
            found = [functions[name] for name in called if name in functions and functions[name] is not own]
            given = [part for name in called if name in classes for part in classes[name].body]
            yield node.lineno, found + [p for p in given if isinstance(p, _FUNCTIONS) and p.name in _DATA]
            more |= {n.id for n in walk(value) if isinstance(n, ast.Name)}
        names = more - known


def went_on_with(site: Site) -> bool:
    """Whether the expression on a line asks for a gradient and then goes on with the result: `torch.zeros(3,
    requires_grad=True).to(device)`, `w.requires_grad_() * 0.1`."""
    tree = parsed(site.file) if site.file else None
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return)) and node.value is not None:
            if node.lineno <= site.line <= (node.end_lineno or node.lineno):
                inner, depth = node.value, 0
                while not _asks(inner):
                    depth += 1
                    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                        inner = inner.func.value
                    elif isinstance(inner, ast.BinOp):
                        inner = inner.left if isinstance(inner.left, ast.Call) else inner.right
                    else:
                        return False
                return depth > 0
    return False


def _asks(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and (
        last_name(node.func) in ("Parameter", "requires_grad_")
        or any(k.arg == "requires_grad" and getattr(k.value, "value", False) is True for k in node.keywords)
    )


def _gives(function: _Function) -> list[int]:
    """Lines of what a function returns or yields, and of the assignments to names in it."""
    given = [n for n in walk(function) if isinstance(n, (ast.Return, ast.Yield, ast.YieldFrom)) and n.value]
    names = {n.id for g in given for n in walk(g) if isinstance(n, ast.Name)}
    made = [
        n.lineno
        for n in walk(function)
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in n.targets)
    ]
    return [*(g.lineno for g in given), *made]
