"""Loops that run back through time, read from the text: the value of step t + 1 beside the flag of t + 1, where a
rollout keeps each flag after the step that gave it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._back_in_time import ends, next_of
from gradledger.audit._code import arguments, last_name, names_in, parsed, walk
from gradledger.audit._rollouts import given_for, is_argument, looked_up, loops_near, stored_in
from gradledger.audit._terminals import nodes_of

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Late:
    """A loop that masks the value of step t + 1 by the flag of t + 1, which is kept (on `kept`) behind its `step`."""

    line: int
    flag: str
    kept: int
    step: int


def kept_after(file: str, line: int) -> Late | None:
    """Such a loop in the function around `line`, or in one of the same file that this function calls by name."""
    for tree, scope, loop, step in loops_near(file, line):
        indexed = looked_up(loop)
        flags = [n for n in indexed if ends(n) and step in names_in(n.slice)]
        nexts = [n for n in indexed if not ends(n) and next_of(n.slice, {step})]
        names = {last_name(n.value) for n in flags}
        if not nexts or len(names) != 1 or not all(next_of(n.slice, {step}) for n in flags):
            continue
        name = names.pop()
        stored = given_for(tree, scope, name) if is_argument(scope, name) else [flags[0].value]
        same = len({ast.unparse(v) for v in stored}) == 1
        kept = _stored_after_step(tree, stored[0]) if same else None
        if kept is not None:
            return Late(flags[0].lineno, name, *kept)
    return None


def keeps_after_step(file: str, flag: str) -> bool:
    """Whether what a loop reads as `flag` is kept, each time, after the step that gave it: then it belongs to t."""
    tree = parsed(file)
    if tree is None:
        return False
    functions = [n for n in walk(tree) if is_argument(n, flag)]
    given = [v for function in functions for v in given_for(tree, function, flag)]
    named = [ast.Name(flag), ast.Attribute(ast.Name("self"), flag)]
    return any(_stored_after_step(tree, memory) is not None for memory in (*given, *named))


def _stored_after_step(tree: ast.Module, memory: ast.expr) -> tuple[int, int] | None:
    """Lines of the one place that keeps the flag and of the step before it, in one loop, that gave the flag; what keeps
    it holds nothing before."""
    name = last_name(memory)
    if not name or not _starts_empty(tree, name, type(memory)):
        return None
    stores = [(n, v) for n in walk(tree) for v in stored_in(n, name)]
    if len(stores) != 1 or not _of_one_step(stores[0][0]):
        return None
    node, value = stores[0]
    line = value.lineno
    ways = [(line, names_in(value)), *_handed(tree, node, value)]
    for loop in walk(tree):
        if isinstance(loop, (ast.For, ast.While)):
            for step in nodes_of(loop.body):
                if isinstance(step, ast.Assign) and isinstance(step.value, ast.Call):
                    if last_name(step.value.func) != "step":
                        continue
                    given = {m.id for t in step.targets for m in walk(t) if isinstance(m, ast.Name)}
                    for at, names in ways:
                        if given & names and step.lineno < at <= (loop.end_lineno or 0):
                            return line, step.lineno
    return None


def _of_one_step(node: ast.AST) -> bool:
    """`flags.append(done)` and `flags[t] = done`, not `flags[t + 1] = done`."""
    if not isinstance(node, ast.Assign):
        return True
    targets = [t for outer in node.targets for t in (outer.elts if isinstance(outer, ast.Tuple) else [outer])]
    return all(isinstance(t.slice, (ast.Name, ast.Attribute)) for t in targets if isinstance(t, ast.Subscript))


def _starts_empty(tree: ast.Module, name: str, kind: type[ast.expr]) -> bool:
    """Lists that begin empty, or arrays of zeros: no flag of an earlier step is put before the first."""
    for node in walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                several = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(several)
                for one, value in zip(several, values, strict=False):
                    if isinstance(one, kind) and last_name(one) == name and not _empty(value):
                        return False
    return True


def _empty(value: ast.expr) -> bool:
    if isinstance(value, (ast.List, ast.Tuple)):
        return not value.elts
    if isinstance(value, (ast.GeneratorExp, ast.ListComp)):
        return _empty(value.elt)
    return isinstance(value, ast.Call) and last_name(value.func) in ("list", "deque", "zeros", "empty", "zeros_like")


def _handed(tree: ast.Module, node: ast.AST, value: ast.expr) -> Iterator[tuple[int, set[str]]]:
    """Calls of the function that keeps the flag: the line, and the names in what is given for it."""
    for function in walk(tree):
        if isinstance(function, _Function) and any(n is node for n in walk(function)):
            for name in names_in(value) & {a.arg for a in arguments(function)}:
                for given in given_for(tree, function, name):
                    yield given.lineno, names_in(given)
