"""What the source says about flags of terminal states: given to an update and never used there, kept and never read,
negated once too often or not at all.

Only names are read; what the program really computes is told by the comparisons of its loss.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from gradledger.audit._code import arguments, last_name, parsed, walk

FLAG = re.compile(
    r"(b_|batch_|mb_)?(dones?|d|terminals?|terminated|terminations?|is_terminal|is_done|not_?dones?|non_?terminal|ended"
    r"|game_?over|is_last|finished)"
    r"(_?(b|batch|t))?$",
    re.IGNORECASE,
)
OPPOSITE = re.compile(r"not_?(done|term|end)|non_?(term|done|end)|masks?$|alive|continues?$")
_TURNING = frozenset({"logical_not", "bitwise_not", "rsub", "invert", "where", "masked_fill", "eq"})
_CASTS = frozenset({"bool", "float", "int", "or", "torch", "np"})
STORES = frozenset(
    {"append", "add", "push", "store", "put", "insert", "remember", "record", "extend", "save", "write"}
)


def scope_of(tree: ast.Module, line: int) -> ast.AST:
    """The function around a line; at module level the outermost loop around it, else the module."""
    functions = [
        n
        for n in walk(tree)
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    if functions:
        return max(functions, key=lambda n: n.lineno)
    loops = [s for s in tree.body if isinstance(s, (ast.For, ast.While)) and s.lineno <= line <= (s.end_lineno or 0)]
    return loops[0] if loops else tree


def unused_flag(file: str, line: int) -> tuple[str, int] | None:
    """A flag of terminal states that the code around `line` is given (as argument, by unpacking a batch, or as a field
    of what the memory keeps) and never reads: its name and line.

    What the environment's own step gave is another thing: it may well decide about the reset in the same loop.
    """
    tree = parsed(file)
    if tree is None:
        return None
    scope = scope_of(tree, line)
    stepped = _stepped(scope)
    given: dict[str, int] = {}
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for argument in arguments(scope):
            given[argument.arg] = argument.lineno
    read: set[str] = set()
    # `s, a, r, d = batch.s, batch.a, batch.r, batch.done` gives the flag a name, and does not use it yet
    unpacked = {id(part) for node in walk(scope) for part in _unpacked(node)}
    stores = {id(part) for node in walk(scope) if _is_store(node) for part in walk(node)}
    unread = unpacked | stores
    named: set[str] = set()
    dropped: dict[str, int] = {}
    for node in walk(scope):
        if isinstance(node, (ast.Assign, ast.For)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) > 3:
                    given |= {n.id: n.lineno for n in target.elts if isinstance(n, ast.Name)}
                    dropped |= dict.fromkeys(_dropped(tree, target), target.lineno)
                elif isinstance(node, ast.Assign) and isinstance(target, ast.Name) and _holds_flag(node.value, stepped):
                    # `end = torch.tensor([m.terminal for m in rows])`: the flag has a name, and is not used yet
                    given[target.id] = target.lineno
                    named.add(target.id)
                    unread |= {id(part) for part in walk(node.value)}
    for node in walk(scope):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read.add(node.id)
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            read.add(last_name(node))
    flags = {n: at for n, at in given.items() if (n in named or FLAG.match(n)) and n not in stepped}
    flags |= _fields_left(tree, read) | dropped
    if not flags or any(n in named or FLAG.match(n) for n in read - stepped):
        return None
    return next(iter(flags.items()))


def _holds_flag(value: ast.expr, stepped: set[str]) -> bool:
    names = {last_name(n) for n in walk(value) if isinstance(n, (ast.Attribute, ast.Subscript, ast.Name))}
    return any(FLAG.match(name) for name in names - stepped)


def _stepped(scope: ast.AST) -> set[str]:
    """Names that hold what `env.step(...)` gave, and what is made of nothing but those."""
    found: set[str] = set()
    for node in walk(scope):
        if not isinstance(node, ast.Assign):
            continue
        names = {n.id for t in node.targets for n in walk(t) if isinstance(n, ast.Name)}
        calls = {last_name(n.func) for n in walk(node.value) if isinstance(n, ast.Call)}
        used = {n.id for n in walk(node.value) if isinstance(n, ast.Name)}
        if calls & {"step", "reset"} or (used and used <= found | _CASTS):
            found |= names
    return found


def _is_store(node: ast.AST) -> bool:
    """`memory.append((s, a, r, s2, done))`"""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STORES


def _dropped(tree: ast.Module, target: ast.Tuple | ast.List) -> list[str]:
    """Flags that `s, a, r, s2, _ = ...` throws away: what the memory was given at that place."""
    places = [i for i, e in enumerate(target.elts) if isinstance(e, ast.Name) and e.id.startswith("_")]
    found = []
    for kept in _stored(tree) if places else ():
        if len(kept) == len(target.elts):
            found += [kept[i] for i in places if FLAG.match(kept[i])]
    return found


def _stored(tree: ast.Module) -> Iterator[list[str]]:
    """The names of what the program puts into a memory, and of the fields of its named tuples."""
    for node in walk(tree):
        if _is_store(node) and isinstance(node, ast.Call):
            args = node.args[0].elts if len(node.args) == 1 and isinstance(node.args[0], ast.Tuple) else node.args
            if len(args) > 3:
                yield [_name_in(a) for a in args]
        elif isinstance(node, ast.Call) and last_name(node.func) == "namedtuple" and len(node.args) == 2:
            fields = words_of(node.args[1])
            if len(fields) > 3:
                yield fields


def _name_in(value: ast.expr) -> str:
    """`done` of `done`, `float(done)`, `[done]`."""
    inner = (n for n in walk(value) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)))
    found = [name for n in inner if (name := last_name(n)) and name not in _CASTS]
    return found[0] if found else ""


def words_of(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace(",", " ").split()
    if isinstance(node, (ast.Tuple, ast.List)):
        return [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return []


def _fields_left(tree: ast.Module, read: set[str]) -> dict[str, int]:
    """Flags among the fields of a record of which the code reads all others but one at most."""
    found: dict[str, int] = {}
    for node in walk(tree):
        if not isinstance(node, (ast.Call, ast.Dict, ast.ClassDef)):
            continue
        fields: list[str] = []
        if isinstance(node, ast.Call) and last_name(node.func) in ("namedtuple", "dict") and node.args:
            fields = words_of(node.args[-1])
        elif isinstance(node, ast.Dict):
            fields = [k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)]
        elif isinstance(node, ast.ClassDef):
            fields = [n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        flags = [f for f in fields if FLAG.match(f) and len(f) > 1]
        others = [f for f in fields if f not in flags]
        if len(flags) == 1 and len(others) >= 3 and sum(f in read for f in others) >= len(others) - 1:
            found[flags[0]] = node.lineno
    return found


def _unpacked(node: ast.AST) -> list[ast.expr]:
    """The right sides of `a, b, c, d = x.a, x.b, x.c, x.d`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return []
    both = [t for t in node.targets if isinstance(t, ast.Tuple) and len(t.elts) == len(node.value.elts) > 3]
    return node.value.elts if both else []


def flags_kept(file: str) -> list[int]:
    """Lines that keep a flag of terminal states: `self.done[i] = d`, `memory.append((s, a, r, s2, done))`."""
    tree = parsed(file)
    lines: set[int] = set()
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and any(isinstance(t, (ast.Subscript, ast.Attribute)) for t in node.targets):
            names = {last_name(n) for n in walk(node) if isinstance(n, (ast.Name, ast.Attribute))}
            if any(len(n) > 1 and FLAG.match(n) for n in names):
                lines.add(node.lineno)
    return sorted(lines)[:6]


def inverted(file: str, line: int) -> bool:
    """Whether a mask of the ends that `line` multiplies with is the wrong way round, by what the source negates: no
    flag anywhere, or one that is called the opposite (`1 - not_done`, `1 - mask`) in the function around it."""
    tree = parsed(file)
    if tree is None:
        return False
    here = [negated(node) for node in walk(scope_of(tree, line))]
    if "opposite" in here or "flag" in here:
        return "opposite" in here
    return not any(negated(node) for node in walk(tree))


def negated(node: ast.AST) -> str:
    """Of `1 - d`, `not done`, `~ended`, `0.0 if end else 1.0`: "flag", or "opposite" for `1 - not_done`; else ""."""
    inside: list[ast.AST] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        if isinstance(node.left, ast.Constant) and node.left.value == 1:
            inside = [node.right]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert)):
        inside = [node.operand]
    elif isinstance(node, ast.IfExp):
        if isinstance(node.body, ast.Constant) and not node.body.value:
            inside = [node.test]
    elif isinstance(node, ast.Compare):
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)) and isinstance(node.comparators[0], ast.Constant):
            inside = [node.left]
    elif isinstance(node, ast.Call) and last_name(node.func) in _TURNING:
        inside = [node]
    names = [last_name(n) for n in nodes_of(inside) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))]
    if any(OPPOSITE.match(name) for name in names):
        return "opposite"
    subtracted = isinstance(node, ast.BinOp) and bool(names)  # `1 - x`, whatever x is called
    return "flag" if subtracted or any(FLAG.match(name) for name in names) else ""


def kept_unread(file: str) -> tuple[str, int, int] | None:
    """A flag that an object keeps (`self.done[i] = d`) and nothing reads: its name, the line that keeps it, and the
    line of a sum over several steps in the same class (0 without one)."""
    tree = parsed(file)
    if tree is None:
        return None
    kept: dict[str, int] = {}
    into: set[int] = set()
    for node in walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in (t for outer in node.targets for t in (outer.elts if isinstance(outer, ast.Tuple) else [outer])):
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
                into.add(id(target.value))
                if len(target.value.attr) > 1 and FLAG.match(target.value.attr):
                    kept.setdefault(target.value.attr, node.lineno)
    loads = (n for n in walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    read = {n.attr for n in loads if id(n) not in into}
    words = {n.value for n in walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}  # getattr
    left = [(name, line) for name, line in kept.items() if name not in read | words]
    if not left:
        return None
    name, line = left[0]
    return name, line, _summed_in(tree, line)


def given_unread(file: str) -> tuple[str, int, list[int]] | None:
    """A flag that a function which stores a transition is given and never reads: its name, the line of the function,
    and those that make what is stored."""
    tree = parsed(file)
    for function in walk(tree) if tree is not None else ():
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        read = {n.id for n in walk(function) if isinstance(n, ast.Name)}
        flags = [a.arg for a in arguments(function) if len(a.arg) > 1 and FLAG.match(a.arg) and a.arg not in read]
        kept = [
            n for n in walk(function) if _is_store(n) for p in walk(n) if isinstance(p, ast.Tuple) and len(p.elts) > 3
        ]
        if flags and kept:
            names = {n.id for n in walk(kept[0]) if isinstance(n, ast.Name)}
            made = [
                n.lineno
                for n in walk(function)
                if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in n.targets)
            ]
            return flags[0], function.lineno, [*made, kept[0].lineno]  # type: ignore[attr-defined]
    return None


def _summed_in(tree: ast.Module, line: int) -> int:
    classes = [n for n in walk(tree) if isinstance(n, ast.ClassDef) and n.lineno <= line <= (n.end_lineno or 0)]
    for node in walk(classes[-1]) if classes else ():
        if isinstance(node, ast.For):
            sums = [n for n in walk(node) if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)]
            if sums and any(isinstance(n, (ast.Pow, ast.Mult)) for n in walk(sums[0].value)):
                return sums[0].lineno
    return 0


def nodes_of(parts: Sequence[ast.AST]) -> list[ast.AST]:
    return [n for part in parts for n in walk(part)]
