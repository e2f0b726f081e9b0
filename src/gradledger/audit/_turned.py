"""Objects that a call is given after one of their own methods has changed them: `Rows(b, transform.eval())`, beside
`Rows(a, transform)`.  The method gives the object back, so that it looks like another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed, walk

CHANGES = frozenset(
    {"append", "insert", "remove", "pop", "clear", "extend", "update", "add", "discard", "popitem", "setdefault"}
)
HELD_OUT = re.compile(r"(^|_)(val|valid|validation|test|testing|eval|evaluation|dev|held|holdout)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Turned:
    """`text`: the expression; `name`: the object; `lines`: of the call, then of others that are given the object."""

    file: str
    text: str
    name: str
    lines: tuple[int, ...]


def turned_in_passing(file: str, kind: str, setting: str) -> Iterator[Turned]:
    """Arguments `x.method()`, where `method` of the class `kind` changes `setting` and returns itself, and `x` as it is
    is an argument of another call; `val_x = x.method()` where both names are arguments, and one of them says that it
    is for what is held out."""
    methods = _methods_that_turn(file, kind, setting)
    tree = parsed(file) if methods else None
    if tree is None:
        return
    plain: dict[str, list[int]] = {}
    turned: list[tuple[int, str, ast.expr]] = []
    renamed: list[tuple[int, str, str, ast.expr]] = []
    for node in walk(tree):
        if isinstance(node, ast.Assign) and _turns(node.value, methods) and len(node.targets) == 1:
            name, new = last_name(node.value.func.value), last_name(node.targets[0])  # type: ignore[attr-defined]
            renamed.append((node.lineno, name, new, node.value))
        if not isinstance(node, ast.Call):
            continue
        for value in (*node.args, *(k.value for k in node.keywords)):
            if isinstance(value, ast.Name):
                plain.setdefault(value.id, []).append(node.lineno)
            elif _turns(value, methods):
                turned.append((node.lineno, last_name(value.func.value), value))  # type: ignore[attr-defined]
    for line, name, value in turned:
        if plain.get(name):
            yield Turned(file, ast.unparse(value), name, (line, *plain[name]))
    for line, name, new, value in renamed:
        if plain.get(name) and plain.get(new) and bool(HELD_OUT.search(name)) != bool(HELD_OUT.search(new)):
            yield Turned(file, ast.unparse(value), name, (line, *plain[name], *plain[new]))


def _turns(value: ast.expr, methods: set[str]) -> bool:
    """`x.method(...)`"""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in methods
        and isinstance(value.func.value, (ast.Name, ast.Attribute))
    )


def _methods_that_turn(file: str, kind: str, setting: str) -> set[str]:
    tree = parsed(file)
    found = set()
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == kind:
            for method in (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name != "__init__"):
                inside = list(walk(method))
                given = {last_name(n.value) for n in inside if isinstance(n, ast.Return) and n.value is not None}
                if "self" in given and any(_changed(n) == setting for n in inside):
                    found.add(method.name)
    return found


def _changed(node: ast.AST) -> str:
    """The attribute that `x.name = ...`, `x.name[...] = ...`, `del x.name[...]` or `x.name.pop(...)` changes."""
    inner: ast.AST = node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        inner = node.func.value
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        inner = node.value
    elif not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
        return ""
    return inner.attr if isinstance(inner, ast.Attribute) else ""
