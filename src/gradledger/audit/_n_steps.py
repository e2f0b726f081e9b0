"""Sums over several steps of a stored stream, read from the text: those that run on past the end of an episode."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._code import bindings, last_name, parsed, walk
from gradledger.audit._terminals import FLAG, nodes_of

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_ASKS = (ast.If, ast.IfExp, ast.Break, ast.Continue, ast.While, ast.Compare, ast.BoolOp)


@dataclass(frozen=True, slots=True)
class Window:
    """A sum, from `line` on, that asks for no flag on its way; `flag` of one step is read behind it, on `flag_line`."""

    line: int
    flag: str
    flag_line: int


def past_ends(file: str) -> Window | None:
    """A sum over steps `i, i + 1, ...` of one long stream, whose flags of the end are read nowhere in the file but
    once behind that sum."""
    tree = parsed(file)
    for function in walk(tree) if tree is not None else ():
        if not isinstance(function, _Function):
            continue
        for line, end in _sums(function):
            behind = [n for n in walk(function) if isinstance(n, ast.Subscript) and n.lineno > end]
            for flag in behind:
                name = last_name(flag.value)
                one = isinstance(flag.value, ast.Attribute) and not isinstance(flag.slice, (ast.Tuple, ast.Slice))
                if one and len(name) > 1 and FLAG.match(name):
                    assert tree is not None
                    if _one_stream(tree, name) and _read(tree, name) == [flag.lineno]:
                        return Window(line, name, flag.lineno)
    return None


def over_windows(file: str) -> Window | None:
    """A sum over a window of the latest steps that asks for no flag and is kept with the flag of the last, where
    nothing ever empties the window: what comes after an end goes into it, too."""
    tree = parsed(file)
    emptied = _emptied(tree) if tree is not None else set()
    rolling = _rolling(tree) if tree is not None else set()
    for function in walk(tree) if tree is not None else ():
        if not isinstance(function, _Function):
            continue
        for line, end, window, names in _window_sums(function):
            if window in emptied or window not in rolling:
                continue
            for node in walk(function):
                late = getattr(node, "lineno", 0) > end
                name = _last_flag(node, window, names) if late else ""
                if name:
                    return Window(line, name, node.lineno)  # type: ignore[attr-defined]
    return None


def _window_sums(function: _Function) -> Iterator[tuple[int, int, str, set[str]]]:
    """First and last lines of `for k, (_, r, done) in enumerate(window): total += discount**k * r`, the window, and the
    names of the loop; and of the same in a `sum`."""
    for node in walk(function):
        if isinstance(node, ast.For):
            adds = [n for n in node.body if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)]
            asks = any(isinstance(n, _ASKS) for n in nodes_of(node.body))
            if len(adds) == 1 and _discounted(adds[0].value) and not asks and (window := _walked(node.iter)):
                names = {n.id for n in walk(node.target) if isinstance(n, ast.Name)}
                yield node.lineno, node.end_lineno or node.lineno, window, names
        elif isinstance(node, ast.Call) and last_name(node.func) == "sum" and node.args:
            inner = node.args[0]
            if isinstance(inner, (ast.GeneratorExp, ast.ListComp)) and len(inner.generators) == 1:
                over = inner.generators[0]
                if not over.ifs and _discounted(inner.elt) and (window := _walked(over.iter)):
                    yield node.lineno, node.lineno - 1, window, set()


def _walked(over: ast.expr) -> str:
    """`window` of `self.window` and of `enumerate(self.window)`."""
    if isinstance(over, ast.Call) and last_name(over.func) == "enumerate" and over.args:
        over = over.args[0]
    return last_name(over) if isinstance(over, (ast.Name, ast.Attribute)) else ""


def _last_flag(node: ast.AST, window: str, names: set[str]) -> str:
    """The flag of the last step: what the loop left in its name, `window[-1].done`, `window[-1][4]`."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        return node.id if len(node.id) > 1 and FLAG.match(node.id) else ""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        of = node.value
        if isinstance(of, ast.Subscript) and last_name(of.value) == window and ast.unparse(of.slice) == "-1":
            name = last_name(node)
            return name if len(name) > 1 and FLAG.match(name) else ""
    return ""


def _rolling(tree: ast.Module) -> set[str]:
    """Names of what holds the latest so many: `deque(maxlen=n)`."""
    found = set()
    for node in walk(tree):
        if isinstance(node, ast.Assign):
            for name, value in bindings(node):
                if isinstance(value, ast.Call) and last_name(value.func) == "deque":
                    if len(value.args) > 1 or any(k.arg == "maxlen" for k in value.keywords):
                        found.add(name)
    return found


def _emptied(tree: ast.Module) -> set[str]:
    """What is emptied or made anew outside of the making of its owner."""
    made = {id(n) for f in walk(tree) if isinstance(f, _Function) and f.name == "__init__" for n in walk(f)}
    found = set()
    for node in walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("clear", "popleft", "pop"):
                found.add(last_name(node.func.value))
        elif isinstance(node, ast.Assign) and id(node) not in made:
            found |= {last_name(t) for t in node.targets if isinstance(t, ast.Attribute)}
        elif isinstance(node, ast.Delete):
            found |= {last_name(t.value) for t in node.targets if isinstance(t, ast.Subscript)}
    return found


def _sums(function: _Function) -> Iterator[tuple[int, int]]:
    """First and last lines of `for k in range(i, i + n): total += factor * rewards[k]`, and of the same in a `sum`."""
    for node in walk(function):
        if isinstance(node, ast.For) and _ranges(node.iter) and isinstance(node.target, ast.Name):
            adds = [n for n in node.body if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)]
            if len(adds) == 1 and _discounted(adds[0].value) and _plain(node.body, node.target.id):
                yield node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.Call) and last_name(node.func) == "sum" and node.args:
            inner = node.args[0]
            if isinstance(inner, (ast.GeneratorExp, ast.ListComp)) and len(inner.generators) == 1:
                over = inner.generators[0]
                if not over.ifs and _ranges(over.iter) and isinstance(over.target, ast.Name):
                    if _discounted(inner.elt) and _plain([inner.elt], over.target.id):
                        yield node.lineno, node.lineno - 1


def _ranges(over: ast.expr) -> bool:
    return isinstance(over, ast.Call) and last_name(over.func) == "range" and len(over.args) < 3


def _discounted(value: ast.expr) -> bool:
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) for n in walk(value))


def _plain(body: list[ast.stmt] | list[ast.expr], step: str) -> bool:
    """Whether one thing only is looked up by the step, and nothing is asked."""
    nodes = nodes_of(body)
    steps = {step}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if any(isinstance(n, ast.Name) and n.id in steps for n in walk(node.value)):
                steps.add(node.targets[0].id)
    looked = [n for n in nodes if isinstance(n, ast.Subscript)]
    by_step = [n for n in looked if any(isinstance(m, ast.Name) and m.id in steps for m in walk(n.slice))]
    return len(looked) == len(by_step) == 1 and not any(isinstance(n, _ASKS) for n in nodes)


def _read(tree: ast.Module, name: str) -> list[int]:
    """Lines that read an attribute, other than to write into it."""
    into = {id(n.value) for n in walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)}
    into |= {id(n.value) for n in walk(tree) if isinstance(n, ast.Attribute) and n.attr == "append"}
    words = [n.lineno for n in walk(tree) if isinstance(n, ast.Constant) and n.value == name]  # getattr
    loads = (n for n in walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    return [*(n.lineno for n in loads if n.attr == name and id(n) not in into), *words]


def _one_stream(tree: ast.Module, name: str) -> bool:
    """Whether what keeps a flag is made once, and its flags with it: episodes lie in it one after the other."""
    owners = [n for n in walk(tree) if isinstance(n, ast.ClassDef) if name in _kept_by(n)]
    if len(owners) != 1 or _kept_by(owners[0]).count(name) != 1:
        return False
    loops = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp, ast.Lambda)
    many = {id(n) for loop in walk(tree) if isinstance(loop, loops) for n in walk(loop)}
    makes = [n for n in walk(tree) if isinstance(n, ast.Call) and last_name(n.func) == owners[0].name]
    return len(makes) == 1 and id(makes[0]) not in many


def _kept_by(owner: ast.ClassDef) -> list[str]:
    nodes = (n for n in walk(owner) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return [n.attr for n in nodes if last_name(n.value) == "self"]
