"""Where the source of a program stores the tensor that a line makes or walks: `history.append(loss)`, `total += loss`.

The ledger knows that a result of some line is still alive many steps later; the line to edit is the one that keeps it.
That line is read off the source: the name that the result gets, and the statements of the same function that put this
name, bare, into a container, a running value, an attribute or a meter; a returned name is followed to the caller.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from gradledger.audit._code import walk
from gradledger.audit._loops import enclosing_function
from gradledger.audit._source import source_lines
from gradledger.core.site import Frame, Site

# Methods that keep what they are given.
_KEEPS = frozenset(
    {
        "append", "appendleft", "extend", "insert", "add", "update", "put", "push", "store", "save", "log",
        "log_metric", "log_dict", "record", "accumulate", "setdefault", "__setitem__",
        "track", "register", "collect",
    }
)  # fmt: skip
# Calls that make a new object around a tensor and keep its graph.
_WRAPS = frozenset({"dict", "list", "tuple", "float_list", "stack", "cat"})
# Calls whose result has no graph.
_CUTS = frozenset({"detach", "item", "tolist", "numpy", "float", "int", "len", "argmax", "sample", "print"})
_DEPTH = 3


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("\n".join(source_lines(file)) + "\n")
    except (SyntaxError, ValueError, RecursionError):
        return None


def stores(site: Site, *, derived: bool = False) -> tuple[Site, ...]:
    """Lines that keep the tensor which the statement at `site` makes or walks; empty when none is recognised.

    derived: or what the same function computes from it, which keeps its graph.
    """
    found: dict[tuple[str, int], Site] = {}
    frames = [Frame(site.file, site.line, site.function), *site.callers]
    names: set[str] | None = None
    for frame in frames[:_DEPTH]:
        names, lines = _in_frame(frame, names, derived and names is None)
        for line in lines:
            inside = enclosing_function(frame.file, line)
            found.setdefault((frame.file, line), Site(frame.file, line, inside.name if inside else frame.function))
        if not names:
            break
    return tuple(found.values())


def _in_frame(frame: Frame, returned: set[str] | None, derived: bool) -> tuple[set[str], list[int]]:
    """Storing lines of one function.  `returned`: None in the innermost frame; else something was returned to here.
    `derived`: what is computed from it counts like it.  Gives also the names that are returned to the next caller
    (empty: nothing goes on)."""
    tree = _tree(frame.file)
    if tree is None:
        return set(), []
    body = _scope(tree, frame.line)
    statement = _statement(body, frame.line)
    if statement is None:
        return set(), []
    if returned and _stores_call(statement, frame.line):
        return set(), [statement.lineno]
    names = _names_of(statement)
    if not names:
        return set(), []
    if returned is not None:
        names = _with_parts(body, names)
    if derived:
        names = _with_results(body, names)
    lines = sorted({s.lineno for s in _statements(body) if _keeps(s, names)})
    if derived and not lines:
        lines = sorted({line for s in _statements(body) for line in _handed_to_keeper(tree, s, names)})
    goes_on = any(
        isinstance(s, ast.Return) and s.value is not None and _bare(s.value, names) for s in _statements(body)
    )
    direct = isinstance(statement, ast.Return)
    return (names if goes_on or direct else set()), lines


def _with_parts(body: list[ast.stmt], names: set[str]) -> set[str]:
    """`names`, and those that are given a part of them: `for key, value in result.items()`, `loss = result["loss"]`."""
    names = set(names)
    for statement in _statements(body):
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            source, targets = statement.iter, [statement.target]
            if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
                source = source.func.value if source.func.attr in ("items", "values") else source
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.Subscript, ast.Attribute)):
            source, targets = statement.value.value, statement.targets
        else:
            continue
        if isinstance(source, ast.Name) and source.id in names:
            names |= {n.id for t in targets for n in walk(t) if isinstance(n, ast.Name)}
    return names


def _with_results(body: list[ast.stmt], names: set[str]) -> set[str]:
    """`names`, and those that are given something computed from them, unless it is cut off."""
    names = set(names)
    for _ in range(2):  # a loop may use a name above the line that makes it
        for statement in _statements(body):
            if isinstance(statement, ast.Assign) and _computes(statement.value, names):
                names |= {n.id for t in statement.targets for n in walk(t) if isinstance(n, ast.Name)}
    return names


def _computes(node: ast.AST, names: set[str]) -> bool:
    """Whether one of `names` is in an expression other than below a call that cuts its graph off."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _CUTS:
            return False
    return any(_computes(part, names) for part in ast.iter_child_nodes(node))


def _scope(tree: ast.Module, line: int) -> list[ast.stmt]:
    """Body of the innermost function around `line`, or of the module."""
    best: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef = tree
    for node in walk(tree):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.lineno <= line <= (node.end_lineno or node.lineno)
            and (isinstance(best, ast.Module) or node.lineno >= best.lineno)
        ):
            best = node
    return best.body


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a scope, without those of functions and classes inside it."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, part, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)


def _statement(body: list[ast.stmt], line: int) -> ast.stmt | None:
    """The smallest statement that covers `line`."""
    covering = [s for s in _statements(body) if s.lineno <= line <= (s.end_lineno or s.lineno)]
    return min(covering, key=lambda s: (s.end_lineno or s.lineno) - s.lineno, default=None)


def _names_of(statement: ast.stmt) -> set[str]:
    """Names that stand for the result: assigned, or the one on which `.backward()` is called."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {n.id for t in targets for n in walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if isinstance(statement, ast.Return):
        return {n.id for n in walk(statement) if isinstance(n, ast.Name)}
    found: set[str] = set()
    if not isinstance(statement, ast.Expr):
        return found
    for node in walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            found |= {n.id for n in walk(node) if isinstance(n, ast.Name)}
    return found


def _keeps(statement: ast.stmt, names: set[str], whole: bool = True) -> bool:
    """Whether a simple statement puts one of `names`, with its graph, where it stays.  `whole`: as it is, and not only
    what is computed from it."""
    if isinstance(statement, ast.AugAssign):
        return _bare(statement.value, names) and not (
            isinstance(statement.target, ast.Name) and statement.target.id in names
        )
    if isinstance(statement, ast.Assign):
        if any(isinstance(t, (ast.Subscript, ast.Attribute)) for t in statement.targets):
            return _bare(statement.value, names)
        own = {n.id for t in statement.targets for n in walk(t) if isinstance(n, ast.Name)}
        again = {n.id for n in walk(statement.value) if isinstance(n, ast.Name)} & own - names
        return (
            bool(again)
            and isinstance(statement.value, (ast.BinOp, ast.List, ast.IfExp))
            and _bare(statement.value, names)
        )
    if isinstance(statement, ast.Expr):
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _KEEPS
            and any((_bare if whole else _computes)(a, names) for a in (*node.args, *(k.value for k in node.keywords)))
            for node in walk(statement.value)
        )
    return False


def _handed_to_keeper(tree: ast.Module, statement: ast.stmt, names: set[str]) -> list[int]:
    """A call of the program's own function that keeps what it is given, or what it computes from it: its line, and the
    lines that keep it."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return []
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    for function in walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or function.name != name:
            continue
        own = [a.arg for a in function.args.args if a.arg not in ("self", "cls")]
        given = {own[i] for i, a in enumerate(call.args[: len(own)]) if _bare(a, names)}
        given |= {k.arg for k in call.keywords if k.arg in own and _bare(k.value, names)}
        inside = _with_results(function.body, given) if given else given
        kept = [s.lineno for s in _statements(function.body) if inside and _keeps(s, inside, whole=False)]
        if kept:
            return [statement.lineno, *kept]
    return []


def _stores_call(statement: ast.stmt, line: int) -> bool:
    """Whether the result of a call on this line goes straight into a container: `losses.append(train_step(x))`."""
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.value, ast.Call)
    if isinstance(statement, ast.Expr):
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _KEEPS
            and any(isinstance(a, ast.Call) for a in node.args)
            for node in walk(statement.value)
        )
    return False


def _bare(node: ast.AST, names: set[str]) -> bool:
    """Whether one of `names` is in an expression as it is, not through a method, attribute or conversion."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        inner = [*node.args, *(k.value for k in node.keywords)]
        return name in _WRAPS and any(_bare(a, names) for a in inner)
    if isinstance(node, ast.Dict):
        return any(_bare(v, names) for v in node.values)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return any(_bare(e, names) for e in node.elts)
    if isinstance(node, ast.BinOp):
        return _bare(node.left, names) or _bare(node.right, names)
    if isinstance(node, ast.IfExp):
        return _bare(node.body, names) or _bare(node.orelse, names)
    if isinstance(node, (ast.UnaryOp, ast.Starred)):
        return _bare(node.operand if isinstance(node, ast.UnaryOp) else node.value, names)
    return False
