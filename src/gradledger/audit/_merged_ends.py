"""A time limit that masks the next value as the end of an episode does, read from the text of the function that makes
the targets: `alive = 1 - torch.maximum(term, trunc)`, `reward + gamma * alive[t] * next_value[t]`."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from gradledger.audit._code import factors_of, last_name, parsed, walk, words
from gradledger.audit._iterators import own_nodes
from gradledger.audit._loops import enclosing_function
from gradledger.audit._source import source_lines
from gradledger.audit._terminals import FLAG, negated
from gradledger.audit._time_limits import either, limits_as_ends

_VALUES = frozenset({"v", "val", "vals", "value", "values", "next", "nxt", "vnext", "boot", "bootstrap", "q", "critic"})

_HANDLED = re.compile(r"TimeLimit\.truncated|final_(obs|info|value)|terminal_obs|last_(obs|state|value)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Merged:
    """`flag`: the name under which end and time limit (`cut`) are one, made on `line` ("" for one without a name);
    `used`: where it masks a value named `value`."""

    line: int
    flag: str
    cut: str
    used: int
    value: str


def merged_mask(file: str, line: int) -> Merged | None:
    """In the function around a line (or in one of the file that it may have called): a mask made of both, by which a
    value is multiplied, where the time limit is used for nothing else."""
    tree = parsed(file)
    if tree is None:
        return None
    around = enclosing_function(file, line)
    scopes = [around] if around is not None else []
    scopes += [n for n in walk(tree) if isinstance(n, ast.FunctionDef) and n is not around]
    for scope in scopes:
        nodes = list(own_nodes(scope))
        joins = [(n, names) for n in nodes if (names := either(n)) is not None]
        inside = {id(part) for join, _ in joins for part in walk(join)}
        for join, (_, cut) in joins:
            if any(_read(n) == cut and id(n) not in inside for n in nodes):
                continue
            made = next((n for n in nodes if isinstance(n, ast.Assign) and any(p is join for p in walk(n.value))), None)
            flag = last_name(made.targets[0]) if made is not None else ""
            masked = _masked(nodes, flag) if flag else None
            if made is not None and masked is not None:
                return Merged(made.lineno, flag, cut, *masked)
    return None


def kept_mask(file: str) -> Merged | None:
    """A flag that the memory keeps as end or time limit in one, and by which a function masks the value of what comes
    next: of the step's own next observation, not of the step after it in the rollout."""
    tree = parsed(file)
    limits = [limit for limit in limits_as_ends(file) if not limit.alone] if tree is not None else []
    if tree is None or not limits or any(_HANDLED.search(line) for line in source_lines(file)):
        return None
    for scope in walk(tree):
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes = list(own_nodes(scope))
            for node in nodes:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_of_end(node.value):
                    masked = _masked([n for n in nodes if not _is_later(n)], node.targets[0].id)
                    if masked is not None:
                        return Merged(limits[0].line, limits[0].name, "", *masked)
    return None


def _is_of_end(value: ast.expr) -> bool:
    """`1.0 - torch.tensor(done)`, `~ended`: what is left of a flag."""
    negations = [n for n in walk(value) if negated(n) == "flag"]
    names = [last_name(n) for node in negations for n in walk(node) if isinstance(n, (ast.Name, ast.Attribute))]
    return any(FLAG.match(name) for name in names)


def _is_later(node: ast.AST) -> bool:
    """`gamma * live[t] * values[t + 1]`"""
    return isinstance(node, ast.BinOp) and any(
        isinstance(n, ast.Subscript) and isinstance(n.slice, ast.BinOp) and isinstance(n.slice.op, ast.Add)
        for n in walk(node)
    )


def _read(node: ast.AST) -> str:
    """The name that a node reads; "" for any other."""
    reads = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Load)
    return last_name(node) if isinstance(node, ast.expr) and reads else ""


def _masked(nodes: list[ast.AST], flag: str) -> tuple[int, str] | None:
    """Line and name of a value that is multiplied by the flag (or by what is left of one)."""
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            factors = factors_of(node)
            if flag not in {_read(part) for factor in factors for part in walk(factor)}:
                continue
            for factor in factors:
                name = _named(factor)
                if name != flag and set(words(name)) & _VALUES:
                    return node.lineno, name
    return None


def _named(node: ast.expr) -> str:
    """`m["vnext"][t]`, `values[t + 1]` -> the name of what is indexed."""
    while isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
        node = node.value
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        return _named(node.value)
    return last_name(node)
