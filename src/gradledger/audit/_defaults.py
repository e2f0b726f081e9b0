"""Objects that are the default of an argument: one for all instances that are made without the argument.

Read from the text: a class keeps the default as it is, the program changes it by way of one instance, and another one
was made without the argument, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._code import bindings, last_name, parsed, walk
from gradledger.audit._turned import CHANGES, HELD_OUT

_DATA = frozenset({"__len__", "__getitem__", "__getitems__", "__iter__"})
_KEPT_ON_PURPOSE = re.compile(r"cache|memo|log|history|registry", re.IGNORECASE)
_MADE = frozenset({"list", "dict", "set"})


@dataclass(frozen=True, slots=True)
class SharedDefault:
    """`text`: the change, made on `line` by way of `name`; `other`: an instance for the other side, made on `made`;
    `declared`: lines of the default and of the statement that keeps it."""

    cls: str
    attribute: str
    text: str
    line: int
    name: str
    other: str
    made: int
    declared: tuple[int, int]


def shared_defaults(file: str) -> Iterator[SharedDefault]:
    """Changes of a shared default that are made by way of a data set for training, or of a held-out one, alone."""
    tree = parsed(file)
    if tree is None:
        return
    for cls in (n for n in walk(tree) if isinstance(n, ast.ClassDef)):
        if not any(isinstance(n, ast.FunctionDef) and n.name in _DATA for n in cls.body):
            continue
        for init in (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"):
            for position, default, argument in _objects(tree, init):
                kept = _kept_as(init, argument)
                if kept is None or _KEPT_ON_PURPOSE.search(kept[0]):
                    continue
                attribute, line = kept
                made = dict(_made_without(tree, cls.name, argument, position))
                methods = CHANGES | _setters(tree, default)
                found = [(name, *change) for name in made for change in _changes(tree, name, attribute, methods)]
                sides = {bool(HELD_OUT.search(name)) for name, *_ in found}
                others = [name for name in made if bool(HELD_OUT.search(name)) not in sides]
                if len(sides) == 1 and others:
                    name, change, text = found[0]
                    declared = (default.lineno, line)
                    yield SharedDefault(cls.name, attribute, text, change, name, others[0], made[others[0]], declared)


def _objects(tree: ast.Module, init: ast.FunctionDef) -> Iterator[tuple[int | None, ast.expr, str]]:
    """(position after self, default, name) of arguments whose default is a list, dictionary or set, or made by a class
    of the file."""
    classes = {n.name for n in walk(tree) if isinstance(n, ast.ClassDef)}
    plain = [*init.args.posonlyargs, *init.args.args]
    first = len(plain) - len(init.args.defaults)
    pairs: list[tuple[int | None, ast.arg, ast.expr | None]] = [
        (first + i - 1, plain[first + i], d) for i, d in enumerate(init.args.defaults)
    ]
    pairs += [(None, a, d) for a, d in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)]
    for position, argument, default in pairs:
        made = isinstance(default, ast.Call) and last_name(default.func) in _MADE | classes
        if default is not None and (made or isinstance(default, (ast.List, ast.Dict, ast.Set))):
            yield position, default, argument.arg


def _setters(tree: ast.Module, default: ast.expr) -> set[str]:
    """Methods of the class of a default that set an attribute of their object, other than on the way of a call."""
    name = last_name(default.func) if isinstance(default, ast.Call) else ""
    methods = [
        m
        for cls in walk(tree)
        if isinstance(cls, ast.ClassDef) and cls.name == name
        for m in cls.body
        if isinstance(m, ast.FunctionDef) and not m.name.startswith("__")
    ]
    return {m.name for m in methods if any(_sets_own(n) for n in walk(m))}


def _sets_own(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(t, ast.Attribute) and last_name(t.value) == "self" for t in targets)


def _kept_as(init: ast.FunctionDef, argument: str) -> tuple[str, int] | None:
    """(attribute, line) of `self.attribute = argument`; None when the argument is bound to anything else before."""
    found = None
    for node in walk(init):
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                if isinstance(target, ast.Name) and target.id == argument:
                    return None
                own = isinstance(target, ast.Attribute) and last_name(target.value) == "self"
                if own and isinstance(value, ast.Name) and value.id == argument:
                    found = last_name(target), node.lineno
    return found


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _made_without(tree: ast.Module, cls: str, argument: str, position: int | None) -> Iterator[tuple[str, int]]:
    """(name, line) of instances that are made without the argument."""
    for node in (n for n in walk(tree) if isinstance(n, ast.Assign)):
        for name, value in bindings(node):
            if not isinstance(value, ast.Call) or last_name(value.func) != cls or not name:
                continue
            given = [_length(tree, a.value) if isinstance(a, ast.Starred) else 1 for a in value.args]
            by_position = position is not None and (None in given or sum(g or 0 for g in given) > position)
            if not by_position and all(k.arg not in (argument, None) for k in value.keywords):
                yield name, node.lineno


def _length(tree: ast.Module, value: ast.expr) -> int | None:
    """How many values a call of a function of the file gives back; None when nothing tells."""
    name = last_name(value.func) if isinstance(value, ast.Call) else ""
    for node in walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            given = [n.value for n in walk(node) if isinstance(n, ast.Return)]
            lengths = {len(v.elts) if isinstance(v, ast.Tuple) else None for v in given}
            return lengths.pop() if len(lengths) == 1 else None
    return None


def _changes(tree: ast.Module, name: str, attribute: str, methods: frozenset[str]) -> Iterator[tuple[int, str]]:
    """(line, text) of what changes `name.attribute` in place; `methods`: by these, among others."""
    for node in walk(tree):
        place: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
            place = node.func.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Subscript, ast.Attribute)):
            place = node.targets[0].value
        elif isinstance(node, ast.AugAssign):
            place = node.target
        if isinstance(place, ast.Attribute) and place.attr == attribute and last_name(place.value) == name:
            yield node.lineno, ast.unparse(node)  # type: ignore[attr-defined]
