"""Whole names of parameters that a loop looks for among names of submodules, read from the user's source.

`"encoder.weight" in {"encoder", "head"}` is never true.  That is certain when every text of the set is the name of a
submodule, and the loop does nothing else with the set: it might look for parts of the names there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import calls_at, enclosing_function, meanings
from gradledger.core.site import Site

_MADE_OF = frozenset({"tuple", "list", "set", "frozenset"})
_DEPTH = 4


@dataclass(frozen=True, slots=True)
class NeverEqual:
    """A test that is the same for every parameter: its line, its words, what it looks among."""

    line: int
    test: str
    members: tuple[str, ...]


def never_equal(site: Site, names: list[str]) -> Iterator[NeverEqual]:
    """Tests `name in MEMBERS` of the loop on the line that walks `named_parameters()`, with members that are submodules
    of the walked module, all of them."""
    tree = parsed(site.file)
    for loop in walk(tree) if tree is not None else ():
        if not isinstance(loop, ast.For) or not loop.lineno <= site.line <= (loop.iter.end_lineno or loop.lineno):
            continue
        name = last_name(loop.target.elts[0]) if isinstance(loop.target, ast.Tuple) and loop.target.elts else ""
        if not name or not any(_sets(n) for n in _in(loop)):
            continue
        if any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in _in(loop)):
            continue
        for test in _in(loop):
            if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.In, ast.NotIn)):
                continue
            among = test.comparators[0]
            if last_name(test.left) != name or sum(ast.dump(n) == ast.dump(among) for n in _in(loop)) > 1:
                continue
            members = _texts(among, site, _DEPTH)
            if members and all(m not in names and any(n.startswith(f"{m}.") for n in names) for m in members):
                yield NeverEqual(test.lineno, ast.unparse(test), tuple(sorted(members)))


def _in(loop: ast.For) -> list[ast.AST]:
    return [n for statement in loop.body for n in walk(statement)]


def _sets(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr == "requires_grad_" or (node.attr == "requires_grad" and isinstance(node.ctx, ast.Store))


def _texts(node: ast.expr, site: Site, depth: int, *, inside: bool = False) -> frozenset[str]:
    """All texts that a collection can hold by the text of the program; empty when that does not tell.  `inside`: the
    values of a dict are meant."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and not inside:
        texts = [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        return frozenset(texts) if len(texts) == len(node.elts) else frozenset()
    if isinstance(node, (ast.Dict, ast.List, ast.Tuple)) and inside:
        return _all([_texts(v, site, depth) for v in (node.values if isinstance(node, ast.Dict) else node.elts)])
    if depth == 0:
        return frozenset()
    if isinstance(node, ast.Call) and last_name(node.func) in _MADE_OF and node.args and not inside:
        return _texts(node.args[0], site, depth - 1)
    if isinstance(node, ast.Subscript) and not inside:
        return _texts(node.value, site, depth - 1, inside=True)
    if isinstance(node, (ast.Name, ast.Attribute)):
        passed = _passed(node, site)
        if passed is not None:
            caller = site.callers[0]
            above = Site(caller.file, caller.line, caller.function, callers=site.callers[1:])
            return _texts(passed, above, depth - 1, inside=inside)
        return _all([_texts(v, site, depth - 1, inside=inside) for v in meanings(site.file, last_name(node))])
    return frozenset()


def _all(parts: list[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*parts) if parts and all(parts) else frozenset()


def _passed(node: ast.expr, site: Site) -> ast.expr | None:
    """What the call that led here passes for an argument of the function around the line."""
    function = enclosing_function(site.file, site.line)
    if function is None or not isinstance(node, ast.Name) or not site.callers:
        return None
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args) if a.arg not in ("self", "cls")]
    for call in calls_at(site.callers[0].file, site.callers[0].line):
        if last_name(call.func) == function.name and node.id in arguments:
            given = next((k.value for k in call.keywords if k.arg == node.id), None)
            position = arguments.index(node.id)
            return given or (call.args[position] if len(call.args) > position else None)
    return None
