"""What the source says about the ends of episodes: flags that are given to an update and never used there, and flags
that count a time limit as an end.

Only names are read; what the program really computes is told by the comparisons of its loss.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed

_FLAG = re.compile(
    r"(b_|batch_|mb_)?(dones?|d|terminals?|terminated|terminations?|is_terminal|is_done|not_?dones?|non_?terminal|ended"
    r"|game_?over|is_last|finished)"
    r"(_?(b|batch|t))?$",
    re.IGNORECASE,
)
_OPPOSITE = re.compile(r"not_?(done|term|end)|non_?(term|done|end)|masks?$|alive|continues?$")
_TURNING = frozenset({"logical_not", "bitwise_not", "rsub", "invert", "where", "masked_fill", "eq"})
_CASTS = frozenset({"bool", "float", "int", "or", "torch", "np"})
_END = re.compile(r"term(inated|ination|inal|s|\b)?", re.IGNORECASE)
_LIMIT = re.compile(r"trunc|time_?limit|timeout|time_?out", re.IGNORECASE)
_STORES = frozenset(
    {"append", "add", "push", "store", "put", "insert", "remember", "record", "extend", "save", "write"}
)


def _scope(tree: ast.Module, line: int) -> ast.AST:
    """The function around a line; at module level the outermost loop around it, else the module."""
    functions = [
        n
        for n in ast.walk(tree)
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
    scope = _scope(tree, line)
    stepped = _stepped(scope)
    given: dict[str, int] = {}
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for argument in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs):
            given[argument.arg] = argument.lineno
    read: set[str] = set()
    # `s, a, r, d = batch.s, batch.a, batch.r, batch.done` gives the flag a name, and does not use it yet
    unpacked = {id(part) for node in ast.walk(scope) for part in _unpacked(node)}
    stores = {id(part) for node in ast.walk(scope) if _is_store(node) for part in ast.walk(node)}
    unread = unpacked | stores
    named: set[str] = set()
    dropped: dict[str, int] = {}
    for node in ast.walk(scope):
        if isinstance(node, (ast.Assign, ast.For)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) > 3:
                    given |= {n.id: n.lineno for n in target.elts if isinstance(n, ast.Name)}
                    dropped |= dict.fromkeys(_dropped(tree, target), target.lineno)
                elif isinstance(node, ast.Assign) and isinstance(target, ast.Name) and _holds_flag(node.value, stepped):
                    # `end = torch.tensor([m.terminal for m in rows])`: the flag has a name, and is not used yet
                    given[target.id] = target.lineno
                    named.add(target.id)
                    unread |= {id(part) for part in ast.walk(node.value)}
    for node in ast.walk(scope):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read.add(node.id)
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            read.add(last_name(node))
    flags = {n: at for n, at in given.items() if (n in named or _FLAG.match(n)) and n not in stepped}
    flags |= _fields_left(tree, read) | dropped
    if not flags or any(n in named or _FLAG.match(n) for n in read - stepped):
        return None
    return next(iter(flags.items()))


def _holds_flag(value: ast.expr, stepped: set[str]) -> bool:
    names = {last_name(n) for n in ast.walk(value) if isinstance(n, (ast.Attribute, ast.Subscript, ast.Name))}
    return any(_FLAG.match(name) for name in names - stepped)


def _stepped(scope: ast.AST) -> set[str]:
    """Names that hold what `env.step(...)` gave, and what is made of nothing but those."""
    found: set[str] = set()
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign):
            continue
        names = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        calls = {last_name(n.func) for n in ast.walk(node.value) if isinstance(n, ast.Call)}
        used = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if calls & {"step", "reset"} or (used and used <= found | _CASTS):
            found |= names
    return found


def _is_store(node: ast.AST) -> bool:
    """`memory.append((s, a, r, s2, done))`"""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STORES


def _dropped(tree: ast.Module, target: ast.Tuple | ast.List) -> list[str]:
    """Flags that `s, a, r, s2, _ = ...` throws away: what the memory was given at that place."""
    places = [i for i, e in enumerate(target.elts) if isinstance(e, ast.Name) and e.id.startswith("_")]
    found = []
    for kept in _stored(tree) if places else ():
        if len(kept) == len(target.elts):
            found += [kept[i] for i in places if _FLAG.match(kept[i])]
    return found


def _stored(tree: ast.Module) -> Iterator[list[str]]:
    """The names of what the program puts into a memory, and of the fields of its named tuples."""
    for node in ast.walk(tree):
        if _is_store(node) and isinstance(node, ast.Call):
            args = node.args[0].elts if len(node.args) == 1 and isinstance(node.args[0], ast.Tuple) else node.args
            if len(args) > 3:
                yield [_name_in(a) for a in args]
        elif isinstance(node, ast.Call) and last_name(node.func) == "namedtuple" and len(node.args) == 2:
            fields = _words_of(node.args[1])
            if len(fields) > 3:
                yield fields


def _name_in(value: ast.expr) -> str:
    """`done` of `done`, `float(done)`, `[done]`."""
    inner = (n for n in ast.walk(value) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)))
    found = [name for n in inner if (name := last_name(n)) and name not in _CASTS]
    return found[0] if found else ""


def _words_of(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace(",", " ").split()
    if isinstance(node, (ast.Tuple, ast.List)):
        return [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return []


def _fields_left(tree: ast.Module, read: set[str]) -> dict[str, int]:
    """Flags among the fields of a record of which the code reads all others but one at most."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Call, ast.Dict, ast.ClassDef)):
            continue
        fields: list[str] = []
        if isinstance(node, ast.Call) and last_name(node.func) in ("namedtuple", "dict") and node.args:
            fields = _words_of(node.args[-1])
        elif isinstance(node, ast.Dict):
            fields = [k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)]
        elif isinstance(node, ast.ClassDef):
            fields = [n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        flags = [f for f in fields if _FLAG.match(f) and len(f) > 1]
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
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and any(isinstance(t, (ast.Subscript, ast.Attribute)) for t in node.targets):
            names = {last_name(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))}
            if any(len(n) > 1 and _FLAG.match(n) for n in names):
                lines.add(node.lineno)
    return sorted(lines)[:6]


def inverted(file: str, line: int) -> bool:
    """Whether a mask of the ends that `line` multiplies with is the wrong way round, by what the source negates: no
    flag anywhere, or one that is called the opposite (`1 - not_done`, `1 - mask`) in the function around it."""
    tree = parsed(file)
    if tree is None:
        return False
    here = [_negated(node) for node in ast.walk(_scope(tree, line))]
    if "opposite" in here or "flag" in here:
        return "opposite" in here
    return not any(_negated(node) for node in ast.walk(tree))


def _negated(node: ast.AST) -> str:
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
    names = [last_name(n) for n in _nodes(inside) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))]
    if any(_OPPOSITE.match(name) for name in names):
        return "opposite"
    subtracted = isinstance(node, ast.BinOp) and bool(names)  # `1 - x`, whatever x is called
    return "flag" if subtracted or any(_FLAG.match(name) for name in names) else ""


def kept_unread(file: str) -> tuple[str, int, int] | None:
    """A flag that an object keeps (`self.done[i] = d`) and nothing reads: its name, the line that keeps it, and the
    line of a sum over several steps in the same class (0 without one)."""
    tree = parsed(file)
    if tree is None:
        return None
    kept: dict[str, int] = {}
    into: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in (t for outer in node.targets for t in (outer.elts if isinstance(outer, ast.Tuple) else [outer])):
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
                into.add(id(target.value))
                if len(target.value.attr) > 1 and _FLAG.match(target.value.attr):
                    kept.setdefault(target.value.attr, node.lineno)
    loads = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    read = {n.attr for n in loads if id(n) not in into}
    words = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}  # getattr
    left = [(name, line) for name, line in kept.items() if name not in read | words]
    if not left:
        return None
    name, line = left[0]
    return name, line, _summed_in(tree, line)


def _summed_in(tree: ast.Module, line: int) -> int:
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.lineno <= line <= (n.end_lineno or 0)]
    for node in ast.walk(classes[-1]) if classes else ():
        if isinstance(node, ast.For):
            sums = [n for n in ast.walk(node) if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)]
            if sums and any(isinstance(n, (ast.Pow, ast.Mult)) for n in ast.walk(sums[0].value)):
                return sums[0].lineno
    return 0


@dataclass(frozen=True, slots=True)
class Backwards:
    """A loop that runs back through time and carries a discounted sum, and is given a flag of terminal states that it
    never reads.  `line`: where the sum is carried on."""

    loop: int
    line: int
    flag: str
    flag_line: int


def carried_through(file: str, line: int) -> Backwards | None:
    """Such a loop in the function around `line`, or in one of the same file that this function calls by name."""
    tree = parsed(file)
    if tree is None:
        return None
    scope = _scope(tree, line)
    called = {last_name(n.func) for n in ast.walk(scope) if isinstance(n, ast.Call)}
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for function in functions:
        if function is scope or function.name in called:
            found = _carries(function)
            if found is not None:
                return found
    return None


def _carries(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Backwards | None:
    loops = [n for n in ast.walk(function) if isinstance(n, ast.For) and _back_in_time(n.iter)]
    if len(loops) != 1:
        return None
    loop = loops[0]
    body = [n for part in loop.body for n in ast.walk(part)]
    carried = next((n.lineno for n in body if isinstance(n, ast.Assign) and _discounts_itself(n)), None)
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    given = {a.arg: a.lineno for a in arguments}
    given |= {n.id: n.lineno for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    flags = {name: at for name, at in given.items() if len(name) > 1 and _FLAG.match(name)}
    walked = {n.id for n in ast.walk(loop.iter) if isinstance(n, ast.Name)}
    if walked & flags.keys():  # `for r, d in zip(rewards, dones)`: one of its letters is the flag
        flags |= {name: at for name, at in given.items() if _FLAG.match(name)}
    heads = {id(n) for n in ast.walk(loop.iter)}
    read = {
        last_name(n)
        for n in ast.walk(function)
        if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Load)
        if id(n) not in heads
    }
    if carried is None or not flags or any(_FLAG.match(name) for name in read):
        return None
    flag = next(iter(flags))
    return Backwards(loop.lineno, carried, flag, flags[flag])


def _back_in_time(over: ast.expr) -> bool:
    """`reversed(...)`, `x[::-1]` or `range(n - 1, -1, -1)` somewhere in what a loop walks."""
    for node in ast.walk(over):
        if isinstance(node, ast.Call) and last_name(node.func) == "reversed":
            return True
        step = node.step if isinstance(node, ast.Slice) else None
        if isinstance(node, ast.Call) and last_name(node.func) == "range" and len(node.args) == 3:
            step = node.args[2]
        if isinstance(step, ast.UnaryOp) and isinstance(step.op, ast.USub):
            return True
    return False


def _discounts_itself(node: ast.Assign) -> bool:
    """`run = delta + gamma * lam * run`"""
    if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return False
    name = node.targets[0].id
    products = [n for n in ast.walk(node.value) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)]
    return any(isinstance(m, ast.Name) and m.id == name for n in products for m in ast.walk(n))


@dataclass(frozen=True, slots=True)
class Shifted:
    """Flags of step t beside the values of step t + 1, in a loop back through time whose last step has a flag of its
    own, `last`."""

    line: int
    flag: str
    last: str
    last_line: int


def one_step_off(file: str, line: int) -> Shifted | None:
    """Such a loop in the function around `line`, or in one of the same file that this function calls by name."""
    tree = parsed(file)
    if tree is None:
        return None
    scope = _scope(tree, line)
    called = {last_name(n.func) for n in ast.walk(scope) if isinstance(n, ast.Call)}
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if function is scope or function.name in called or _around(function, line):
                for branch in ast.walk(function):
                    found = _shifted(branch) if isinstance(branch, (ast.If, ast.IfExp)) else None
                    if found is not None:
                        return found
    for branch in ast.walk(scope) if isinstance(scope, (ast.For, ast.While, ast.Module)) else ():
        found = _shifted(branch) if isinstance(branch, (ast.If, ast.IfExp)) else None
        if found is not None:
            return found
    return None


def _around(function: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> bool:
    return function.lineno <= line <= (function.end_lineno or function.lineno)


def _shifted(branch: ast.If | ast.IfExp) -> Shifted | None:
    """`if t == T - 1: c, v = 1 - next_done, next_value`, `else: c, v = 1 - dones[t], values[t + 1]`"""
    loops = {n.id for n in ast.walk(branch.test) if isinstance(n, ast.Name)}
    then = branch.body if isinstance(branch.body, list) else [branch.body]
    other = branch.orelse if isinstance(branch.orelse, list) else [branch.orelse]
    for last, usual in ((then, other), (other, then)):
        alone = [n for n in _nodes(last) if isinstance(n, (ast.Name, ast.Attribute)) and _ends(n)]
        if any(isinstance(n, ast.Subscript) and _ends(n) for n in _nodes(last)) or not alone:
            continue
        indexed = [n for n in _nodes(usual) if isinstance(n, ast.Subscript)]
        flags = [n for n in indexed if _ends(n) and isinstance(n.slice, ast.Name) and n.slice.id in loops]
        nexts = [n for n in indexed if not _ends(n) and _next_of(n.slice, loops)]
        if flags and nexts and not any(_ends(n) and _next_of(n.slice, loops) for n in indexed):
            return Shifted(flags[0].lineno, last_name(flags[0].value), last_name(alone[0]), alone[0].lineno)
    return None


def _nodes(parts: Sequence[ast.AST]) -> list[ast.AST]:
    return [n for part in parts for n in ast.walk(part)]


def _ends(node: ast.Name | ast.Attribute | ast.Subscript) -> bool:
    """Whether a name, or what is indexed, is called a flag of the end: `next_done`, `dones[t]`."""
    name = last_name(node.value if isinstance(node, ast.Subscript) else node)
    return len(name) > 1 and bool(_FLAG.match(name.removeprefix("next_").removeprefix("last_")))


def _next_of(index: ast.expr, loops: set[str]) -> bool:
    """`t + 1`"""
    if not isinstance(index, ast.BinOp) or not isinstance(index.op, ast.Add):
        return False
    one = [n for n in (index.left, index.right) if isinstance(n, ast.Constant) and n.value == 1]
    return bool(one) and any(isinstance(n, ast.Name) and n.id in loops for n in (index.left, index.right))


@dataclass(frozen=True, slots=True)
class Limit:
    """`done = terminated or truncated`, kept for learning: its line, the name of the result, where it is kept.
    `alone`: the time limit itself is kept, and not what `env.step` says of the end."""

    line: int
    name: str
    kept: int
    alone: bool = False


def limits_as_ends(file: str) -> list[Limit]:
    """Lines that make one flag of end and time limit and keep it, in functions that use the two for nothing else."""
    tree = parsed(file)
    found: list[Limit] = []
    for scope in _scopes(tree) if tree is not None else ():
        pairs = list(_five(scope))
        found += [limit for line, end, cut in pairs if (limit := _cut_kept(scope, line, end, cut)) is not None]
        known = {frozenset((end, cut)) for _, end, cut in pairs}
        joined = [(node, names) for node in _own(scope) if (names := _joined(node, known)) is not None]
        if not joined or _used_otherwise(scope, [n for n, _ in joined], {x for _, pair in joined for x in pair}):
            continue
        for node, _ in joined:
            limit = _kept(scope, node)
            if limit is not None:
                found.append(limit)
    return found


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a scope, without those of functions inside it."""
    queue = list(ast.iter_child_nodes(scope))
    for node in queue:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            queue.extend(ast.iter_child_nodes(node))


def _five(scope: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line and names of end and time limit where `obs, reward, end, cut, info = env.step(...)`."""
    for node in _own(scope):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and len(target.elts) == 5 and last_name(node.value.func) == "step":
                end, cut = target.elts[2], target.elts[3]
                if isinstance(end, ast.Name) and isinstance(cut, ast.Name) and not cut.id.startswith("_"):
                    yield node.lineno, end.id, cut.id


def _cut_kept(scope: ast.AST, line: int, end: str, cut: str) -> Limit | None:
    """A memory that is given the time limit of a step and nothing of its end."""
    for node in _own(scope):
        if not isinstance(node, ast.Call) or last_name(node.func) not in _STORES:
            continue
        given = (*node.args, *(k.value for k in node.keywords))
        names = {n.id for value in given for n in ast.walk(value) if isinstance(n, ast.Name)}
        if cut in names and end not in names and len(names) > 3:
            return Limit(line, cut, node.lineno, alone=True)
    return None


def _joined(node: ast.AST, known: set[frozenset[str]]) -> tuple[str, str] | None:
    """The names of end and time limit that an expression joins by "or".  `known`: pairs of them under any name."""
    sides: list[ast.expr] = []
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and len(node.values) == 2:
        sides = node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [node.left, node.right]
    elif isinstance(node, ast.Call) and last_name(node.func) == "logical_or" and len(node.args) == 2:
        sides = node.args
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
    inside = {id(n) for join in joins for n in ast.walk(join)}
    return any(
        isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names and id(n) not in inside
        for n in _own(scope)
    )


def _kept(scope: ast.AST, join: ast.AST) -> Limit | None:
    """Where the joined flag is put into a memory: by way of a name, or at once."""
    name, line = "", getattr(join, "lineno", 0)
    for node in _own(scope):
        if isinstance(node, ast.Assign) and any(n is join for n in ast.walk(node.value)):
            name = next((last_name(t) for t in node.targets), "")
    for node in _own(scope):
        if not isinstance(node, ast.Call) or last_name(node.func) not in _STORES:
            continue
        for argument in (*node.args, *(k.value for k in node.keywords)):
            inner = list(ast.walk(argument))
            if any(n is join for n in inner) or (name and any(isinstance(n, ast.Name) and n.id == name for n in inner)):
                return Limit(line, name, node.lineno)
    return None
