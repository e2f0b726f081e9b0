"""Loops back through time that mask one of two at the end of an episode, read from the text of rollouts that run on
through ends: the next value, and not the sum that they carry (the flag of the last step is a variable of its own); or
that sum, and not the value of step t + 1."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._back_in_time import ends, next_of
from gradledger.audit._code import last_name, walk
from gradledger.audit._rollouts import loops_near
from gradledger.audit._terminals import nodes_of

_SHORT = frozenset({"term", "terms", "end", "ends", "over"})


@dataclass(frozen=True, slots=True)
class HalfMasked:
    """`text`: what stands on `line` without a mask, the sum that is carried or (`value`) the next value; `flag`: what
    masks the other, read on `flag_line`."""

    line: int
    text: str
    flag: str
    flag_line: int
    value: bool = False


def half_masked(file: str, line: int) -> HalfMasked | None:
    """Such a loop in the function around `line`, or in one of the same file that this function calls by name."""
    loops = loops_near(file, line)
    found = (_unmasked(loop, step) or _value_unmasked(loop, step) for _tree, _scope, loop, step in loops)
    return next((one for one in found if one is not None), None)


def _unmasked(loop: ast.For, step: str) -> HalfMasked | None:
    nodes = nodes_of(loop.body)
    read = [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)) and ends(n)]
    later = [n for n in read if isinstance(n, ast.Subscript) and next_of(n.slice, {step})]
    inside = {id(n.value) for n in read if isinstance(n, ast.Subscript)}
    alone = [n for n in read if not isinstance(n, ast.Subscript) and id(n) not in inside]
    if not later or not alone:
        return None  # one episode, perhaps, whose flag is the last one's
    assigned = [n for n in nodes if isinstance(n, ast.Assign)]
    masks = {last_name(t) for n in assigned if _reads_flag(n.value) for t in n.targets}
    if any(isinstance(n, (ast.If, ast.IfExp)) and (_reads_flag(n.test) or _names(n.test) & masks) for n in nodes):
        return None  # the sum may be begun anew there
    inner = {name for n in assigned for target in n.targets for name in _names(target)}
    for one in assigned:
        for carried, factors in _products(one.value, ()):
            if _carries(carried, one, step) and factors and all(_plain(f, inner) for f in factors):
                flag = later[0]
                return HalfMasked(carried.lineno, ast.unparse(carried), last_name(flag.value), flag.lineno)
    return None


def _value_unmasked(loop: ast.For, step: str) -> HalfMasked | None:
    """`delta = r[t] + gamma * v[t + 1] - v[t]`, `run = delta + gamma * lam * (1 - done[t]) * run`: the values are those
    of one rollout, so that of t + 1 is one of the next episode when t was the last of its own."""
    assigned = [n for n in nodes_of(loop.body) if isinstance(n, ast.Assign)]
    masks = {last_name(t): n for n in assigned if any(_flag(x) for x in walk(n.value)) for t in n.targets}
    carried: tuple[str, int] | None = None
    for one in assigned:
        for part, factors in _products(one.value, ()):
            if _carries(part, one, step):
                carried = next((flag for f in factors if (flag := _flag_in(f, masks))), carried)
    if carried is None:
        return None
    for one in assigned:
        parts = list(_products(one.value, ()))
        here = {ast.unparse(p.value) for p, _ in parts if isinstance(p, ast.Subscript) and _is_step(p.slice, step)}
        for part, factors in parts:
            if isinstance(part, ast.Subscript) and next_of(part.slice, {step}) and ast.unparse(part.value) in here:
                if factors and not any(_flag_in(f, masks) for f in factors):
                    return HalfMasked(part.lineno, ast.unparse(part), *carried, value=True)
    return None


def _is_step(index: ast.expr, step: str) -> bool:
    return isinstance(index, ast.Name) and index.id == step


def _flag_in(factor: ast.expr, masks: dict[str, ast.Assign]) -> tuple[str, int] | None:
    """The flag of the end that a factor reads, by way of a mask that the loop makes too, and the line."""
    for node in walk(factor):
        if (name := _flag(node)) and isinstance(node, ast.expr):
            return name, node.lineno
        if isinstance(node, ast.Name) and node.id in masks:
            return node.id, masks[node.id].lineno
    return None


def _flag(node: ast.AST) -> str:
    """The name of a flag of the end, "" for anything else; of a step, it may be called so in short."""
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return ""
    name = last_name(node.value if isinstance(node, ast.Subscript) else node)
    return name if ends(node) or (isinstance(node, ast.Subscript) and name in _SHORT) else ""


def _products(node: ast.expr, factors: tuple[ast.expr, ...]) -> Iterator[tuple[ast.expr, tuple[ast.expr, ...]]]:
    """Every summand of an expression of sums and products, with all that multiplies it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _products(node.left, factors)
        yield from _products(node.right, factors)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _products(node.left, (*factors, node.right))
        yield from _products(node.right, (*factors, node.left))
    else:
        yield node, factors


def _carries(node: ast.expr, statement: ast.Assign, step: str) -> bool:
    """`returns[t + 1]` in `returns[t] = ...`, or `run` in `run = ...`"""
    for target in statement.targets:
        if isinstance(node, ast.Name) and isinstance(target, ast.Name) and node.id == target.id:
            return True
        if isinstance(node, ast.Subscript) and isinstance(target, ast.Subscript) and next_of(node.slice, {step}):
            if last_name(node.value) == last_name(target.value) != "":
                return True
    return False


def _plain(factor: ast.expr, inner: set[str]) -> bool:
    """A number of the whole loop: nothing looked up for a step, nothing made in the loop, no flag."""
    looked = any(isinstance(n, (ast.Subscript, ast.Call)) for n in walk(factor))
    return not looked and not _names(factor) & inner and not _reads_flag(factor)


def _reads_flag(node: ast.AST) -> bool:
    return any(isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)) and ends(n) for n in walk(node))


def _names(node: ast.AST) -> set[str]:
    return {last_name(n) for n in walk(node) if isinstance(n, (ast.Name, ast.Attribute))}
