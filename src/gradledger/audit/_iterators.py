"""Iterators over parameters that are walked twice, read from the user's source.

`params = model.parameters()` gives its parameters once.  What is found here is certain from the text: the name is bound
once, to something that can be walked once only, and is walked again.  A rule adds the evidence that the code ran.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import enclosing_function
from gradledger.audit.world import World
from gradledger.core.site import NOWHERE, Site

_ONCE = frozenset({"filter", "map", "zip", "iter", "chain", "islice", "from_iterable", "reversed", "enumerate"})
_WALKS = frozenset({"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules"})


# calls that surely walk all of what they are given
_CONSUMERS = frozenset(
    {"sum", "list", "tuple", "set", "sorted", "max", "min", "frozenset", "clip_grad_norm_", "clip_grad_value_"}
)


@dataclass(frozen=True, slots=True)
class Use:
    """A walk over the values of a name: a `for` loop, or a call of a function of the same file that loops over its
    argument.  `site`: the loop or the call; `loop`: the loop; `body`: first and last line of its body; `writes`: what
    the body writes or changes in place: "grad", "requires_grad", ... (clearing `.grad` does not count)."""

    site: Site
    loop: Site
    body: tuple[int, int]
    writes: frozenset[str]


@dataclass(frozen=True, slots=True)
class UsedUp:
    """A use of a name that is (from some time on) used up.  `made`: where it was bound; `repeated`: the use stands in a
    loop that does not make the iterator anew; else an earlier walk came first; `perhaps`: an `if` decides whether the
    use runs."""

    name: str
    made: Site
    repeated: bool
    use: Use
    perhaps: bool


def caller(site: Site) -> Site:
    """The line that called the function of `site`."""
    return next(iter(site.above(1)), NOWHERE)


def uses_of(site: Site, name: str) -> list[Use]:
    """Uses of `name` in the function around the line (in the module, at module level)."""
    tree = parsed(site.file)
    if tree is None:
        return []
    scope = enclosing_function(site.file, site.line) or tree
    return [use for node in own_nodes(scope) if (use := _use(tree, site.file, scope, node, name)) is not None]


def _use(tree: ast.Module, file: str, scope: ast.AST, node: ast.AST, name: str) -> Use | None:
    function = getattr(scope, "name", "<module>")
    if isinstance(node, ast.For) and _loops_over(node, name):
        site = Site(file, node.lineno, function)
        return Use(site, site, _lines(node), _writes(node.body))
    if isinstance(node, ast.Call):
        for position, given in enumerate(node.args):
            if _is_called(given, name):
                inner = _loop_of_argument(tree, node, position)
                if inner is not None:
                    where = Site(file, inner[1].lineno, inner[0])
                    return Use(Site(file, node.lineno, function), where, _lines(inner[1]), _writes(inner[1].body))
        method = _method_called(tree, node) if name.startswith("self.") else None
        found = _last_loop(method, name) if method is not None else None
        if method is not None and found is not None:
            where = Site(file, found.lineno, method.name)
            return Use(Site(file, node.lineno, function), where, _lines(found), _writes(found.body))
    return None


def _is_called(node: ast.AST, name: str) -> bool:
    """Whether a node reads this name: of a variable, or "self.params" of an attribute."""
    if isinstance(node, ast.Name):
        return node.id == name
    return isinstance(node, ast.Attribute) and "." in name and ast.unparse(node) == name


def _method_called(tree: ast.Module, call: ast.Call) -> ast.FunctionDef | None:
    """The method of `self.freeze()`, when this file defines one function of that name."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    functions = [n for n in walk(tree) if isinstance(n, ast.FunctionDef) and n.name == last_name(call.func)]
    return functions[0] if isinstance(owner, ast.Name) and owner.id == "self" and len(functions) == 1 else None


def _last_loop(function: ast.FunctionDef, name: str) -> ast.For | None:
    """The last loop over a name in a function, one that writes if there is any."""
    loops = [n for n in own_nodes(function) if isinstance(n, ast.For) and _loops_over(n, name)]
    return next(reversed([loop for loop in loops if _writes(loop.body)] or loops), None)


def _loop_of_argument(tree: ast.Module, call: ast.Call, position: int) -> tuple[str, ast.For] | None:
    """The last loop over the argument in the function that is called, when this file defines it once."""
    inner = _function_given(tree, call, position)
    if inner is None:
        return None
    found = _last_loop(*inner)
    return (inner[0].name, found) if found is not None else None


def _function_given(tree: ast.Module, call: ast.Call, position: int) -> tuple[ast.FunctionDef, str] | None:
    """The function that is called, when this file defines it once, and its name for the argument at `position`."""
    functions = [n for n in walk(tree) if isinstance(n, ast.FunctionDef) and n.name == last_name(call.func)]
    if len(functions) != 1 or position < 0:
        return None
    arguments = [a.arg for a in (*functions[0].args.posonlyargs, *functions[0].args.args)]
    if arguments and arguments[0] == "self" and isinstance(call.func, ast.Attribute):
        position += 1
    return (functions[0], arguments[position]) if position < len(arguments) else None


def _loops_over(loop: ast.For, name: str) -> bool:
    over = loop.iter
    while isinstance(over, ast.Call) and last_name(over.func) in ("enumerate", "tqdm", "iter", "zip") and over.args:
        over = over.args[0]
    return _is_called(over, name)


def _lines(loop: ast.For) -> tuple[int, int]:
    return loop.body[0].lineno, loop.end_lineno or loop.lineno


def _writes(body: Iterable[ast.AST]) -> frozenset[str]:
    found: set[str] = set()
    for statement in body:
        for node in walk(statement):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                if isinstance(node.value, ast.Constant) and node.value.value is None:
                    continue
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    found.update(_chain(target))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
                if node.func.attr == "requires_grad_":
                    found.add("requires_grad")
                elif node.func.attr not in ("zero_", "detach_"):
                    found.update(_chain(node.func.value))
    return frozenset(found)


def _chain(node: ast.expr) -> Iterator[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Attribute):
            yield node.attr
            node = node.value
        else:
            node = node.value if isinstance(node, ast.Subscript) else node.func


def made_at(site: Site, world: World) -> Site:
    """Where an iterator that is passed on this line was bound to its name; NOWHERE when the line passes none."""
    tree = parsed(site.file)
    if tree is None:
        return NOWHERE
    passed = {
        last_name(given)
        for node in walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= site.line <= (node.end_lineno or node.lineno)
        for given in [*node.args, *(k.value for k in node.keywords)]
    }
    for node in walk(tree):
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


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that can be walked once, kept under a name for longer than one run of the loop that walks it."""

    name: str
    made: Site
    loop: Site


def kept(file: str, line: int) -> Kept | None:
    """What the innermost loop around a line walks, when every run of the loop but the first finds it used up: it is
    bound once, in another function (an attribute, an outer variable) or before a loop around this one."""
    tree = parsed(file)
    around = [
        n for n in (walk(tree) if tree is not None else ())
        if isinstance(n, (ast.For, ast.While)) and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]  # fmt: skip
    loop = max(around, key=lambda n: n.lineno, default=None)
    if tree is None or not isinstance(loop, ast.For):
        return None
    over = loop.iter
    while isinstance(over, ast.Call) and last_name(over.func) in ("enumerate", "tqdm") and over.args:
        over = over.args[0]
    if not isinstance(over, (ast.Name, ast.Attribute)):
        return None
    name = last_name(over)
    bound = [
        n for n in walk(tree)
        if isinstance(n, (ast.Assign, ast.AnnAssign)) and n.value is not None
        for t in (n.targets if isinstance(n, ast.Assign) else [n.target])
        if isinstance(t, type(over)) and last_name(t) == name
    ]  # fmt: skip
    if len(bound) != 1 or bound[0].value is None or not _walkable_once(bound[0].value):
        return None
    maker = bound[0]
    there, here = enclosing_function(file, maker.lineno), enclosing_function(file, line)
    again = [o for o in around if o is not loop and not _inside(maker, o)]
    if there is here and not again:
        return None
    if isinstance(over, ast.Name) and there is not None and (here is None or not _inside(here, there)) and not again:
        return None  # a variable of another function
    function = getattr(here, "name", "<module>")
    return Kept(name, Site(file, maker.lineno, getattr(there, "name", "<module>")), Site(file, loop.lineno, function))


def _ran(world: World) -> set[tuple[str, int]]:
    """(file, line) of the user's program from which optimizers were built or stepped, callers included."""
    found: set[tuple[str, int]] = set()
    for optimizer in world.optimizers.values():
        steps = [optimizer.last_step.site] if optimizer.last_step is not None and optimizer.steps >= 2 else []
        for site in (optimizer.site, *steps):
            found.update({site.key(), *((f.file, f.line) for f in site.callers)})
    return found


def used_up(world: World, walked: Iterable[Site] = ()) -> list[UsedUp]:
    """Uses of names that are used up, in the functions (or modules) from which an optimizer is built or stepped, or
    that hold a line of `walked`."""
    found: list[UsedUp] = []
    ran = _ran(world) | {site.key() for site in walked}
    for file in sorted({file for file, _ in ran if file}):
        tree = parsed(file)
        if tree is None:
            continue
        lines = {line for name, line in ran if name == file}
        for scope in [tree, *(n for n in walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))]:
            first, last = getattr(scope, "lineno", 0), getattr(scope, "end_lineno", 10**9)
            if any(first <= line <= last and _directly(scope, line) for line in lines):
                found += _in_scope(file, tree, scope)
    return found


def _directly(scope: ast.AST, line: int) -> bool:
    inner = [
        n
        for n in walk(scope)
        if n is not scope
        and isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    return not inner


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a scope without those of functions and classes inside it."""
    queue = list(ast.iter_child_nodes(scope))
    for node in queue:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            queue += ast.iter_child_nodes(node)


def _in_scope(file: str, tree: ast.Module, scope: ast.AST) -> Iterator[UsedUp]:
    nodes = list(own_nodes(scope))
    loops = [n for n in nodes if isinstance(n, (ast.For, ast.While))]
    conditions = [n for n in nodes if isinstance(n, (ast.If, ast.IfExp, ast.ExceptHandler))]
    function = getattr(scope, "name", "<module>")
    for name, makers in _bound(nodes).items():
        maker = makers[0] if len(makers) == 1 else None
        if maker is None or not _walkable_once(maker.value):
            continue
        around_maker = {id(loop) for loop in loops if _inside(maker, loop)}
        walks = [n for n in nodes if getattr(n, "lineno", 0) > maker.lineno and _walks(tree, n, name)]
        for node in nodes:
            use = _use(tree, file, scope, node, name)
            if use is None:
                continue
            outer = [o for o in loops if o is not node and _inside(node, o) and id(o) not in around_maker]
            earlier = [w for w in walks if w is not node and getattr(w, "lineno", 0) < use.site.line]
            if outer or earlier:
                perhaps = any(_inside(node, c) and not _inside(maker, c) for c in conditions)
                yield UsedUp(name, Site(file, maker.lineno, function), not earlier, use, perhaps)


def _bound(nodes: list[ast.AST]) -> dict[str, list[ast.Assign | None]]:
    """Names that are bound, by what: a plain assignment to the name alone, or None for anything else."""
    bound: dict[str, list[ast.Assign | None]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for part in walk(target):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        bound.setdefault(part.id, []).append(node if isinstance(target, ast.Name) else None)
                    elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                        bound.setdefault(ast.unparse(part), []).append(node if part is target else None)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.AugAssign, ast.NamedExpr)):
            for part in walk(node.target):
                if isinstance(part, ast.Name):
                    bound.setdefault(part.id, []).append(None)
    return bound


def _inside(node: ast.AST, outer: ast.AST) -> bool:
    return any(n is node for n in walk(outer) if n is not outer)


def _walks(tree: ast.Module, node: ast.AST, name: str) -> bool:
    """Whether a node walks all of what `name` gives, or calls a function of the file that does, in any case."""
    if not isinstance(node, ast.Call):
        return _surely_walks(node, name)
    inner = _function_given(tree, node, next((i for i, a in enumerate(node.args) if _is_called(a, name)), -1))
    method = _method_called(tree, node) if name.startswith("self.") else None
    return (
        _surely_walks(node, name)
        or (inner is not None and _in_any_case(*inner))
        or (method is not None and _in_any_case(method, name))
    )


def _in_any_case(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function walks all of what a name gives, whatever it is told."""
    return any(
        _surely_walks(n, name)
        for statement in function.body
        if not isinstance(statement, (ast.If, ast.Try, ast.FunctionDef, ast.ClassDef))
        for n in walk(statement)
    )


def _surely_walks(node: ast.AST, name: str) -> bool:
    """Whether a node walks all of what `name` gives: a loop without `break`, a sum, an optimizer built on it."""
    if isinstance(node, ast.For):
        return _loops_over(node, name) and not any(isinstance(n, (ast.Break, ast.Return)) for n in walk(node))
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)):
        return _first_over(node.generators, name)
    if isinstance(node, ast.Call) and node.args:
        called = last_name(node.func)
        first = node.args[0]
        given = _is_called(first, name)
        if isinstance(first, ast.GeneratorExp):
            given = _first_over(first.generators, name)
        optimizer = isinstance(node.func, ast.Attribute) and "optim" in ast.unparse(node.func.value)
        return given and (called in _CONSUMERS or optimizer)
    return False


def _first_over(generators: list[ast.comprehension], name: str) -> bool:
    return _is_called(generators[0].iter, name)
