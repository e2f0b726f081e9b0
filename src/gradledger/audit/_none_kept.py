"""Masks that ask which successors are None, in programs that never keep None, read from the text."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._terminals import STORES, scope_of

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class AllKept:
    """`[s is not None for s in successors]` on line `line`; the memory is filled on `kept`, and `flag` of the end, from
    the step on line `step`, does not come to it."""

    line: int
    kept: int
    flag: str
    step: int


def never_none(file: str, line: int) -> AllKept | None:
    """Such a mask in the function around `line`."""
    tree = parsed(file)
    if tree is None:
        return None
    masks = [at for n in walk(scope_of(tree, line)) if (at := _asks_each(n))]
    if not masks or _keeps_none(tree):
        return None
    for node in walk(tree):
        flag = _end_of_step(node)
        if flag is None or _constant_end(tree):
            continue
        scope = scope_of(tree, flag.lineno)
        given = {flag.id}
        for inner in sorted((n for n in walk(scope) if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
            calls = {last_name(n.func) for n in walk(inner.value) if isinstance(n, ast.Call)}
            if _names(inner.value) & given and "reset" not in calls:  # `state = env.reset() if done else after`
                given |= {n for target in inner.targets for n in _names(target)}
        stores = [n for n in walk(scope) if isinstance(n, ast.Call) and last_name(n.func) in STORES]
        rows = [n for n in stores if len(_names(n)) > 4]
        if rows and not any(_names(n) & given for n in stores):
            return AllKept(masks[0], rows[0].lineno, flag.id, flag.lineno)
    return None


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name)}


def _asks_each(node: ast.AST) -> int:
    """The line of `[s is not None for s in successors]`, `map(lambda s: s is not None, successors)`"""
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        asked, names = node.elt, {n for part in node.generators for n in _names(part.target)}
    elif isinstance(node, ast.Lambda):
        asked, names = node.body, {a.arg for a in node.args.args}
    else:
        return 0
    if not isinstance(asked, ast.Compare) or not isinstance(asked.ops[0], (ast.Is, ast.IsNot)):
        return 0
    other = asked.comparators[0]
    none = isinstance(other, ast.Constant) and other.value is None
    return asked.lineno if none and last_name(asked.left) in names else 0


def _end_of_step(node: ast.AST) -> ast.Name | None:
    """The third value of `env.step`, where four or five are taken."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or last_name(node.value.func) != "step":
        return None
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or len(target.elts) not in (4, 5):
        return None
    end = target.elts[2]
    return end if isinstance(end, ast.Name) and not end.id.startswith("_") else None


def _constant_end(tree: ast.Module) -> bool:
    """Whether a `step` of the program says of each step that it is no end."""
    for function in walk(tree):
        if isinstance(function, _Function) and function.name == "step":
            for node in walk(function):
                value = node.value if isinstance(node, ast.Return) else None
                if isinstance(value, ast.Tuple) and len(value.elts) > 2 and isinstance(value.elts[2], ast.Constant):
                    return True
    return False


def _keeps_none(tree: ast.Module) -> bool:
    """Whether None may come to a memory: it, or what may hold it, goes to a store or a function of the file."""
    may = _may_be_none(tree)
    functions = (n for n in walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)))
    own = {n.name for n in functions} | STORES
    for node in walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in own:
            given = (*node.args, *(k.value for k in node.keywords))
            if any(_is_noneish(value, may) for value in given):
                return True
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Subscript) for t in node.targets):
            if _is_noneish(node.value, may):
                return True
    return False


def _may_be_none(tree: ast.Module) -> set[str]:
    """Names of variables, arguments and functions that may hold or give None."""
    may: set[str] = set()
    grown = -1
    while grown < len(may):
        grown = len(may)
        for node in walk(tree):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                if node.value is not None and _is_noneish(node.value, may):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    may |= {last_name(n) for t in targets for n in walk(t) if isinstance(n, ast.expr)} - {""}
            elif isinstance(node, _Function):
                arguments = [*node.args.posonlyargs, *node.args.args]
                late = arguments[len(arguments) - len(node.args.defaults) :]
                pairs: list[tuple[ast.arg, ast.expr | None]] = [*zip(late, node.args.defaults, strict=True)]
                pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                may |= {a.arg for a, value in pairs if value is not None and _is_noneish(value, may)}
                returns = (n.value for n in walk(node) if isinstance(n, ast.Return) and n.value is not None)
                may |= {node.name for value in returns if _is_noneish(value, may)}
    return may


def _is_noneish(value: ast.expr, may: set[str]) -> bool:
    """Whether None, or what may be None, stands in an expression, other than to be compared with or to add an axis."""
    queue: list[ast.AST] = [value]
    for node in queue:
        if isinstance(node, ast.Compare):
            continue
        if isinstance(node, ast.Constant) and node.value is None:
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in may:
            return True
        queue += [node.value] if isinstance(node, ast.Subscript) else ast.iter_child_nodes(node)
    return False
