"""Loops that freeze or unfreeze parameters by their names, read from the user's source.

For each statement in such a loop that sets `requires_grad`: the test on the name that guards it, and whether that test
can have been meant to match nothing (an empty list, a switch that is off, a value that the text does not show).
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import calls_at, declared, enclosing_function, meanings
from gradledger.core.site import Site

_WALKS = frozenset({"named_parameters", "parameters"})
CHILDREN = frozenset({"named_children", "named_modules"})
_HELPERS = frozenset(dir(builtins)) | {"re", "fnmatch", "regex"}
_MADE_OF = frozenset({"compile", "tuple", "list", "set", "frozenset"})  # `re.compile(text)`, `tuple(names)`
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp)
_DEPTH = 3


@dataclass(frozen=True, slots=True)
class FlagStatement:
    """One statement of a loop body that sets `requires_grad`.  `line`: its line; `test`: the condition on the name in
    words of the program, "" when it is not guarded; `test_line`; `sure`: the test only asks for names that the program
    spells out, so that "never true" is no choice of a configuration; `by_value`: the name test is the value that is set
    (`p.requires_grad = "head" in name`); `negated`: that value is true for every name when the pattern matches none;
    `whole`: one name is asked for by `==`, wherever it comes from."""

    line: int
    test: str
    test_line: int
    sure: bool
    by_value: bool = False
    negated: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class FlagLoop:
    """A loop over parameters whose body sets `requires_grad`.  `last`: its last line."""

    line: int
    last: int
    statements: tuple[FlagStatement, ...]


def flag_loop(site: Site) -> FlagLoop | None:
    """The loop whose head is on the line, if it walks parameters and sets `requires_grad`."""
    tree = parsed(site.file)
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.For) and node.lineno <= site.line <= (node.iter.end_lineno or node.lineno):
            if not _walks_parameters(node.iter):
                continue
            statements = tuple(_statements(node, site))
            return FlagLoop(node.lineno, node.end_lineno or node.lineno, statements) if statements else None
    return _chosen_by_name(tree, site) if tree is not None else None


def _chosen_by_name(tree: ast.Module, site: Site) -> FlagLoop | None:
    """`chosen = [p for n, p in model.named_parameters() if TEST]` on the line, and a loop over it that sets
    `requires_grad`; or a comprehension that sets it itself."""
    for scope in [tree, *(n for n in walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))]:
        for statement in scope.body:
            if not statement.lineno <= site.line <= (statement.end_lineno or statement.lineno):
                continue
            for made in walk(statement):
                if isinstance(made, _COMPREHENSIONS) and len(made.generators) == 1 and made.generators[0].ifs:
                    if _walks_parameters(made.generators[0].iter):
                        found = tuple(_set_in(made, statement, scope.body, site))
                        if found:
                            return FlagLoop(statement.lineno, found[-1].line, found)
    return None


def _set_in(
    made: ast.ListComp | ast.GeneratorExp | ast.SetComp, statement: ast.stmt, body: list[ast.stmt], site: Site
) -> Iterator[FlagStatement]:
    part = made.generators[0]
    bound = {n.id for n in walk(part.target) if isinstance(n, ast.Name)}
    sure = all(_spelled_out(t, bound, site) for t in part.ifs) and any(_asks_name(t, bound) for t in part.ifs)
    test = part.ifs[-1]
    if _flag_value(ast.Expr(made.elt)) is not None:
        yield FlagStatement(made.elt.lineno, ast.unparse(test), test.lineno, sure)
    if not isinstance(statement, ast.Assign) or statement.value is not made:
        return
    names = {last_name(t) for t in statement.targets}
    for later in body:
        if isinstance(later, ast.For) and later.lineno > statement.lineno and last_name(later.iter) in names:
            for tests, inner in _guarded(later.body, ()):
                if not tests and _flag_value(inner) is not None:
                    yield FlagStatement(inner.lineno, ast.unparse(test), test.lineno, sure)


def child_loops(file: str, ran: set[int]) -> Iterator[tuple[Site, FlagLoop]]:
    """Loops over named submodules that set `requires_grad`, at the top of a scope in which a line of `ran` follows."""
    tree = parsed(file)
    if tree is None:
        return
    for scope in [tree, *(n for n in walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))]:
        name = getattr(scope, "name", "<module>")
        inside = [n for n in scope.body if not isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
        # straight-line code: a loop at the top of a scope ran when something after it did
        for node in inside:
            if not isinstance(node, ast.For) or not _walks_children(node.iter):
                continue
            later = [n for n in inside if n.lineno > (node.end_lineno or node.lineno)]
            if not any(n.lineno <= line <= (n.end_lineno or n.lineno) for n in later for line in ran):
                continue
            site = Site(file, node.lineno, name)
            statements = tuple(_statements(node, site))
            if statements:
                yield site, FlagLoop(node.lineno, node.end_lineno or node.lineno, statements)


def child_loop(site: Site) -> FlagLoop | None:
    """The loop over named submodules on this line, where it sets `requires_grad`."""
    for node in walk(parsed(site.file) or ast.Module([], [])):
        if isinstance(node, ast.For) and node.iter.lineno == site.line and _walks_children(node.iter):
            statements = tuple(_statements(node, site))
            return FlagLoop(node.lineno, node.end_lineno or node.lineno, statements) if statements else None
    return None


def _walks_children(over: ast.expr) -> bool:
    return isinstance(over, ast.Call) and last_name(over.func) in CHILDREN


def _walks_parameters(over: ast.expr) -> bool:
    return any(isinstance(n, ast.Call) and last_name(n.func) in _WALKS for n in walk(over))


def _statements(loop: ast.For, site: Site) -> Iterator[FlagStatement]:
    bound = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    for tests, statement in _guarded(loop.body, ()):
        value = _flag_value(statement)
        if value is None:
            continue
        if tests:
            test = tests[-1]
            sure = all(_spelled_out(t, bound, site) for t in tests) and any(_asks_name(t, bound) for t in tests)
            whole = len(tests) == 1 and _is_one_name(test, bound)
            yield FlagStatement(statement.lineno, ast.unparse(test), test.lineno, sure, whole=whole)
        elif not isinstance(value, ast.Constant) and _asks_name(value, bound):
            negated = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
            negated = negated or (isinstance(value, ast.Compare) and isinstance(value.ops[0], (ast.NotIn, ast.NotEq)))
            inner = value.operand if isinstance(value, ast.UnaryOp) else value
            sure = _spelled_out(inner, bound, site, negated=negated)
            yield FlagStatement(statement.lineno, ast.unparse(value), statement.lineno, sure, True, negated)
        else:
            yield FlagStatement(statement.lineno, "", statement.lineno, False)


def _is_one_name(test: ast.expr, bound: set[str]) -> bool:
    """`name == wanted`: one name was asked for, wherever it comes from."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq) or len(test.ops) > 1:
        return False
    sides = (test.left, test.comparators[0])
    names = [isinstance(side, ast.Name) and side.id in bound for side in sides]
    return sum(names) == 1


def _guarded(body: list[ast.stmt], tests: tuple[ast.expr, ...]) -> Iterator[tuple[tuple[ast.expr, ...], ast.stmt]]:
    """(tests that must hold, statement); statements of an `else` are left out: they run when the pattern fails."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _guarded(statement.body, (*tests, statement.test))
            if len(statement.orelse) == 1 and isinstance(statement.orelse[0], ast.If):
                yield from _guarded(statement.orelse, tests)
        elif isinstance(statement, (ast.With, ast.Try)):
            yield from _guarded(statement.body, tests)
        elif isinstance(statement, ast.For) and _walks_parameters(statement.iter):
            yield from _guarded(statement.body, tests)  # the parameters of the submodule that was chosen
        elif isinstance(statement, (ast.Assign, ast.Expr, ast.AugAssign)):
            yield tests, statement


def _flag_value(statement: ast.stmt) -> ast.expr | None:
    """What a statement sets `requires_grad` to; None when it does not."""
    if isinstance(statement, ast.Assign):
        if any(isinstance(t, ast.Attribute) and t.attr == "requires_grad" for t in statement.targets):
            return statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if last_name(call.func) == "requires_grad_":
            return call.args[0] if call.args else ast.Constant(True)
    return None


def _asks_name(test: ast.expr, bound: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in bound for n in walk(test))


def _spelled_out(test: ast.expr, bound: set[str], site: Site, negated: bool = False) -> bool:
    """Whether the test is a positive one on the loop's names, against text that the program spells out."""
    if isinstance(test, ast.BoolOp):
        return all(_spelled_out(v, bound, site, negated) for v in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return False
    turned = isinstance(test, ast.Compare) and any(isinstance(op, (ast.NotIn, ast.NotEq, ast.IsNot)) for op in test.ops)
    if turned and not negated:
        return False
    inner = {
        n.id
        for c in walk(test)
        if isinstance(c, ast.comprehension)
        for n in walk(c.target)
        if isinstance(n, ast.Name)
    }
    for name in _free_names(test):
        root = name.id if isinstance(name, ast.Name) else ""
        if root in bound or root in inner or root in _HELPERS:
            continue
        if not _non_empty(name, site, _DEPTH):
            return False
    return all(_filled(n) for n in walk(test) if isinstance(n, (ast.Tuple, ast.List, ast.Set, ast.Constant)))


def _free_names(test: ast.expr) -> Iterator[ast.Name | ast.Attribute | ast.Subscript]:
    """Names and dotted names that are read; `name.startswith` counts as `name`, `args.prefix` and `config["prefix"]` as
    themselves."""
    queue: list[ast.AST] = [test]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            queue += [node.func.value, *node.args, *(k.value for k in node.keywords)]
        elif isinstance(node, (ast.Name, ast.Attribute)) or (isinstance(node, ast.Subscript) and last_name(node)):
            yield node
        else:
            queue += ast.iter_child_nodes(node)


def _filled(node: ast.AST) -> bool:
    """A literal that can match something: not "", not (), not None or False."""
    if isinstance(node, ast.Constant):
        return bool(node.value) or isinstance(node.value, int)
    return bool(node.elts) if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else False


def _non_empty(name: ast.Name | ast.Attribute | ast.Subscript, site: Site, depth: int) -> bool:
    """Whether every value that the text gives to the name is a literal that can match something."""
    if depth == 0:
        return False
    word = last_name(name)
    function = enclosing_function(site.file, site.line)
    if function is not None and isinstance(name, ast.Name):
        arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        if word in arguments and site.callers:
            return _passed_non_empty(function.name, arguments, word, site, depth)
    values = [*meanings(site.file, word), *_looped(site.file, word)]
    if not isinstance(name, ast.Name):  # args.freeze, config["freeze"]
        values += declared(site.file, word)
    return bool(values) and all(_literal(v, site, depth) for v in values)


def _literal(value: ast.expr, site: Site, depth: int) -> bool:
    if isinstance(value, (ast.Constant, ast.Tuple, ast.List, ast.Set)):
        return _filled(value) and not (isinstance(value, ast.Constant) and value.value is False)
    if isinstance(value, ast.JoinedStr):
        return True
    if isinstance(value, ast.Call) and last_name(value.func) in _MADE_OF and value.args:
        return _literal(value.args[0], site, depth)
    if isinstance(value, _COMPREHENSIONS):  # `[re.compile(p) for p in patterns]`
        part = value.generators[0]
        return len(value.generators) == 1 and not part.ifs and _literal(part.iter, site, depth)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _literal(value.left, site, depth) or _literal(value.right, site, depth)
    if isinstance(value, (ast.Name, ast.Attribute)) or (isinstance(value, ast.Subscript) and last_name(value)):
        return _non_empty(value, site, depth - 1)
    return False


def _looped(file: str, word: str) -> Iterator[ast.expr]:
    """Elements of the literals that a loop variable of that name walks."""
    tree = parsed(file)
    for node in walk(tree) if tree is not None else ():
        if (
            isinstance(node, ast.For)
            and last_name(node.target) == word
            and isinstance(node.iter, (ast.Tuple, ast.List))
        ):
            yield from node.iter.elts


def _passed_non_empty(function: str, arguments: list[str], word: str, site: Site, depth: int) -> bool:
    """Whether the call that led here passes a literal that can match something."""
    caller = site.callers[0]
    above = Site(caller.file, caller.line, caller.function, callers=site.callers[1:])
    position = arguments.index(word) - (1 if arguments and arguments[0] in ("self", "cls") else 0)
    for call in calls_at(caller.file, caller.line):
        if last_name(call.func) != function:
            continue
        given = next((k.value for k in call.keywords if k.arg == word), None)
        if given is None and len(call.args) > position >= 0:
            given = call.args[position]
        if given is None:
            values = meanings(site.file, word)
            return bool(values) and all(_literal(v, site, depth) for v in values)
        return _literal(given, above, depth)
    return False
