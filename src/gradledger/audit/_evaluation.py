"""Signs in the source that a line evaluates: the names of its functions, of what it walks over, of what it makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePath

from gradledger.audit import _code
from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import _enclosing, loops_around
from gradledger.core.site import Frame, Site, is_installed

_EVALUATES = frozenset(
    {
        "eval", "evaluate", "evaluation", "evaluating", "val", "valid", "validate", "validation", "validating",
        "test", "testing", "tests", "dev", "heldout", "holdout", "accuracy", "acc", "score", "correct", "hits",
        "metric", "metrics", "bench", "benchmark", "unseen",
    }
)  # fmt: skip
_TRAINS = frozenset({"train", "training", "fit", "trainer", "learn"})
_GLUED = re.compile(r"(val|valid|validation|test|dev|eval|train)(set|data|dataset|ds|loader|dl|iter|gen|acc|loss|x|y)$")
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)
_REPEATS = (ast.ListComp, ast.GeneratorExp, ast.For)
_PARTS = frozenset({"modules", "named_modules", "children", "named_children"})


def words(name: str) -> set[str]:
    """`ValLoader`, `x_val`, `testloader`, `evaluate2` -> their words in lower case."""
    found = set(_code.words(name))
    return found | {part for word in found if (glued := _GLUED.match(word)) for part in glued.groups()}


def evaluates(site: Site) -> str:
    """What says that `site` evaluates ("function `evaluate`", "`val_loader`"); "" when nothing does."""
    for frame in (Frame(site.file, site.line, site.function), *site.callers):
        name = frame.function
        if name.startswith("test_") and PurePath(frame.file).name.startswith("test_"):
            continue  # a test of the program, not an evaluation in it
        if name != "forward" and words(name) & _EVALUATES and not words(name) & _TRAINS:
            return f"function `{name}`"
    for loop in loops_around(site):
        for name in _names(loop.over) if loop.over is not None else []:
            if words(name) & _EVALUATES:
                return f"`{name}`"
    for depth, frame in enumerate((Frame(site.file, site.line, site.function), *site.callers)):
        names = [n for part in _statement(frame.file, frame.line) for n in _names(part)]
        found = [n for n in names if words(n) & _EVALUATES]
        # a caller that is given both, `fit(net, train, val)`, says nothing about the line inside
        if found and not (depth and any(words(n) & _TRAINS for n in names)):
            return f"`{found[0]}`"
    return ""


def switched_by_phase(site: Site) -> bool:
    """Whether the line stands in a `with torch.set_grad_enabled(...)` that is on in one phase and off in another."""
    tree = parsed(site.file) if site.file else None
    return any(
        isinstance(node, ast.With)
        and node.lineno <= site.line <= (node.end_lineno or node.lineno)
        and any(
            isinstance(call := item.context_expr, ast.Call)
            and _code.last_name(call.func) == "set_grad_enabled"
            and bool(call.args)
            and not isinstance(call.args[0], ast.Constant)
            for item in node.items
        )
        for node in (walk(tree) if tree is not None else ())
    )


def names_around(site: Site) -> Iterator[tuple[list[str], list[str]]]:
    """Names that the statement of `site` reads, and all of its names; the same of what the loops around it walk; then
    of each line that led there, of which only the calls of what was called count.

    A library names its own ways (`test_step` runs every evaluation), not the data that it is given.
    """
    called = ""
    for frame in (Frame(site.file, site.line, site.function), *site.callers):
        if is_installed(frame.file):
            called = ""
            continue
        parts = _statement(frame.file, frame.line)
        # `print(fitted / len(train), accuracy(net, valid))`
        parts = _calls_of(called, parts) or parts
        called = frame.function
        parts += [
            loop.over for loop in loops_around(Site(frame.file, frame.line, frame.function)) if loop.over is not None
        ]
        for part in parts:
            stored = [n.id for n in walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            names = _names(part)
            yield [name for name in names if name not in stored], names


def repeats_one_input(site: Site) -> bool:
    """Whether the line calls again and again with the same input: `torch.stack([net(x) for _ in range(20)])`."""
    tree = parsed(site.file)
    if tree is None:
        return False
    for node in walk(tree):
        if not isinstance(node, _REPEATS) or not node.lineno <= site.line <= (node.end_lineno or node.lineno):
            continue
        target = node.target if isinstance(node, ast.For) else node.generators[0].target
        over = node.iter if isinstance(node, ast.For) else node.generators[0].iter
        body = node.body if isinstance(node, ast.For) else [node.elt]
        if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Name) or over.func.id != "range":
            continue
        names = {n.id for n in walk(target) if isinstance(n, ast.Name)}
        used = {n.id for part in body for n in walk(part) if isinstance(n, ast.Name)}
        stores = any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) for part in body for n in walk(part))
        if not names & used and not stores:
            return True
        appends = any(isinstance(n, ast.Attribute) and n.attr == "append" for part in body for n in walk(part))
        if not names & used and appends and len(body) == 1:
            return True
    return False


def _calls_of(function: str, parts: list[ast.AST]) -> list[ast.AST]:
    """The calls of a function by its name in a statement, and what the statement gives its results to."""
    nodes = [n for part in parts for n in walk(part)] if function else []
    calls = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == function]
    targets = [t for p in parts if calls and isinstance(p, ast.Assign) for t in p.targets]
    return [*calls, *targets]


def _names(node: ast.AST) -> list[str]:
    found = []
    for part in walk(node):
        if isinstance(part, ast.Name):
            found.append(part.id)
        elif isinstance(part, ast.Attribute):
            # `model.eval()`, `q.test` name methods of a library as often as data
            found.append(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
            found.append(part.value)
    return found


def _statement(file: str, line: int) -> list[ast.AST]:
    """The innermost simple statement on a line."""
    tree = parsed(file)
    found: list[ast.AST] = []
    if tree is not None:
        for node in _enclosing(tree, line):
            if isinstance(node, _SIMPLE):
                found = [node]
    return found


def flags_set(file: str) -> list[ast.Assign]:
    """Statements that give the `training` flag of a module a value by hand."""
    tree = parsed(file)
    sets = [n for n in walk(tree) if isinstance(n, ast.Assign)] if tree is not None else []
    return [n for n in sets if any(isinstance(t, ast.Attribute) and t.attr == "training" for t in n.targets)]


def flags_set_alone(file: str) -> list[int]:
    """Lines that set the `training` flag of one module by hand, outside of loops over its parts; none where no line
    takes it down."""
    tree = parsed(file)
    loops = [n for n in walk(tree) if isinstance(n, ast.For)] if tree is not None else []
    over_parts = [n for n in loops if isinstance(n.iter, ast.Call) and _code.last_name(n.iter.func) in _PARTS]
    parts = {id(inner) for loop in over_parts for inner in walk(loop)}
    found = {
        node.lineno: node.value.value
        for node in flags_set(file)
        if isinstance(node.value, ast.Constant) and id(node) not in parts
    }
    return sorted(found) if False in found.values() else []
