"""Which lines give batches their order: the `__iter__` of a data set or sampler, or the loop that cuts a table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import Loop, calls_at, loops_around, meanings
from gradledger.core.site import Site

_MIXES = frozenset({"permutation", "randperm", "permuted", "sample"})  # give a new order, and leave the old one


def walks_in(function: Site) -> Iterator[Site]:
    """The first line of an `__iter__`, those of its loops, and of what they walk."""
    yield function
    tree = parsed(function.file)
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == function.function and _begins(node, function.line):
            for loop in (n for n in walk(node) if isinstance(n, ast.For)):
                yield Site(function.file, loop.lineno, function.function)
                names = {n.id for n in walk(loop.iter) if isinstance(n, ast.Name)}
                for made in (n for n in walk(node) if isinstance(n, ast.Assign)):
                    if names & {n.id for t in made.targets for n in walk(t) if isinstance(n, ast.Name)}:
                        yield Site(function.file, made.lineno, function.function)


def _begins(node: ast.FunctionDef, line: int) -> bool:
    return line in (node.lineno, *(d.lineno for d in node.decorator_list))


def cut(site: Site) -> tuple[Site, tuple[Site, ...]]:
    """The line that cuts a piece off for a call, in a loop around it; the loops, and the lines in them that make what
    the call is given.  Pieces of other arrays than torch's are met where they are used: then the line before it that
    slices is meant, or the one in the function that yields them."""
    names = {n.id for call in calls_at(*site.key()) for n in walk(call) if isinstance(n, ast.Name)}
    found: list[Site] = []
    slicing: list[Site] = []
    for loop in loops_around(site)[:2]:
        found.append(Site(loop.file, loop.line, ""))
        made = [node for name in names for node in meanings(loop.file, name)]
        inside = [node for node in made if loop.line < node.lineno < site.line and loop.file == site.file]
        found += [Site(loop.file, line, "") for line in sorted({node.lineno for node in inside})]
        slicing += [replace(site, line=n.lineno) for n in inside if _slices(n)]
        cuts, others = _yielded(loop)
        slicing += [] if slicing else cuts
        found += [*cuts, *others]
    return max(slicing, key=lambda s: s.line) if slicing else site, tuple(found)


def _slices(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Slice) for part in walk(node))


def _yielded(loop: Loop) -> tuple[list[Site], list[Site]]:
    """Of the function or the `__iter__` that a loop walks and that yields batches: the lines that slice; and calls
    beside it that give a new order, which nobody keeps."""
    tree = parsed(loop.file)
    if tree is None or loop.over is None:
        return [], []
    names = {last_name(n) for n in walk(loop.over) if isinstance(n, (ast.Name, ast.Attribute))}
    kinds = {last_name(v.func) for name in names for v in meanings(loop.file, name) if isinstance(v, ast.Call)}
    cuts: list[Site] = []
    others: list[Site] = []
    for owner in walk(tree):
        if not isinstance(owner, (ast.ClassDef, ast.Module)):
            continue
        for function in (n for n in owner.body if isinstance(n, ast.FunctionDef)):
            own = isinstance(owner, ast.ClassDef) and owner.name in kinds | names and function.name == "__iter__"
            if not (own or function.name in names) or not any(isinstance(n, ast.Yield) for n in walk(function)):
                continue
            lines = [n for n in walk(function) if isinstance(n, (ast.Assign, ast.Expr)) and _slices(n)]
            cuts += [Site(loop.file, n.lineno, function.name) for n in lines]
            scope: ast.AST = owner if isinstance(owner, ast.ClassDef) else function
            others += [Site(loop.file, n.lineno, "") for n in walk(scope) if _is_dropped(n)]
    return cuts, others


def _is_dropped(node: ast.AST) -> TypeGuard[ast.Expr]:
    """`rng.permutation(rows)` as a whole line: the new order is thrown away."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and last_name(node.value.func) in _MIXES
