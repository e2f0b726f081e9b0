"""Loops that run back through time (returns, advantages), read from the text: flags that belong to the step before,
discounts that are 0 at ends and are left out beside the next value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._back_in_time import back_in_time, discounts_itself, ends, next_of
from gradledger.audit._code import factors_of, last_name, parsed, walk
from gradledger.audit._terminals import negated, nodes_of, scope_of

_DISCOUNT = re.compile(r"gamma|discount", re.IGNORECASE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Early:
    """A loop that masks the value of step t + 1 by the flag of step t, where flags are kept (`kept`) before `step`."""

    line: int
    flag: str
    kept: int
    step: int


def kept_before(file: str, line: int) -> Early | None:
    """Such a loop in the function around `line`, or in one of the same file that this function calls by name."""
    for tree, scope, loop, step in loops_near(file, line):
        indexed = looked_up(loop)
        flags = [n for n in indexed if ends(n) and isinstance(n.slice, ast.Name) and n.slice.id == step]
        nexts = [n for n in indexed if next_of(n.slice, {step})]
        if not flags or not nexts or any(ends(n) for n in nexts):
            continue
        name = last_name(flags[0].value)
        stored = {name} if not is_argument(scope, name) else {last_name(v) for v in given_for(tree, scope, name)}
        kept = _stored_before_step(tree, stored.pop()) if len(stored) == 1 else None
        if kept is not None:
            return Early(flags[0].lineno, name, *kept)
    return None


def loops_near(file: str, line: int) -> Iterator[tuple[ast.Module, ast.AST, ast.For, str]]:
    """Loops over the numbers of steps, back in time, in the function around a line and in those of the file that this
    function calls by name: the file's tree, the function, the loop and its variable."""
    tree = parsed(file)
    for scope in near(tree, line) if tree is not None else ():
        for loop in walk(scope):
            if isinstance(loop, ast.For) and back_in_time(loop.iter) and isinstance(loop.target, ast.Name):
                assert tree is not None
                yield tree, scope, loop, loop.target.id


def looked_up(loop: ast.For) -> list[ast.Subscript]:
    """What the body of a loop reads by an index."""
    return [n for n in nodes_of(loop.body) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load)]


def near(tree: ast.Module, line: int) -> list[ast.AST]:
    """The code around a line, and the functions of the file that it calls by name."""
    scope = scope_of(tree, line)
    called = {last_name(n.func) for n in walk(scope) if isinstance(n, ast.Call)}
    functions = (n for n in walk(tree) if isinstance(n, _Function))
    return [scope, *(n for n in functions if n is not scope and n.name in called)]


def is_argument(scope: ast.AST, name: str) -> bool:
    """Whether a function has an argument of this name."""
    return isinstance(scope, _Function) and name in _arguments(scope)


def _arguments(function: _Function) -> list[str]:
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def given_for(tree: ast.Module, scope: ast.AST, name: str) -> list[ast.expr]:
    """What the calls of a function in its file give for one of its arguments."""
    found: list[ast.expr] = []
    if isinstance(scope, _Function):
        names = _arguments(scope)
        place = names.index(name) - (names[0] in ("self", "cls"))
        for call in walk(tree):
            if isinstance(call, ast.Call) and last_name(call.func) == scope.name:
                found += [k.value for k in call.keywords if k.arg == name] or call.args[place : place + 1]
    return found


def _stored_before_step(tree: ast.Module, name: str) -> tuple[int, int] | None:
    """Lines of `dones[t] = done` (or `dones.append(done)`) and of the step behind it that gives the next `done`, in one
    loop that stores the flag nowhere else."""
    for loop in walk(tree):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        nodes = nodes_of(loop.body)
        stores = [(value.lineno, value) for n in nodes for value in stored_in(n, name)]
        kept = {n.id for _, value in stores for n in walk(value) if isinstance(n, ast.Name)}
        steps = [
            n.lineno
            for n in nodes
            if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and last_name(n.value.func) == "step"
            if kept & {m.id for t in n.targets for m in walk(t) if isinstance(m, ast.Name)}
        ]
        if len(stores) == 1 and steps and stores[0][0] < min(steps):
            return stores[0][0], steps[0]
    return None


def stored_in(node: ast.AST, name: str) -> list[ast.expr]:
    """What is written into `name[...]`, or appended to it."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        return [v for t, v in pairs if isinstance(t, ast.Subscript) and last_name(t.value) == name]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        return node.args if last_name(node.func.value) == name else []
    return []


@dataclass(frozen=True, slots=True)
class Left:
    """A product of the next value and a plain discount (`line`), beside a discount of each step that is 0 at ends: read
    where the sum is carried (`carried`), made on `made`."""

    line: int
    plain: str
    each: str
    carried: int
    made: int


def plain_discount(file: str, line: int) -> Left | None:
    """Such a product in the function around `line`, or in one of the same file that this function calls by name."""
    for tree, scope, loop, step in loops_near(file, line):
        for each in _carrying(loop):
            name = last_name(each.value)
            made = _zero_at_ends(tree, scope, name)
            plain = _beside_next(scope, name, step) if made else None
            if plain is not None:
                return Left(*plain, name, each.lineno, made)
    return None


def _carrying(loop: ast.For) -> list[ast.Subscript]:
    """What is looked up among the factors that carry a sum: `discounts[t]` of `acc = delta + discounts[t] * acc`."""
    carried = [n for n in nodes_of(loop.body) if isinstance(n, ast.Assign) and discounts_itself(n)]
    found: list[ast.Subscript] = []
    for one in carried:
        for node in (n for n in walk(one.value) if isinstance(n, ast.BinOp)):
            factors = factors_of(node)
            if len(factors) > 1 and any(last_name(f) == last_name(one.targets[0]) for f in factors):
                found += [f for f in factors if isinstance(f, ast.Subscript)]
    return found


def _zero_at_ends(tree: ast.Module, scope: ast.AST, name: str) -> int:
    """The line that makes `name` a product with a negated flag: `discounts = gamma * (~over).float()`; 0 for none."""
    names = {name}
    values = given_for(tree, scope, name) if is_argument(scope, name) else []
    names |= {last_name(v) for v in values}
    values += [
        n.value for n in walk(tree) if isinstance(n, ast.Assign) and any(last_name(t) in names for t in n.targets)
    ]
    for value in values:
        parts = list(walk(value))
        product = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) for n in parts)
        turned = any(negated(n) == "flag" or isinstance(n, (ast.Not, ast.Invert)) for n in parts)
        if product and turned and any(_is_discount(n) for n in parts):
            return value.lineno
    return 0


def _is_discount(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and bool(_DISCOUNT.search(last_name(node)))


def _beside_next(scope: ast.AST, each: str, step: str) -> tuple[int, str] | None:
    """Line and plain discount of `gamma * values[1:]` or `gamma * values[t + 1]`, without the discount of each step."""
    for node in walk(scope):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
            continue
        factors = factors_of(node)
        plain = [last_name(f) for f in factors if _is_discount(f) and last_name(f) != each]
        looked = [f for f in factors if isinstance(f, ast.Subscript)]
        own = any(isinstance(n, (ast.Name, ast.Attribute)) and last_name(n) == each for n in walk(node))
        if plain and not own and len(factors) == 2 and any(_later(f.slice, step) for f in looked):
            return node.lineno, plain[0]
    return None


def _later(index: ast.expr, step: str) -> bool:
    """`1:` or `t + 1`"""
    if isinstance(index, ast.Slice):
        return isinstance(index.lower, ast.Constant) and index.lower.value == 1 and index.upper is None
    return next_of(index, {step})


def reads(file: str, line: int, name: str) -> bool:
    """Whether a loop back through time that carries a sum reads `name`, in the function around `line`."""
    tree = parsed(file)
    for loop in walk(scope_of(tree, line)) if tree is not None else ():
        if isinstance(loop, ast.For) and back_in_time(loop.iter):
            nodes = nodes_of(loop.body)
            if any(isinstance(n, ast.Assign) and discounts_itself(n) for n in nodes):
                return any(isinstance(n, (ast.Name, ast.Attribute)) and last_name(n) == name for n in nodes)
    return False
