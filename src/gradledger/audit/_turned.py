"""Objects that a call is given after one of their own methods has changed them: `Rows(b, transform.eval())`, beside
`Rows(a, transform)`.  The method gives the object back, so that it looks like another one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed


@dataclass(frozen=True, slots=True)
class Turned:
    """`text`: the expression; `name`: the object; `lines`: of the call, then of others that are given the object."""

    file: str
    text: str
    name: str
    lines: tuple[int, ...]


def turned_in_passing(file: str, kind: str, setting: str) -> Iterator[Turned]:
    """Arguments `x.method()`, where `method` of the class `kind` sets `setting` and returns itself, and `x` as it is
    is an argument of another call."""
    methods = _methods_that_turn(file, kind, setting)
    tree = parsed(file) if methods else None
    if tree is None:
        return
    plain: dict[str, list[int]] = {}
    turned: list[tuple[int, str, ast.expr]] = []
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        for value in (*call.args, *(k.value for k in call.keywords)):
            if isinstance(value, ast.Name):
                plain.setdefault(value.id, []).append(call.lineno)
            elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in methods:
                turned.append((call.lineno, last_name(value.func.value), value))
    for line, name, value in turned:
        if plain.get(name):
            yield Turned(file, ast.unparse(value), name, (line, *plain[name]))


def _methods_that_turn(file: str, kind: str, setting: str) -> set[str]:
    tree = parsed(file)
    found = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == kind:
            for method in (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name != "__init__"):
                inside = list(ast.walk(method))
                stored = {n.attr for n in inside if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
                given = {last_name(n.value) for n in inside if isinstance(n, ast.Return) and n.value is not None}
                if setting in stored and "self" in given:
                    found.add(method.name)
    return found
