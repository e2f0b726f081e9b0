"""Which loops surround a line, and what the names in an expression stand for, read from the user's source.

Evidence only: where a file cannot be read, there are no loops and no expressions, and a rule that needs them is silent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gradledger.audit._code import last_name, parsed, walk
from gradledger.core.site import Frame, Site

Function = ast.FunctionDef | ast.AsyncFunctionDef
NAME_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` or `while` around a line.  `over`: what it walks (None for `while`)."""

    file: str
    line: int
    over: ast.expr | None


def loops_around(site: Site) -> list[Loop]:
    """Loops around the line and around the lines that called its function, innermost first."""
    found: list[Loop] = []
    for frame in (Frame(site.file, site.line, site.function), *site.callers):
        found += _loops_in(frame.file, frame.line)
    return found


@lru_cache(maxsize=512)
def _loops_in(file: str, line: int) -> tuple[Loop, ...]:
    tree = parsed(file)
    if tree is None:
        return ()
    found: list[Loop] = []
    for node in _enclosing(tree, line):
        if isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            found = []
        elif isinstance(node, (ast.For, ast.AsyncFor)) and line > node.lineno:
            found.append(Loop(file, node.lineno, node.iter))
        elif isinstance(node, ast.While) and line > node.lineno:
            found.append(Loop(file, node.lineno, None))
    return tuple(reversed(found))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _enclosing(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """Nodes whose lines include `line`, outermost first."""
    node: ast.AST | None = tree
    while node is not None:
        inner = None
        for child in ast.iter_child_nodes(node):
            first = getattr(child, "lineno", None)
            if first is not None and first <= line <= (getattr(child, "end_lineno", None) or first):
                inner = child
                break
            if first is None and not isinstance(child, (ast.expr_context, ast.operator)):
                # a node without a line of its own (a `with` item, an except clause list): look through it
                found = next((c for c in walk(child) if _covers(c, line)), None)
                if found is not None:
                    inner = found
                    break
        if inner is not None:
            yield inner
        node = inner


def _covers(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= (getattr(node, "end_lineno", None) or first)


def enclosing_function(file: str, line: int) -> Function | None:
    """The innermost function around a line; None at module level."""
    tree = parsed(file)
    found: Function | None = None
    if tree is not None:
        for node in _enclosing(tree, line):
            if isinstance(node, _FUNCTIONS):
                found = node
    return found


def conditions_around(site: Site, above: int = 1) -> list[Site]:
    """The innermost `if` around a line, and those around the lines that called its function."""
    found = []
    for frame in (Frame(site.file, site.line, site.function), *site.callers[:above]):
        tree = parsed(frame.file)
        around = [n for n in _enclosing(tree, frame.line) if isinstance(n, (*_FUNCTIONS, ast.If))] if tree else []
        if around and isinstance(around[-1], ast.If) and around[-1].lineno < frame.line:
            found.append(Site(frame.file, around[-1].lineno, frame.function))
    return found


def calls_at(file: str, line: int) -> list[ast.Call]:
    """Calls whose expression covers the line, outermost first."""
    tree = parsed(file)
    if tree is None:
        return []
    return [n for n in walk(tree) if isinstance(n, ast.Call) and _covers(n, line)]


def parameters_line(built: Site) -> tuple[Site, ...]:
    """The line on which an optimizer is given its parameters, where that is not the one on which its call begins."""
    calls = [c for c in calls_at(built.file, built.line) if c.lineno == built.line and c.args]
    lines = {c.args[0].lineno for c in calls[:1]} - {built.line}
    return tuple(Site(built.file, line, built.function) for line in lines)


def argument(call: ast.Call, keyword: str, position: int) -> ast.expr | None:
    """What a call passes for a parameter, by keyword or by position."""
    for given in call.keywords:
        if given.arg == keyword:
            return given.value
    return call.args[position] if len(call.args) > position else None


@lru_cache(maxsize=1024)
def declared(file: str, name: str) -> tuple[ast.expr, ...]:
    """What configurations in the file give under `name`: entries of literal dictionaries, defaults of command-line
    options, in order."""
    tree = parsed(file)
    found: list[ast.expr] = []
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found += [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name]
        elif isinstance(node, ast.Call) and last_name(node.func) == "add_argument":
            given = {k.arg: k.value for k in node.keywords}
            texts = [given["dest"]] if "dest" in given else node.args
            words = [a.value for a in texts if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if "default" in given and name in [word.lstrip("-").replace("-", "_") for word in words]:
                found.append(given["default"])
    return tuple(found)


@lru_cache(maxsize=1024)
def meanings(file: str, name: str) -> tuple[ast.expr, ...]:
    """Every expression that is assigned to `name` (a variable or an attribute of that name) in the file, in order."""
    tree = parsed(file)
    found: list[ast.expr] = []
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, (ast.Tuple, ast.List)) and isinstance(node.value, (ast.Tuple, ast.List)):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                else:
                    pairs = [(target, node.value)]
                found += [value for left, value in pairs if last_name(left) == name]
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None and last_name(node.target) == name:
                found.append(node.value)
        elif isinstance(node, ast.keyword):
            if node.arg == name:
                found.append(node.value)
        elif isinstance(node, _FUNCTIONS):
            found += [value for arg, value in _defaults(node) if arg == name]
    return tuple(found)


def _defaults(function: Function) -> list[tuple[str, ast.expr]]:
    args = [*function.args.posonlyargs, *function.args.args]
    pairs = list(zip(reversed(args), reversed(function.args.defaults), strict=False))
    keyed = [(a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d is not None]
    return [(a.arg, d) for a, d in [*pairs, *keyed]]


def unfolded(file: str, node: ast.expr, depth: int = NAME_DEPTH) -> list[ast.expr]:
    """The expression and everything its names stand for, a few steps back."""
    found = [node]
    seen: set[str] = set()
    queue = [(node, depth)]
    while queue:
        current, left = queue.pop()
        if left == 0:
            continue
        for part in walk(current):
            name = last_name(part) if isinstance(part, (ast.Name, ast.Attribute)) else ""
            values = meanings(file, name) if name else ()
            if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant):
                name = f"[{part.slice.value!r}]"  # config["epochs"]
                values = declared(file, str(part.slice.value))
            if name and name not in seen:
                seen.add(name)
                for value in values:
                    found.append(value)
                    queue.append((value, left - 1))
    return found


def same_text(left: ast.expr, right: ast.expr) -> bool:
    """Whether two expressions are written alike."""
    return ast.dump(left) == ast.dump(right)


def assignment_of(name: str, near: tuple[Site, ...]) -> Site | None:
    """The line `self.<name> = ...` in one of the files of `near`: the nearest one above or at a line of `near`."""
    for site in near:
        tree = parsed(site.file)
        if tree is None:
            continue
        lines = []
        for node in walk(tree):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Attribute) and t.attr == name for t in targets):
                lines.append(node.lineno)
        if len(lines) == 1 or (lines and site.line in lines):
            return Site(site.file, lines[0] if len(lines) == 1 else site.line, "__init__")
    return None
