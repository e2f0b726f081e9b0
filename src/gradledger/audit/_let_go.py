"""Flags that a function writes where it is told to and then binds to a new array, read from the text: what it was given
keeps the first ones."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradledger.audit._code import arguments, bindings, last_name, names_in, parsed, walk, words
from gradledger.audit._iterators import own_nodes
from gradledger.audit._rollouts import given_for
from gradledger.audit._terminals import FLAG

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class LetGo:
    """`flag`, written in place on `written` and bound anew on `line`; `called`: the line that gives an array for it and
    drops what the function returns."""

    line: int
    flag: str
    written: int
    called: int


def let_go(file: str) -> LetGo | None:
    """Such a flag of a file: `done_n[:] = done[:rows]`, then `done_n = np.maximum(done_n, done[n : n + rows])`."""
    tree = parsed(file)
    for function in walk(tree) if tree is not None else ():
        if not isinstance(function, _Function):
            continue
        nodes = [*own_nodes(function)]
        for argument in arguments(function):
            names = _called_so(nodes, argument.arg)
            last = max((n.lineno for n in nodes for name in names if _writes(n, name)), default=0)  # type: ignore[attr-defined]
            for name in names:
                written = [n.lineno for n in nodes if _writes(n, name)]  # type: ignore[attr-defined]
                anew = [
                    n.lineno
                    for n in nodes
                    if isinstance(n, ast.Assign) and any(b == name and name in names_in(v) for b, v in bindings(n))
                ]
                if not _flag(name) or not written or not anew or last > min(anew):
                    continue
                assert tree is not None
                called = _dropped(tree, function, argument.arg)
                if called:
                    return LetGo(anew[0], name, written[0], called)
    return None


def _flag(name: str) -> bool:
    return any(FLAG.match(word) for word in words(name) if len(word) > 1)


def _dropped(tree: ast.Module, function: _Function, argument: str) -> int:
    """The line of a call that gives the argument and drops the result, 0 for none."""
    given = {id(v) for v in given_for(tree, function, argument)}
    for node in walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if last_name(node.value.func) == function.name and any(id(n) in given for n in walk(node.value)):
                return node.lineno
    return 0


def _called_so(nodes: list[ast.AST], argument: str) -> list[str]:
    """The argument, and names for the same: `flags = dest if dest is not None else np.zeros(...)`."""
    found = [argument]
    for node in nodes:
        for name, value in bindings(node) if isinstance(node, ast.Assign) else ():
            ways = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            if any(isinstance(way, ast.Name) and way.id == argument for way in ways):
                found.append(name)
    return list(dict.fromkeys(found))


def _writes(node: ast.AST, name: str) -> bool:
    """`name[...] = value`, `name.copy_(value)`"""
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Subscript) and last_name(t.value) == name for t in node.targets)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "copy_":
        return isinstance(node.func.value, ast.Name) and node.func.value.id == name
    return False
