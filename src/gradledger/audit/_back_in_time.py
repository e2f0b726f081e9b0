"""Loops that run back through time (returns, advantages), read from the text: flags of terminal states that they are
given and never read, or read one step off."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._terminals import FLAG, nodes_of, scope_of


@dataclass(frozen=True, slots=True)
class Backwards:
    """A loop that runs back through time and carries a discounted sum, and is given a flag of terminal states that it
    never reads.  `line`: where the sum is carried on."""

    loop: int
    line: int
    flag: str
    flag_line: int


def carried_through(file: str, line: int) -> Backwards | None:
    """Such a loop in the function around `line`, or in one of the same file that this function calls by name."""
    tree = parsed(file)
    if tree is None:
        return None
    scope = scope_of(tree, line)
    called = {last_name(n.func) for n in walk(scope) if isinstance(n, ast.Call)}
    functions = [n for n in walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for function in functions:
        if function is scope or function.name in called:
            found = _carries(function)
            if found is not None:
                return found
    return None


def _carries(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Backwards | None:
    loops = [n for n in walk(function) if isinstance(n, ast.For) and back_in_time(n.iter)]
    if len(loops) != 1:
        return None
    loop = loops[0]
    body = [n for part in loop.body for n in walk(part)]
    carried = next((n.lineno for n in body if isinstance(n, ast.Assign) and discounts_itself(n)), None)
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    given = {a.arg: a.lineno for a in arguments}
    given |= {n.id: n.lineno for n in walk(loop.target) if isinstance(n, ast.Name)}
    flags = {name: at for name, at in given.items() if len(name) > 1 and FLAG.match(name)}
    walked = {n.id for n in walk(loop.iter) if isinstance(n, ast.Name)}
    if walked & flags.keys():  # `for r, d in zip(rewards, dones)`: one of its letters is the flag
        flags |= {name: at for name, at in given.items() if FLAG.match(name)}
    heads = {id(n) for n in walk(loop.iter)}
    read = {
        last_name(n)
        for n in walk(function)
        if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Load)
        if id(n) not in heads
    }
    if carried is None or not flags or any(FLAG.match(name) for name in read):
        return None
    if any(name in read for name in _walks_as(loop, flags.keys())):
        return None
    flag = next(iter(flags))
    return Backwards(loop.lineno, carried, flag, flags[flag])


def _walks_as(loop: ast.For, flags: Collection[str]) -> set[str]:
    """Names that the loop has for one step of a flag: `over` of `for r, over in zip(rewards, reversed(dones))`.  All of
    its names, where it is not to be told which."""
    names = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    walked = [n for n in walk(loop.iter) if isinstance(n, ast.Call) and last_name(n.func) == "zip"]
    targets = [n.elts for n in walk(loop.target) if isinstance(n, ast.Tuple)]
    if walked and targets and len(walked[0].args) == len(targets[-1]):
        pairs = zip(targets[-1], walked[0].args, strict=True)
        return {m.id for t, part in pairs if _reads(part, flags) for m in walk(t) if isinstance(m, ast.Name)}
    return names if _reads(loop.iter, flags) else set()


def _reads(node: ast.AST, names: Collection[str]) -> bool:
    """Whether one of these names is read, for more than its length."""
    counted = {id(m) for n in walk(node) if isinstance(n, ast.Call) and last_name(n.func) == "len" for m in walk(n)}
    return any(isinstance(n, ast.Name) and n.id in names and id(n) not in counted for n in walk(node))


def back_in_time(over: ast.expr) -> bool:
    """`reversed(...)`, `x[::-1]` or `range(n - 1, -1, -1)` somewhere in what a loop walks."""
    for node in walk(over):
        if isinstance(node, ast.Call) and last_name(node.func) == "reversed":
            return True
        step = node.step if isinstance(node, ast.Slice) else None
        if isinstance(node, ast.Call) and last_name(node.func) == "range" and len(node.args) == 3:
            step = node.args[2]
        if isinstance(step, ast.UnaryOp) and isinstance(step.op, ast.USub):
            return True
    return False


def discounts_itself(node: ast.Assign) -> bool:
    """`run = delta + gamma * lam * run`"""
    if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return False
    name = node.targets[0].id
    products = [n for n in walk(node.value) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)]
    return any(isinstance(m, ast.Name) and m.id == name for n in products for m in walk(n))


@dataclass(frozen=True, slots=True)
class Shifted:
    """Flags of step t beside the values of step t + 1, in a loop back through time whose last step has a flag of its
    own, `last`."""

    line: int
    flag: str
    last: str
    last_line: int


def one_step_off(file: str, line: int) -> Shifted | None:
    """Such a loop in the function around `line`, or in one of the same file that this function calls by name."""
    tree = parsed(file)
    if tree is None:
        return None
    scope = scope_of(tree, line)
    called = {last_name(n.func) for n in walk(scope) if isinstance(n, ast.Call)}
    for function in walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if function is scope or function.name in called or _around(function, line):
                for branch in walk(function):
                    found = _shifted(branch) if isinstance(branch, (ast.If, ast.IfExp)) else None
                    if found is not None:
                        return found
    for branch in walk(scope) if isinstance(scope, (ast.For, ast.While, ast.Module)) else ():
        found = _shifted(branch) if isinstance(branch, (ast.If, ast.IfExp)) else None
        if found is not None:
            return found
    return None


def _around(function: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> bool:
    return function.lineno <= line <= (function.end_lineno or function.lineno)


def _shifted(branch: ast.If | ast.IfExp) -> Shifted | None:
    """`if t == T - 1: c, v = 1 - next_done, next_value`, `else: c, v = 1 - dones[t], values[t + 1]`"""
    loops = {n.id for n in walk(branch.test) if isinstance(n, ast.Name)}
    then = branch.body if isinstance(branch.body, list) else [branch.body]
    other = branch.orelse if isinstance(branch.orelse, list) else [branch.orelse]
    for last, usual in ((then, other), (other, then)):
        alone = [n for n in nodes_of(last) if isinstance(n, (ast.Name, ast.Attribute)) and ends(n)]
        if any(isinstance(n, ast.Subscript) and ends(n) for n in nodes_of(last)) or not alone:
            continue
        indexed = [n for n in nodes_of(usual) if isinstance(n, ast.Subscript)]
        flags = [n for n in indexed if ends(n) and isinstance(n.slice, ast.Name) and n.slice.id in loops]
        nexts = [n for n in indexed if not ends(n) and next_of(n.slice, loops)]
        if flags and nexts and not any(ends(n) and next_of(n.slice, loops) for n in indexed):
            return Shifted(flags[0].lineno, last_name(flags[0].value), last_name(alone[0]), alone[0].lineno)
    return None


def ends(node: ast.Name | ast.Attribute | ast.Subscript) -> bool:
    """Whether a name, or what is indexed, is called a flag of the end: `next_done`, `dones[t]`."""
    name = last_name(node.value if isinstance(node, ast.Subscript) else node)
    return len(name) > 1 and bool(FLAG.match(name.removeprefix("next_").removeprefix("last_")))


def next_of(index: ast.expr, loops: set[str]) -> bool:
    """`t + 1`"""
    if not isinstance(index, ast.BinOp) or not isinstance(index.op, ast.Add):
        return False
    one = [n for n in (index.left, index.right) if isinstance(n, ast.Constant) and n.value == 1]
    return bool(one) and any(isinstance(n, ast.Name) and n.id in loops for n in (index.left, index.right))
