"""A time limit that masks the next value as the end of an episode does, read from the text of the function that makes
the targets: `alive = 1 - torch.maximum(term, trunc)`, `reward + gamma * alive[t] * next_value[t]`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradledger.audit._code import factors_of, last_name, parsed, walk, words
from gradledger.audit._iterators import own_nodes
from gradledger.audit._loops import enclosing_function
from gradledger.audit._time_limits import either

_VALUES = frozenset({"v", "val", "vals", "value", "values", "next", "nxt", "vnext", "boot", "bootstrap", "q", "critic"})


@dataclass(frozen=True, slots=True)
class Merged:
    """`flag`: the name under which end and time limit (`cut`) are one, made on `line`; `used`: where it masks a value
    named `value`."""

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
