"""Methods that switch a setting of an object which data sets hold, called by way of the data set that is held out:
`val.augment.disable()`, `rows(held).without_augmentation()`.  Read from the text."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._iterators import own_nodes
from gradledger.audit._turned import CHANGES, HELD_OUT

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Switched:
    """`text`: the call; `line`: its line; `method`: the line that sets the setting."""

    file: str
    text: str
    line: int
    method: int


def switched_by_call(file: str, kind: str, attribute: str, setting: str) -> Switched | None:
    """The one call of a file, outside of loops, that switches `setting` of an object of class `kind`, kept as
    `attribute` by data sets, by way of one data set."""
    tree = parsed(file)
    methods = _methods(tree, kind, attribute, setting) if tree is not None else {}
    if tree is None or not methods:
        return None
    looped = {id(n) for loop in walk(tree) if isinstance(loop, (ast.For, ast.While)) for n in walk(loop)}
    inside = {id(n) for f, _, _ in methods.values() for n in walk(f)}
    calls = [
        (node, node.func)
        for node in walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods
        if id(node) not in inside
    ]
    if len(calls) != 1 or id(calls[0][0]) in looped:
        return None
    call, function = calls[0]
    _, line, own = methods[function.attr]
    holder = function.value
    if own:  # a method of the object itself
        if not isinstance(holder, ast.Attribute) or holder.attr != attribute:
            return None
        holder = holder.value
    if _is_held_out(tree, call, holder):
        return Switched(file, ast.unparse(call), call.lineno, line)
    return None


def _methods(tree: ast.Module, kind: str, attribute: str, setting: str) -> dict[str, tuple[_Function, int, bool]]:
    """Methods that set `self.setting` in the class, or `self.attribute.setting` in another one: with the line that
    does, and whether it is one of the class itself."""
    found: dict[str, tuple[_Function, int, bool]] = {}
    for node in walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for method in (n for n in node.body if isinstance(n, _Function) and n.name not in ("__init__", "__call__")):
            for part in own_nodes(method):
                target = _set(part)
                if target is None or target.attr != setting:
                    continue
                if node.name == kind and last_name(target.value) == "self":
                    found[method.name] = method, part.lineno, True  # type: ignore[attr-defined]
                elif isinstance(target.value, ast.Attribute) and target.value.attr == attribute:
                    if last_name(target.value.value) == "self":
                        found[method.name] = method, part.lineno, False  # type: ignore[attr-defined]
    return found


def _set(node: ast.AST) -> ast.Attribute | None:
    """`x.name` of `x.name = value` or `x.name.clear()`."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        return node.targets[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        return node.func.value if isinstance(node.func.value, ast.Attribute) else None
    return None


def _is_held_out(tree: ast.Module, call: ast.Call, holder: ast.expr) -> bool:
    """Whether a call goes by way of a data set that is named for rows held out: where it is kept, or what the result is
    called; or by way of one of several parts that are returned together."""
    names = [last_name(n) for n in walk(holder) if isinstance(n, (ast.Name, ast.Attribute))]
    if isinstance(holder, (ast.Name, ast.Attribute)):
        return any(HELD_OUT.search(name) for name in names)
    for node in walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.value is call:
            return bool(HELD_OUT.search(node.targets[0].id))
        if isinstance(node, (ast.Return, ast.Assign)) and isinstance(node.value, ast.Tuple):
            if any(part is call for part in node.value.elts):
                return len(node.value.elts) > 1
    return any(HELD_OUT.search(name) for name in names)
