"""Time limits that the program's own `step` makes of a count of its calls, read from the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._code import last_name, walk

_DEEP = 4


def gives_clock(tree: ast.Module) -> bool | None:
    """Whether the fourth value of each `step` that the file defines comes from comparing a counter of steps with a
    limit, and that counter is used for nothing else: one that the agent sees makes the limit a part of the task.

    None when the file defines no `step` that says what its values are.
    """
    found: list[bool] = []
    for function in walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and function.name == "step":
            for node in walk(function):
                value = node.value if isinstance(node, ast.Return) else None
                if isinstance(value, ast.Tuple) and len(value.elts) in (4, 5):
                    found.append(_counts(tree, function, value.elts[3], _DEEP))
    return all(found) if found else None


def _counts(tree: ast.Module, function: ast.AST, value: ast.expr, deep: int) -> bool:
    for node in walk(value):
        if isinstance(node, ast.Compare) and any(_is_counter(tree, side) for side in (node.left, *node.comparators)):
            return True
    names = {n.id for n in walk(value) if isinstance(n, ast.Name)}
    made = [n for n in walk(function) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    for node in made if deep else ():
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id in names:
            if _counts(tree, function, node.value, deep - 1):
                return True
        elif isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            for target, part in zip(node.targets[0].elts, node.value.elts, strict=False):
                if last_name(target) in names and _counts(tree, function, part, deep - 1):
                    return True
    return False


def _is_counter(tree: ast.Module, side: ast.expr) -> bool:
    """`self.age`, where `self.age += 1` stands in the file, and is read in comparisons only."""
    if not isinstance(side, ast.Attribute):
        return False
    uses: set[int] = set()
    counted = False
    for node in walk(tree):
        if isinstance(node, ast.AugAssign) and last_name(node.target) == side.attr:
            counted = counted or (isinstance(node.op, ast.Add) and getattr(node.value, "value", None) == 1)
        elif isinstance(node, ast.Assign) and last_name(node.targets[0]) == side.attr:
            # n = n + 1, n = where(over, 0, n)
            counted = counted or _is_one_more(node)
            uses |= {id(n) for n in walk(node.value)}
        elif isinstance(node, (ast.Compare, ast.JoinedStr)):
            uses |= {id(n) for n in walk(node)}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):  # self.age[over] = 0
            uses.add(id(node.value))
    reads = (n for n in walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    return counted and all(id(n) in uses for n in reads if n.attr == side.attr)


def _is_one_more(node: ast.stmt) -> bool:
    """`self.age = self.age + 1`."""
    value = node.value if isinstance(node, ast.Assign) else None
    if not isinstance(node, ast.Assign) or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    return last_name(value.left) == last_name(node.targets[0]) and getattr(value.right, "value", None) == 1


@dataclass(frozen=True, slots=True)
class Folded:
    """A `step` that counts its calls, and says at a limit that the episode ended: on which line, as the how-manieth of
    how many values; `field`: or under which name of an object."""

    function: str
    line: int
    place: int
    values: int
    field: str = ""


def folded(tree: ast.Module) -> list[Folded]:
    """`return obs, reward, fell or self.t >= self.limit`, and `if self.t >= self.limit: done = True` before a return.

    Only counts that each call raises, and that nothing else reads: what the agent sees makes the limit a part of the
    task, and what is raised now and then counts something that happens in it.
    """
    found = []
    for function in walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        raised = (n.target for n in function.body if isinstance(n, ast.AugAssign))
        again = (n.targets[0] for n in function.body if isinstance(n, ast.Assign) and _is_one_more(n))
        counters = {last_name(target) for target in (*raised, *again) if _is_counter(tree, target)}
        returns = [n.value for n in walk(function) if isinstance(n, ast.Return)] if counters else []
        for value in returns:
            for place, values, field, part in _parts_given(tree, value):
                line = next(_at_limit(function, part, counters), None)
                if line is not None:
                    found.append(Folded(function.name, line, place, values, field))
    return found


def _parts_given(tree: ast.Module, value: ast.expr | None) -> Iterator[tuple[int, int, str, ast.expr]]:
    """What a `return` gives that may be a flag: as the how-manieth of how many values, or under which name."""
    if isinstance(value, ast.Tuple) and len(value.elts) <= 4:
        yield from ((place, len(value.elts), "", part) for place, part in enumerate(value.elts[1:3], 1))
    elif isinstance(value, ast.Call):
        yield from ((0, 0, field, part) for field, part in _fields_given(tree, value))


def _fields_given(tree: ast.Module, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """(field, what is given for it) where a record of the program's own is made: a dataclass, a named tuple."""
    for node in walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == last_name(call.func):
            names = [last_name(n.target) for n in node.body if isinstance(n, ast.AnnAssign)]
            yield from zip(names, call.args, strict=False)
            yield from ((k.arg, k.value) for k in call.keywords if k.arg in names)


def _at_limit(function: ast.AST, part: ast.expr, counters: set[str], deep: int = 2) -> Iterator[int]:
    """Lines that make `part` true when a counter reaches a limit."""
    yield from _reached(part, counters)
    names = {n.id for n in walk(part) if isinstance(n, ast.Name)}
    for node in walk(function):
        if isinstance(node, ast.Assign) and any(last_name(target) in names for target in node.targets):
            if deep > 1 and not (names & {n.id for n in walk(node.value) if isinstance(n, ast.Name)}):
                yield from _at_limit(function, node.value, counters, deep - 1)
            else:
                yield from _reached(node.value, counters)
        elif isinstance(node, ast.If) and any(_reached(node.test, counters)):
            yield from (n.lineno for n in node.body if _is_set(n, names))


def _reached(expression: ast.expr, counters: set[str]) -> Iterator[int]:
    """Lines of `self.t >= self.limit` and `self.t == LIMIT` in an expression."""
    for node in walk(expression):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and last_name(node.left) in counters:
            if isinstance(node.ops[0], (ast.GtE, ast.Gt, ast.Eq)):
                yield node.lineno


def _is_set(node: ast.stmt, names: set[str]) -> bool:
    """`done = True`."""
    given = node.value if isinstance(node, ast.Assign) else None
    if not isinstance(node, ast.Assign) or not isinstance(given, ast.Constant) or given.value is not True:
        return False
    return any(last_name(target) in names for target in node.targets)
