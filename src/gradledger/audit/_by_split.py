"""Rows that are chosen by the name of a part, read from the text: `data[start:end]` where `start, end = borders[flag]`
and `borders` has an entry for training and one for what is held out; or under `if flag == "train"`."""

from __future__ import annotations

import ast

from gradledger.audit._code import last_name, walk
from gradledger.audit._evaluation import words

TRAIN = frozenset({"train", "training", "tr", "trn"})
HELD = frozenset({"val", "va", "valid", "validation", "test", "dev", "held", "heldout", "holdout", "hold", "eval"})


def names_by_split(tree: ast.AST, nodes: list[ast.AST]) -> set[str]:
    """Names among `nodes` (of one scope) that hold what a table with entries for several parts gives for one."""
    tables = {
        last_name(target)
        for node in walk(tree)
        if isinstance(node, ast.Assign) and _has_parts(node.value)
        for target in node.targets
    } - {""}
    found: set[str] = set()
    bound = [(t, n.value) for n in nodes if isinstance(n, ast.Assign) for t in n.targets]
    grown = True
    while grown:
        grown = False
        for target, value in bound:
            new = {last_name(t) for t in (target.elts if isinstance(target, ast.Tuple) else [target])} - found - {""}
            if new and _looked_up(value, tables, found):
                found |= new
                grown = True
    return found


def _has_parts(value: ast.expr) -> bool:
    """`{"train": ..., "val": ...}`, `dict(train=..., test=...)`"""
    said: set[str] = set()
    if isinstance(value, ast.Dict):
        keys = [k.value for k in value.keys if isinstance(k, ast.Constant)]
        said = {word for key in keys if isinstance(key, str) for word in words(key)}
    elif isinstance(value, ast.Call) and last_name(value.func) == "dict":
        said = {w for k in value.keywords if k.arg for w in words(k.arg)}
    return bool(said & TRAIN) and bool(said & HELD)


def _looked_up(value: ast.expr, tables: set[str], found: set[str]) -> bool:
    """`borders[flag]`, `starts[part]` where `part` was looked up."""
    for node in walk(value):
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Constant, ast.Slice)):
            if last_name(node.value) in tables or last_name(node.slice) in found:
                return True
    return False


def lines_under_names(nodes: list[ast.AST]) -> list[tuple[int, int]]:
    """First and last lines of the branches that are taken for a part by its name: `if flag == "train":`"""
    found: list[tuple[int, int]] = []
    for node in nodes:
        if isinstance(node, ast.If) and _asks_for_part(node.test) and node.orelse:
            found.append((node.lineno, node.end_lineno or node.lineno))
    return found


def _asks_for_part(test: ast.expr) -> bool:
    compared = [n for n in walk(test) if isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq)]
    given = [c.value for n in compared for c in n.comparators if isinstance(c, ast.Constant)]
    return any(isinstance(v, str) and words(v) & (TRAIN | HELD) for v in given)
