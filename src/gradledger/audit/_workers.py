"""What the source says about random numbers in the workers of a loader: where a generator is made and drawn from, and
how a `worker_init_fn` seeds."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from gradledger.audit._code import last_name, parsed, walk, words
from gradledger.audit._loops import Function, calls_at, enclosing_function, meanings
from gradledger.core.site import Site

_ENTRIES = frozenset({"__getitem__", "__getitems__", "__iter__", "__call__"})
_MAKES = frozenset({"default_rng", "RandomState", "Random"})  # a generator, from fresh entropy when nothing is given
_GLOBAL = {"np.random.seed": "numpy.random", "numpy.random.seed": "numpy.random", "random.seed": "random"}
_ENTROPY = frozenset({"time", "time_ns", "perf_counter", "urandom", "token_bytes", "randbits"})
_MOST = 6
_BUILTINS = frozenset(dir(builtins))
_ON_RANDOM = ("seed", "rng", "rand", "gen", "state", "worker_info", "dataset", "transform")


def generator_lines(file: str, name: str, line: int = 0) -> list[Site]:
    """Lines that make `self.<name>` and those that draw from it, in the class around `line`; without a line in every
    class that can fetch an item."""
    attribute = name.rpartition(".")[2]
    made: list[Site] = []
    drawn: list[Site] = []
    for owner in _classes(file, line):
        for function in (n for n in owner.body if isinstance(n, ast.FunctionDef)):
            for node in walk(function):
                if not isinstance(node, ast.Attribute) or node.attr != attribute or last_name(node.value) != "self":
                    continue
                site = Site(file, node.lineno, function.name)
                if isinstance(node.ctx, ast.Store):
                    made.append(site)
                elif function.name != "__init__":
                    drawn.append(site)
    return [*made, *drawn][:_MOST] if made else []


def _classes(file: str, line: int) -> Iterator[ast.ClassDef]:
    tree = parsed(file) if file else None
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef):
            fetches = any(isinstance(part, ast.FunctionDef) and part.name in _ENTRIES for part in node.body)
            if node.lineno <= line <= (node.end_lineno or node.lineno) or (not line and fetches):
                yield node


def seeding_lines(reader: Site) -> list[Site]:
    """Lines that make or seed a generator in the function that a worker reads from."""
    function = enclosing_function(reader.file, reader.line) if reader.file else None
    calls = (n for n in walk(function) if isinstance(n, ast.Call)) if function is not None else ()
    made = [n for n in calls if _seeds(last_name(n.func)) or last_name(n.func) == "Generator"]
    return [Site(reader.file, node.lineno, reader.function) for node in made][:_MOST]


def _seeds(name: str) -> bool:
    """Whether what is called so makes a generator or seeds one."""
    return name in _MAKES or "seed" in words(name)


def init_fn_lines(made: Site) -> list[Site]:
    """The line that gives the loader made at `made` its `worker_init_fn`, and the lines in that function that seed."""
    given = [k.value for call in calls_at(*made.key()) for k in call.keywords if k.arg == "worker_init_fn"]
    found = [Site(made.file, value.lineno, made.function) for value in given]
    for function in _init_fns(made):
        for call in (n for n in walk(function) if isinstance(n, ast.Call)):
            if _seeds(last_name(call.func)):
                found.append(Site(made.file, call.lineno, function.name))
    return found[:_MOST]


def seeds_nothing(made: Site) -> bool:
    """Whether the `worker_init_fn` of a loader is in its file, says nothing of random numbers or of the data set, and
    calls no function of the program's own, which might."""
    functions = list(_init_fns(made))
    nodes = [n for function in functions for n in walk(function)]
    names = [w.lower() for n in nodes if (w := getattr(n, "attr", getattr(n, "id", "")))]
    own = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id not in _BUILTINS]
    return bool(functions) and not own and not any(word in name for name in names for word in _ON_RANDOM)


def _init_fns(made: Site) -> Iterator[Function]:
    """The functions given as `worker_init_fn` on the line, or anywhere in the file; `partial(f, ...)` is f."""
    given = [k.value for call in calls_at(*made.key()) for k in call.keywords if k.arg == "worker_init_fn"]
    values = given or meanings(made.file, "worker_init_fn")
    names = {last_name(v.args[0] if isinstance(v, ast.Call) and v.args else v) for v in values}
    tree = parsed(made.file)
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in names:
            yield node


def unseeded(made: Site) -> tuple[Site, str] | None:
    """Where a `worker_init_fn` takes fresh entropy or the time, whatever happens; and the name of what it seeds: an
    attribute, or "numpy.random" and "random" for the global generators."""
    for function in _init_fns(made):
        for statement in function.body:
            if not isinstance(statement, (ast.Assign, ast.Expr)) or not isinstance(statement.value, ast.Call):
                continue
            call = statement.value
            if not _is_fresh(call):
                continue
            site = Site(made.file, statement.lineno, function.name)
            if isinstance(statement, ast.Assign) and last_name(call.func) in _MAKES:
                return site, last_name(statement.targets[0])
            if (seeds := ast.unparse(call.func)) in _GLOBAL:
                return site, _GLOBAL[seeds]
    return None


def _is_fresh(call: ast.Call) -> bool:
    """`default_rng()`, `seed(None)`, `seed(int(time.time()) + worker)`"""
    given = [*call.args, *(k.value for k in call.keywords)]
    asked = {last_name(n.func) for value in given for n in walk(value) if isinstance(n, ast.Call)}
    return not given or (len(given) == 1 and _is_none(given[0])) or bool(asked & _ENTROPY)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def seeded_at(made: Site) -> Site | None:
    """Where the file of a loader seeds torch, outside of the `worker_init_fn`: itself, or by a function of that name
    (`seed_everything(7)`).  A generator of its own that makes the data is no such seed."""
    tree = parsed(made.file)
    inside = {id(n) for function in _init_fns(made) for n in walk(function)}
    for node in walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Call) or id(node) in inside or _is_fresh(node):
            continue
        own = isinstance(node.func, ast.Name) and "seed" in words(node.func.id)
        if own or ast.unparse(node.func) == "torch.manual_seed":
            return Site(made.file, node.lineno, "")
    return None
