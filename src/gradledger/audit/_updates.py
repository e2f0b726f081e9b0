"""Statements of a program that would bring new values into a network, whether or not they do."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from gradledger.audit._code import bindings, last_name, parsed, walk, words

_UPDATING = frozenset({"soft", "hard", "ema", "blend", "copy", "refresh", "track", "follow", "momentum"})
_NO_UPDATE = frozenset({"copy", "deepcopy", "update"})  # of dictionaries, meters, bars
_WRITES = frozenset(
    {"copy_", "lerp_", "mul_", "add_", "set_", "data", "_foreach_lerp_", "_foreach_copy_", "swap_tensors"}
)


def update_lines(file: str, names: Iterable[str]) -> dict[int, range]:
    """Lines of `file` that write a module called by one of `names` from another one, or call a function that does.

    Seen are `name.load_state_dict(other.state_dict())`, loops over `name.parameters()` (or state_dict, buffers) whose
    body writes in place or binds the loop variable anew, calls of small functions that do either, functions with an
    updating name that are given `name`, and deep copies that are bound to a local variable of that name.  Each with all
    the lines that belong to the statement.
    """
    tree = parsed(file)
    wanted = set(names)
    found: dict[int, range] = {}
    if tree is None or not wanted:
        return found
    wanted |= _also_called(tree, wanted)
    states = {
        last_name(t)
        for node in walk(tree)
        if isinstance(node, ast.Assign) and _walked_over(node.value, ("state_dict",)) - wanted
        for t in node.targets
    }
    views = {
        name
        for node in walk(tree)
        if isinstance(node, ast.Assign)
        for name, value in bindings(node)
        if _walked_over(value, ("state_dict", "parameters", "named_parameters")) & wanted
    }
    updating: set[str] = set()
    for function in walk(tree):
        if (
            isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            and _small(function)
            and any(_updates(n, wanted, states, views) for n in walk(function))
        ):
            updating.add(function.name)
    local = _local_copies(tree, set(names))
    for node in walk(tree):
        if node in local or _updates(node, wanted, states, views) or _calls_updater(node, wanted, updating):
            first = getattr(node, "lineno", 0)
            found[first] = range(first, (getattr(node, "end_lineno", None) or first) + 1)
    return dict(sorted(found.items()))


def _also_called(tree: ast.Module, names: set[str]) -> set[str]:
    """What stands for one of `names` elsewhere: the variables of loops over it, and over nothing else, and parameters
    of updating functions that are given it or such a variable."""
    over: dict[str, set[str]] = {}
    for node in walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)):
            for variable, whole in _paired(node.target, node.iter):
                over.setdefault(variable, set()).add(whole)
    found = {variable for variable, wholes in over.items() if wholes <= names}
    functions = {f.name: f for f in walk(tree) if isinstance(f, ast.FunctionDef) and _updating_name(f.name)}
    for node in walk(tree):
        function = functions.get(last_name(node.func)) if isinstance(node, ast.Call) else None
        if function is None or not isinstance(node, ast.Call):
            continue
        parameters = [a.arg for a in function.args.args if a.arg not in ("self", "cls")]
        given = [*zip(parameters, node.args, strict=False), *((k.arg or "", k.value) for k in node.keywords)]
        found |= {name for name, value in given if last_name(value) in names | found} - {""}
    return found


def _paired(target: ast.expr, iterated: ast.expr) -> list[tuple[str, str]]:
    """(variable, what it runs over) of a loop, also through `zip` and `enumerate`."""
    if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name):
        inner = iterated.args
        if iterated.func.id == "enumerate" and inner and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            return _paired(target.elts[1], inner[0])
        if iterated.func.id == "zip" and isinstance(target, ast.Tuple):
            return [p for t, i in zip(target.elts, inner, strict=False) for p in _paired(t, i)]
    name, whole = last_name(target), last_name(iterated)
    return [(name, whole)] if name and whole else []


def _local_copies(tree: ast.Module, names: set[str]) -> set[ast.stmt]:
    """`target = copy.deepcopy(net)` in a function to which that name is its own, where the target is an attribute or a
    variable of the module: the copy is gone when the function returns, unless that hands it out."""
    every = [(n, t) for n in walk(tree) if isinstance(n, ast.Assign) for t in n.targets]
    kept = {t.attr for _, t in every if isinstance(t, ast.Attribute)}
    kept |= {t.id for n, t in every if isinstance(t, ast.Name) and n in tree.body}
    found: set[ast.stmt] = set()
    for function in walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        inside = list(walk(function))
        shared = {name for n in inside if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
        handed = [part for n in inside if isinstance(n, (ast.Return, ast.Yield)) for part in walk(n)]
        bound = {
            t.id: n
            for n in inside
            if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and last_name(n.value.func) == "deepcopy"
            for t in n.targets
            if isinstance(t, ast.Name)
        }
        out = {part.id for part in handed if isinstance(part, ast.Name)}
        found |= {n for name, n in bound.items() if name in (names & kept) - shared - out}
    return found


def _updates(node: ast.AST, names: set[str], states: set[str], views: set[str]) -> bool:
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr == "load_state_dict" and last_name(func.value) in names:
            given = [*node.args, *(k.value for k in node.keywords)]
            return any(_state_of_other(a, names, states) for a in given)
        if isinstance(func, ast.Attribute) and func.attr == "update":  # of a dictionary, which no module reads again
            return last_name(func.value) in views or _is_own_state(func.value, names)
        if last_name(func).startswith("_foreach_"):
            return bool(_walked_over(node, ("parameters", "buffers", "state_dict")) & names)
        return False
    if isinstance(node, ast.For):
        over = _walked_over(
            node.iter, ("parameters", "named_parameters", "state_dict", "buffers", "modules", "named_modules")
        )
        return bool(over & names) and (_blends(node) if len(over) == 1 else _writes(node))
    if isinstance(node, ast.Assign):
        # state[k] = ... where `state` is the target's own state_dict
        places = [t.value for t in node.targets if isinstance(t, ast.Subscript)]
        return any(last_name(place) in views or _is_own_state(place, names) for place in places)
    return False


def _is_own_state(node: ast.expr, names: set[str]) -> bool:
    """`name.state_dict()`."""
    return _state_of(node) in names


def _state_of(node: ast.expr) -> str:
    """Whose state an expression is: "name" of `name.state_dict()`, else ""."""
    called = node.func if isinstance(node, ast.Call) else None
    return last_name(called.value) if isinstance(called, ast.Attribute) and called.attr == "state_dict" else ""


def thrown_away(file: str, line: int) -> str:
    """Whose state a statement on the line changes and drops: `name.state_dict().update(...)`, or `name.state_dict()[k]
    = value`.  What `state_dict()` gives is a dictionary of its own, made anew for each call.  "" for any other line."""
    tree = parsed(file)
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno == line:
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr == "update":
                return _state_of(function.value)
        elif isinstance(node, ast.Assign) and node.lineno == line:
            return next((_state_of(t.value) for t in node.targets if isinstance(t, ast.Subscript)), "")
    return ""


def _state_of_other(node: ast.expr, names: set[str], states: set[str]) -> bool:
    """Whether an argument is the state of a live module other than those called by `names` (not one read from a "
    "file)."""
    for part in walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "state_dict":
            return last_name(part.func.value) not in names
    return isinstance(node, ast.Name) and node.id in states


def _walked_over(node: ast.AST, methods: tuple[str, ...]) -> set[str]:
    return {
        last_name(c.func.value)
        for c in walk(node)
        if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute) and c.func.attr in methods
    }


def _updating_name(name: str) -> bool:
    """Whether a function's name says that it updates a network: `soft_update`, `sync_target`, `copyWeights`."""
    if name in _NO_UPDATE:
        return False
    lower = name.lower()
    return any(part in lower for part in ("update", "sync", "polyak")) or any(w in _UPDATING for w in words(name))


def _small(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A function whose purpose is the update, not a training loop that contains one."""
    return (
        function.name == "update"
        or _updating_name(function.name)
        or (function.end_lineno or function.lineno) - function.lineno < 8
    )


def _writes(loop: ast.For) -> bool:
    bound = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    for statement in loop.body:
        for node in walk(statement):
            if isinstance(node, ast.Attribute) and node.attr in _WRITES:
                return True
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(t, ast.Name) and t.id in bound for t in targets):
                    return True
                if any(isinstance(t, ast.Subscript) for t in targets):
                    return True
    return False


def _blends(loop: ast.For) -> bool:
    """Whether the body of a loop mixes new values into its variable: `t.mul_(d).add_(source[k], alpha=1 - d)`."""
    called = {n.func.attr for n in walk(loop) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    return "lerp_" in called or {"mul_", "add_"} <= called


def _calls_updater(node: ast.AST, names: set[str], updating: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    if name in updating:
        return True
    if not _updating_name(name):
        return False
    if isinstance(node.func, ast.Attribute) and last_name(node.func.value) in names:
        return True  # target.sync()
    given = [*node.args, *(k.value for k in node.keywords)]
    return any(last_name(a) in names or _walked_over(a, ("parameters", "state_dict")) & names for a in given)
