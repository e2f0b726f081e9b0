"""Transitions over several steps, read from the text: the next state of the last step of a window, kept with the flag
of another one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed, walk, words
from gradledger.audit._iterators import own_nodes
from gradledger.audit._terminals import FLAG, words_of

_NEXT = frozenset({"next", "nxt", "s2", "s1", "sp", "ns", "new", "after", "succ", "successor", "s_next", "s_"})
_ENDS = frozenset({"end", "ends", "over", "last", "final", "t", "term", "finished", "stop", "absorbing"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mixed:
    """What is kept on `line`: `flag` of the window's first step, beside `successor` of its last, as a message names
    them."""

    line: int
    flag: str
    successor: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """A field of one element of a window: `window[0].done`, or a name that holds it."""

    window: str
    index: int
    name: str
    line: int


def mixed_ends(file: str) -> Mixed | None:
    """Such a transition in a file."""
    tree = parsed(file)
    fields = _fields(tree) if tree is not None else {}
    for function in walk(tree) if tree is not None else ():
        if not isinstance(function, _Function):
            continue
        elements, held = _bound(function)
        for node in own_nodes(function):
            parts = _parts(node)
            if len(parts) < 4:
                continue
            reads = [r for part in parts for r in _reads(part, elements, held)]
            flags = [r for r in reads if _is_flag(r.name, fields)]
            nexts = [r for r in reads if _is_next(r.name, fields)]
            for flag in flags:
                beside = [n for n in nexts if n.window == flag.window]
                if beside and all((n.index, flag.index) == (-1, 0) for n in beside) and len(flags) == 1:
                    line = node.lineno  # type: ignore[attr-defined]
                    at = tuple(n for n in dict.fromkeys((flag.line, beside[0].line)) if n != line)
                    return Mixed(line, _told(flag), _told(beside[0]), at)
    return None


def _told(read: _Read) -> str:
    return f"entry {read.name[1:]}" if read.name.startswith("#") else f"`{read.name}`"


def _parts(node: ast.AST) -> list[ast.expr]:
    """What is put together on a line: a tuple, the arguments of a call, the entries of a dictionary."""
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        return node.elts
    if isinstance(node, ast.Call):
        return [*node.args, *(k.value for k in node.keywords)]
    return list(node.values) if isinstance(node, ast.Dict) else []


def _bound(function: _Function) -> tuple[dict[str, tuple[str, int]], dict[str, _Read]]:
    """Names of elements of a window (`first = window[0]`), and of their fields (`s, a, _, _, done = window[0]`)."""
    elements: dict[str, tuple[str, int]] = {}
    held: dict[str, _Read] = {}
    for node in own_nodes(function):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for left, right in pairs:
            element = _element(right)
            if element is not None and isinstance(left, ast.Name):
                elements[left.id] = element
            elif element is not None and isinstance(left, ast.Tuple):
                names = [n.id for n in left.elts if isinstance(n, ast.Name) and not n.id.startswith("_")]
                held |= {name: _Read(*element, name, node.lineno) for name in names}
            elif isinstance(left, ast.Name) and (found := list(_reads(right, elements, {}))):
                held |= {left.id: _Read(found[0].window, found[0].index, found[0].name, node.lineno)}
    return elements, held


def _element(node: ast.expr) -> tuple[str, int] | None:
    """`self.window[-1]` -> ("window", -1)"""
    if isinstance(node, ast.Subscript) and last_name(node.value):
        index = node.slice
        if isinstance(index, ast.Constant) and index.value == 0 and not isinstance(index.value, bool):
            return last_name(node.value), 0
        if ast.unparse(index) == "-1":
            return last_name(node.value), -1
    return None


def _reads(part: ast.expr, elements: dict[str, tuple[str, int]], held: dict[str, _Read]) -> Iterator[_Read]:
    """Fields of elements in an expression; a loop of its own over the window has a name for each."""
    for node in walk(part):
        if isinstance(node, ast.Name) and node.id in held:
            yield held[node.id]
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            element = elements.get(node.value.id) if isinstance(node.value, ast.Name) else _element(node.value)
            name = last_name(node) if isinstance(node, ast.Attribute) else _field(node)
            if element is not None and name:
                yield _Read(*element, name, node.lineno)


def _field(node: ast.Subscript) -> str:
    """`"done"` of `step["done"]`, "#4" of `step[4]`."""
    index = node.slice
    return last_name(node) or (f"#{ast.unparse(index)}" if isinstance(index, ast.Constant) else "")


def _fields(tree: ast.Module) -> dict[str, str]:
    """By place or name of a record that is made of what a step gives: "flag" for the end, "next" for the successor."""
    found: dict[str, str] = {}
    records = {
        last_name(n.targets[0]): words_of(n.value.args[1])
        for n in walk(tree)
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and len(n.value.args) == 2
        if last_name(n.value.func) == "namedtuple"
    }
    records |= {
        n.name: [f.target.id for f in n.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
        for n in walk(tree)
        if isinstance(n, ast.ClassDef)
    }
    for scope in walk(tree):
        if not isinstance(scope, (_Function, ast.Module)):
            continue
        kinds: dict[str, str] = {}
        for node in own_nodes(scope):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            target = node.targets[0]
            if last_name(node.value.func) == "step" and isinstance(target, ast.Tuple):
                if len(target.elts) in (3, 4, 5):
                    kinds[last_name(target.elts[0])] = "next"
                    kinds[last_name(target.elts[2])] = "flag"
        for node in own_nodes(scope) if kinds else ():
            parts = _parts(node)
            names = records.get(last_name(node.func), []) if isinstance(node, ast.Call) else []
            if len(parts) >= 4 and {kinds.get(last_name(p)) for p in parts} >= {"next", "flag"}:
                for place, part in enumerate(parts):
                    kind = kinds.get(last_name(part), "")
                    found[f"#{place}"] = kind
                    if place < len(names):
                        found[names[place]] = kind
    return found


def _is_flag(name: str, fields: dict[str, str]) -> bool:
    return fields.get(name) == "flag" or (len(name) > 1 and bool(FLAG.match(name))) or name in _ENDS - {"t"}


def _is_next(name: str, fields: dict[str, str]) -> bool:
    return fields.get(name) == "next" or name in _NEXT or "next" in words(name)
