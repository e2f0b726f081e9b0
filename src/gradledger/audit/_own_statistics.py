"""Running statistics of the program's own that an evaluation moves, read from the text: a method takes them up unless
it is told not to (`def __call__(self, rows, update=True)`), and the evaluation does not tell it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._code import bindings, last_name, parsed, walk
from gradledger.audit._evaluation import evaluates
from gradledger.audit._loops import enclosing_function
from gradledger.core.site import Site

_SWITCH = re.compile(r"^(update|updating|learn|training|train|adapt|track)\w*$")


@dataclass(frozen=True, slots=True)
class Moved:
    """`cls`: of the statistics; `switch`: the argument that is left at True, declared on `declared`; `line`: where the
    evaluation calls, in `function`; `train_line`: where training does."""

    cls: str
    switch: str
    declared: int
    line: int
    function: str
    train_line: int


def moved_by_evaluation(file: str) -> Iterator[Moved]:
    """Calls of an evaluation that move statistics which training goes on with."""
    tree = parsed(file)
    for cls in (n for n in walk(tree) if isinstance(n, ast.ClassDef)) if tree is not None else ():
        for method in (n for n in cls.body if isinstance(n, ast.FunctionDef)):
            switch = _switch(cls, method)
            if switch is None:
                continue
            assert tree is not None
            calls = list(_calls(tree, cls.name, method.name))
            position = _names(method).index(switch) - 1
            told = [len(c.args) > position or any(k.arg in (switch, None) for k in c.keywords) for c in calls]
            plain = [(c, enclosing_function(file, c.lineno)) for c, given in zip(calls, told, strict=True) if not given]
            train = [c.lineno for c, f in plain if f is not None and _walks(f)]
            for call, function in plain:
                if function is None or _walks(function) or not train:
                    continue
                if evaluates(Site(file, call.lineno, function.name)):
                    yield Moved(cls.name, switch, method.lineno, call.lineno, function.name, train[0])


def _switch(cls: ast.ClassDef, method: ast.FunctionDef) -> str | None:
    """The argument, True by default, under which a method changes what it divides by."""
    names = _names(method)
    defaults = dict(zip(names[len(names) - len(method.args.defaults) :], method.args.defaults, strict=True))
    for name, default in defaults.items():
        if not _SWITCH.match(name) or not isinstance(default, ast.Constant) or default.value is not True:
            continue
        for node in method.body:
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == name:
                changed = _changed(cls, node.body)
                quotients = (n for n in walk(method) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
                if any(_own(part) in changed for n in quotients for part in walk(n.right)):
                    return name
    return None


def _names(method: ast.FunctionDef) -> list[str]:
    return [a.arg for a in (*method.args.posonlyargs, *method.args.args)]


def _changed(cls: ast.ClassDef, body: list[ast.stmt], depth: int = 1) -> set[str]:
    """Attributes that statements set, themselves or by a method of the class."""
    found: set[str] = set()
    for node in (n for part in body for n in walk(part)):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {_own(t) for target in targets for t in walk(target)}
        elif isinstance(node, ast.Call) and depth and _own(node.func):
            methods = (m for m in cls.body if isinstance(m, ast.FunctionDef) and m.name == _own(node.func))
            found |= {name for m in methods for name in _changed(cls, m.body, depth - 1)}
    return found - {""}


def _own(node: ast.AST) -> str:
    """`self.mean` -> "mean" """
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if own and isinstance(node, ast.Attribute) else ""


def _calls(tree: ast.Module, cls: str, method: str) -> Iterator[ast.Call]:
    """Calls of a method on what the file binds to an instance of its class, once: `self.norm = RunningMoments(n)`."""
    made = [
        name
        for node in walk(tree)
        if isinstance(node, ast.Assign)
        for name, value in bindings(node)
        if isinstance(value, ast.Call) and last_name(value.func) == cls
    ]
    for node in walk(tree) if len(made) == 1 else ():
        if isinstance(node, ast.Call):
            named = isinstance(node.func, ast.Attribute) and node.func.attr == method
            owner = node.func.value if named and isinstance(node.func, ast.Attribute) else node.func
            if (named or method == "__call__") and last_name(owner) in made:
                yield node


def _walks(function: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and last_name(n.func) == "backward" for n in walk(function))
