"""Iterators over parameters that are walked twice, read from the user's source.

`params = model.parameters()` gives its parameters once.  What is found here is certain from the text: the name is bound
once, to something that can be walked once only, and is walked again.  A rule adds the evidence that the code ran.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed
from gradledger.audit._loops import enclosing_function
from gradledger.audit.world import World
from gradledger.core.site import NOWHERE, Site

_ONCE = frozenset({"filter", "map", "zip", "iter", "chain", "islice", "from_iterable", "reversed", "enumerate"})
_WALKS = frozenset({"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules"})


@dataclass(frozen=True, slots=True)
class UsedUp:
    """A `for` loop over a name that is (from some time on) used up.  `site`: the loop; `made`: where it was bound;
    `writes`: attributes that the body writes or changes in place; `repeated`: the loop stands in a loop that does not
    make the iterator anew; else an earlier walk came first.  `body`: first and last line of the body."""

    name: str
    site: Site
    made: Site
    writes: frozenset[str]
    repeated: bool
    body: tuple[int, int]


def caller(site: Site) -> Site:
    """The line that called the function of `site`."""
    return Site(site.callers[0].file, site.callers[0].line, site.callers[0].function) if site.callers else NOWHERE


def attributes_written(site: Site) -> frozenset[str]:
    """Attributes that the function around the line writes or changes in place: "grad", "requires_grad", ..."""
    function = enclosing_function(site.file, site.line)
    return _writes(function.body) if function is not None else frozenset()


def _writes(body: Iterable[ast.AST]) -> frozenset[str]:
    found: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    found.update(_chain(target))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
                found.update(_chain(node.func.value))
                if node.func.attr == "requires_grad_":
                    found.add("requires_grad")
    return frozenset(found)


def _chain(node: ast.expr) -> Iterator[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Attribute):
            yield node.attr
            node = node.value
        else:
            node = node.value if isinstance(node, ast.Subscript) else node.func


def loops_over(site: Site, name: str) -> list[Site]:
    """Loops over `name` in the function around the line."""
    function = enclosing_function(site.file, site.line)
    if function is None:
        return []
    return [
        Site(site.file, node.lineno, function.name)
        for node in ast.walk(function)
        if isinstance(node, ast.For) and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.iter))
    ]


def made_at(site: Site, world: World) -> Site:
    """Where an iterator that is passed on this line was bound to its name; NOWHERE when the line passes none."""
    tree = parsed(site.file)
    if tree is None:
        return NOWHERE
    passed = {
        last_name(given)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= site.line <= (node.end_lineno or node.lineno)
        for given in [*node.args, *(k.value for k in node.keywords)]
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and _walkable_once(node.value)):
            continue
        if any(last_name(target) in passed for target in node.targets):
            return Site(site.file, node.lineno, "")
    return NOWHERE


def _walkable_once(node: ast.expr) -> bool:
    if isinstance(node, ast.GeneratorExp):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    return name in _ONCE or (isinstance(node.func, ast.Attribute) and name in _WALKS)


def _ran(world: World) -> set[tuple[str, int]]:
    """(file, line) of the user's program from which optimizers were built or stepped, callers included."""
    found: set[tuple[str, int]] = set()
    for optimizer in world.optimizers.values():
        steps = [optimizer.last_step.site] if optimizer.last_step is not None and optimizer.steps >= 2 else []
        for site in (optimizer.site, *steps):
            found.update({site.key(), *((f.file, f.line) for f in site.callers)})
    return found


def used_up_loops(world: World) -> list[UsedUp]:
    """Loops over names that are used up, in the functions (or modules) from which an optimizer is built or stepped."""
    found: list[UsedUp] = []
    ran = _ran(world)
    for file in sorted({file for file, _ in ran if file}):
        tree = parsed(file)
        if tree is None:
            continue
        lines = {line for name, line in ran if name == file}
        for scope in [tree, *(n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))]:
            first, last = getattr(scope, "lineno", 0), getattr(scope, "end_lineno", 10**9)
            if any(first <= line <= last and _directly(scope, line) for line in lines):
                found += _in_scope(file, scope)
    return found


def _directly(scope: ast.AST, line: int) -> bool:
    inner = [
        n
        for n in ast.walk(scope)
        if n is not scope
        and isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    return not inner


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a scope without those of functions and classes inside it."""
    queue = list(ast.iter_child_nodes(scope))
    for node in queue:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            queue += ast.iter_child_nodes(node)


def _in_scope(file: str, scope: ast.AST) -> Iterator[UsedUp]:
    nodes = list(_own(scope))
    bound: dict[str, list[ast.Assign | None]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        single = isinstance(target, ast.Name)
                        bound.setdefault(part.id, []).append(node if single else None)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            for part in ast.walk(node.target):
                if isinstance(part, ast.Name):
                    bound.setdefault(part.id, []).append(None)
    loops = [n for n in nodes if isinstance(n, (ast.For, ast.While))]
    function = getattr(scope, "name", "<module>")
    for name, makers in bound.items():
        maker = makers[0] if len(makers) == 1 else None
        if maker is None or not _walkable_once(maker.value):
            continue
        around_maker = {id(loop) for loop in loops if _inside(maker, loop)}
        walks = [n for n in nodes if _walks_name(n, name) and getattr(n, "lineno", 0) > maker.lineno]
        for loop in loops:
            if not (isinstance(loop, ast.For) and isinstance(loop.iter, ast.Name) and loop.iter.id == name):
                continue
            outer = [o for o in loops if o is not loop and _inside(loop, o) and id(o) not in around_maker]
            earlier = [
                w for w in walks if w is not loop and getattr(w, "lineno", 0) < loop.lineno and not _inside(w, loop)
            ]
            if not outer and not earlier:
                continue
            yield UsedUp(
                name,
                Site(file, loop.lineno, function),
                Site(file, maker.lineno, function),
                _writes(loop.body),
                bool(outer),
                (loop.body[0].lineno, loop.end_lineno or loop.lineno),
            )


def _inside(node: ast.AST, outer: ast.AST) -> bool:
    return any(n is node for n in ast.walk(outer) if n is not outer)


def _walks_name(node: ast.AST, name: str) -> bool:
    """Whether a node walks all of what `name` gives: a loop, a comprehension, or a call that is passed the name."""
    if isinstance(node, ast.For):
        return isinstance(node.iter, ast.Name) and node.iter.id == name
    if isinstance(node, ast.comprehension):
        return isinstance(node.iter, ast.Name) and node.iter.id == name
    if isinstance(node, ast.GeneratorExp):
        return any(_walks_name(g, name) for g in node.generators)
    if isinstance(node, ast.Call):
        if last_name(node.func) in _ONCE | {"next", "type", "isinstance", "id"}:
            return False
        return any(isinstance(a, ast.Name) and a.id == name for a in node.args)
    return False
