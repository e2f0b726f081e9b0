"""Flags that count a time limit as the end of an episode, read from the text: `terminated or truncated` in the memory,
the time limit alone, or an end in which the program's own `step` has put it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from gradledger.audit._clocks import Folded, folded, gives_clock
from gradledger.audit._code import arguments, last_name, parsed, scopes_of, walk
from gradledger.audit._iterators import own_nodes
from gradledger.audit._terminals import FLAG, OPPOSITE, STORES

_END = re.compile(r"term(inated|ination|inal|s|\b)?", re.IGNORECASE)
_EITHER = frozenset({"logical_or", "bitwise_or", "maximum", "max"})
_LIMIT = re.compile(r"trunc|time_?limit|timeout|time_?out", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limit:
    """`done = terminated or truncated`, kept for learning: its line, the name of the result, where it is kept.
    `alone`: the time limit itself is kept, and not what `env.step` says of the end; `proved`: the program's own `step`
    makes the time limit of a count of steps that the agent does not see."""

    line: int
    name: str
    kept: int
    alone: bool = False
    proved: bool = False


def limits_as_ends(file: str) -> list[Limit]:
    """Lines that make one flag of end and time limit and keep it, in functions that use the two for nothing else."""
    tree = parsed(file)
    found: list[Limit] = []
    if tree is None:
        return found
    clock, inside, records = gives_clock(tree), folded(tree), _records(tree)
    for scope in scopes_of(tree):
        steps = list(_steps(scope))
        pairs = [step[:3] for step in steps if step[3] == 5]
        found += [limit for line, end, cut in pairs if (limit := _cut_kept(scope, line, end, cut)) is not None]
        found += _folded_kept(scope, inside)
        # the order of five values is gymnasium's; a `step` of the program's own may give anything
        known = {frozenset((end, cut)) for _, end, cut, given in steps if clock or (given == 5 and clock is None)}
        joined = [(node, names) for node in own_nodes(scope) if (names := either(node, known)) is not None]
        if not joined or _used_otherwise(scope, [n for n, _ in joined], {x for _, pair in joined for x in pair}):
            continue
        for node, _ in joined:
            limit = _kept(scope, node, records)
            if limit is not None:
                found.append(replace(limit, proved=bool(clock)))
    return found


def _steps(scope: ast.AST) -> Iterator[tuple[int, str, str, int]]:
    """Line, names of end and time limit, and how many values are taken: `s, r, end, cut, info = env.step(...)`, with or
    without `info`."""
    for node in own_nodes(scope):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and len(target.elts) in (4, 5) and last_name(node.value.func) == "step":
                end, cut = target.elts[2], target.elts[3]
                if isinstance(end, ast.Name) and isinstance(cut, ast.Name) and not cut.id.startswith("_"):
                    yield node.lineno, end.id, cut.id, len(target.elts)


def _cut_kept(scope: ast.AST, line: int, end: str, cut: str) -> Limit | None:
    """A memory that is given the time limit of a step and nothing of its end."""
    for kept, names in _given(scope):
        if cut in names and end not in names:
            return Limit(line, cut, kept, alone=True)
    return None


def _folded_kept(scope: ast.AST, inside: list[Folded]) -> Iterator[Limit]:
    """A memory that is given the end of `env.step`, in which the program's own `step` has put a time limit, and no
    other flag of that step."""
    for node in own_nodes(scope) if inside else ():
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        target, called = node.targets[0], last_name(node.value.func)
        for fold in inside:
            if isinstance(target, ast.Tuple) and (called, len(target.elts)) == (fold.function, fold.values):
                name = last_name(target.elts[fold.place])
                others = {last_name(t) for t in target.elts[2:]} - {name}
                yield from (
                    Limit(fold.line, name, line, proved=True)
                    for line, names in _given(scope)
                    if name in names and not others & names
                )


def _given(scope: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """Calls that put a transition into a memory: the line, and the names that it is made of."""
    for node in own_nodes(scope):
        if isinstance(node, ast.Call) and last_name(node.func) in STORES:
            given = (*node.args, *(k.value for k in node.keywords))
            names = {n.id for value in given for n in walk(value) if isinstance(n, ast.Name)}
            if len(names) > 3:
                yield node.lineno, names


def either(node: ast.AST, known: Collection[frozenset[str]] = ()) -> tuple[str, str] | None:
    """The names of end and time limit that an expression joins by "or".  `known`: pairs of them under any name."""
    sides: list[ast.expr] = []
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and len(node.values) == 2:
        sides = node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [node.left, node.right]
    elif isinstance(node, ast.Call) and last_name(node.func) in _EITHER:
        owner = node.func.value if isinstance(node.func, ast.Attribute) and len(node.args) == 1 else None
        sides = [*([owner] if owner is not None else []), *node.args]
    names = [last_name(side) for side in sides]
    if len(names) != 2 or not all(names):
        return None
    if frozenset(names) in known:
        return names[0], names[1]
    for end, limit in (names, reversed(names)):
        if _END.match(end) and _LIMIT.search(limit) and not _LIMIT.search(end):
            return end, limit
    return None


def _used_otherwise(scope: ast.AST, joins: list[ast.AST], names: set[str]) -> bool:
    """Whether end or time limit are read anywhere but in those expressions."""
    inside = {id(n) for join in joins for n in walk(join)}
    return any(
        isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names and id(n) not in inside
        for n in own_nodes(scope)
    )


def _kept(scope: ast.AST, join: ast.AST, records: Collection[str]) -> Limit | None:
    """Where the joined flag is put into a memory or a record: by way of a name, or at once."""
    name, line = "", getattr(join, "lineno", 0)
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign) and any(n is join for n in walk(node.value)) and not _decides(node.value, join):
            name = next((last_name(t) for t in node.targets), "")
    names = {name} if name else set()
    for node in own_nodes(scope):  # `discount = 0.0 if last else gamma`
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp) and names & _names_in(node.value.test):
            if _is_number(node.value.body) or _is_number(node.value.orelse):
                names |= {last_name(t) for t in node.targets}
    for node in own_nodes(scope):
        if not isinstance(node, ast.Call) or last_name(node.func) not in STORES | set(records):
            continue
        for argument in (*node.args, *(k.value for k in node.keywords)):
            if any(n is join for n in walk(argument)) or names & _names_in(argument):
                return Limit(line, name, node.lineno)
    return None


def _names_in(node: ast.AST) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name)}


def _records(tree: ast.Module) -> set[str]:
    """Names of the file's classes of plain records: NamedTuple, namedtuple, dataclass."""
    found = set()
    for node in walk(tree):
        if isinstance(node, ast.ClassDef):
            decorators = {last_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list}
            if "dataclass" in decorators or "NamedTuple" in {last_name(b) for b in node.bases}:
                found.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if last_name(node.value.func) == "namedtuple":
                found |= {last_name(t) for t in node.targets}
    return found


def _decides(value: ast.expr, join: ast.AST) -> bool:
    """`env.reset() if end or limit else after`: what is assigned is no flag."""
    tests = (n.test for n in walk(value) if isinstance(n, ast.IfExp) and not _is_number(n.body))
    return any(n is join for test in tests for n in walk(test))


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


@dataclass(frozen=True, slots=True)
class Always:
    """A function that is given whether an episode ended (`name`) and writes on `line`, without a look, that it did."""

    line: int
    name: str
    called: int


def written_always(file: str) -> Always | None:
    """`def close(self, terminated): self.done[self.n - 1] = 1.0`, which is not always called with a plain True."""
    tree = parsed(file)
    for function in walk(tree) if tree is not None else ():
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        names = [a.arg for a in arguments(function)]
        nodes = list(walk(function))
        read = {n.id for n in nodes if isinstance(n, ast.Name)}
        flags = [n for n in names if n not in read and (FLAG.match(n) or _LIMIT.search(n)) and not OPPOSITE.match(n)]
        writes = [n.lineno for n in nodes if isinstance(n, ast.Assign) and _writes_end(n)]
        if not flags or len(writes) != 1:
            continue
        place = names.index(flags[0]) - (names[0] in ("self", "cls"))
        for call in walk(tree or function):
            if isinstance(call, ast.Call) and last_name(call.func) == function.name:
                given = [k.value for k in call.keywords if k.arg == flags[0]] or call.args[place : place + 1]
                if given and not (isinstance(given[0], ast.Constant) and given[0].value):
                    return Always(writes[0], flags[0], call.lineno)
    return None


def _writes_end(node: ast.Assign) -> bool:
    """`self.done[i] = 1.0`, `rows[-1]["done"] = True`, `rows[-1].done = True`; what an object says of itself is no
    memory."""
    target = node.targets[0]
    if not isinstance(node.value, ast.Constant) or node.value.value not in (1, True):
        return False
    if isinstance(target, ast.Attribute) and not isinstance(target.value, ast.Subscript):
        return False
    name = last_name(target) or (last_name(target.value) if isinstance(target, ast.Subscript) else "")
    return len(name) > 1 and bool(FLAG.match(name)) and not OPPOSITE.match(name)
