"""Is an attribute state that a class carries on by itself, and that the training feels?

Carried on: every value that it is given outside of the constructor comes from the one before (`self.n += 1`,
`self.tau = max(low, self.tau * 0.99)`, `m.mul_(b).add_(g)` on an entry of it).  Felt: what is computed with it is
returned by `forward`, written into tensors or a learning rate, or takes part in what a method makes of its argument
(a normaliser).  A counter that is printed, or compared with a limit, is neither lost nor missed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._first_batch import asks_whether_off, registered, sets, written
from gradledger.audit._source import source_lines
from gradledger.core.events import NotPutBack

RESTORES = re.compile(r"load|restor|resum|set_?(extra_?)?state|^from_|thaw", re.IGNORECASE)
_STATES = re.compile(r"[gs]et_(rng_)?state\b|[gs]etstate\b|bit_generator\b|pickle|__dict__")
_SEEDS = re.compile(r"seed|set_state")
_UNNAMED = re.compile(r"__dict__|\bsetattr\(|\bvars\(|pickle|__setstate__|set_extra_state")
_ANEW = frozenset({"copy_", "zero_", "fill_"})
_LISTS = re.compile(r"_foreach_\w+_$")  # in place
_SAYS = frozenset({"print", "log", "info", "debug", "append", "len", "format", "write", "dict", "list", "tuple"})
_GIVEN = frozenset({"functional_call", "load_state_dict", "vector_to_parameters"})  # a network runs on it
_SAME = frozenset({"int", "float", "round", "abs", "max", "min", "detach", "clone", "item"})
BARE, MIXED = 1, 2  # the value itself; something computed with it


@dataclass(slots=True)
class Use:
    """What a class does with an attribute: the line that makes it, lines that carry it on, whether it is felt."""

    made: int = 0
    carried: list[int] = field(default_factory=list)
    anew: bool = False  # it is given another value, that does not come from its last one
    restored: bool = False  # by what restores a state
    felt: bool = False
    taken_in: bool = False  # what carries it on comes from an argument
    mixed_in: bool = False  # a method mixes it with its argument


def use_of(event: NotPutBack, name: str) -> Use | None:
    """How its class, and the rest of the file, use an attribute; None when it is no state that is carried on."""
    tree = parsed(event.cls_site.file)
    cls = class_of(tree, event) if tree is not None else None
    if tree is None or cls is None:
        return None
    use, methods = Use(), list(methods_of(tree, cls))
    called = _called(tree, event.cls.rpartition(".")[2])
    told: dict[str, int] = {}
    for _ in range(3):  # until what the methods return is known to those that call them
        for method in methods:
            told[method.name] = _Method(method, name, told, Use()).level
    for method in methods:
        one = _Method(method, name, told, use, called)
        use.felt |= event.owner == "module" and method.name in ("forward", "__call__") and one.level == MIXED
    given_outside(tree, methods, name, use)
    normalises = event.owner == "object" and use.taken_in and use.mixed_in and name in event.arrays
    restored = name in event.moved and (use.restored or _by_any_name(event.cls_site.file))
    return use if use.carried and not (use.anew or restored) and (use.felt or normalises) else None


def done_once(event: NotPutBack, name: str) -> tuple[int, int, list[str]] | None:
    """Of a flag behind which a class writes parameters or buffers of its own once, from the first batch: the lines that
    make it and ask for it, and what is written.  None when the program puts the flag back."""
    tree = parsed(event.cls_site.file)
    cls = class_of(tree, event) if tree is not None else None
    if tree is None or cls is None or _by_any_name(event.cls_site.file):
        return None
    methods = {m.name: m for m in methods_of(tree, cls)}
    outside, made = Use(), 0
    given_outside(tree, list(methods.values()), name, outside)
    if outside.restored or outside.anew or any(RESTORES.search(m) and sets(methods[m], name) for m in methods):
        return None
    begin = methods.get("__init__")
    kept = {w for n in (walk(begin) if begin is not None else ()) for w in registered(n)}
    for node in walk(begin) if begin is not None else ():
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and sets(node, name):
            made = node.lineno
    for method in methods.values():
        for node in walk(method):
            if not isinstance(node, ast.If) or not asks_whether_off(node.test, name):
                continue
            inside = [n for statement in node.body for n in walk(statement)]
            called = {last_name(n.func) for n in inside if isinstance(n, ast.Call)}
            inside += [n for m in called & methods.keys() for n in walk(methods[m])]
            into = sorted({w for n in inside for w in written(n)} & kept - {name})
            if into and any(sets(n, name) for n in inside):
                return made or node.lineno, node.lineno, into
    return None


def draws_anew(event: NotPutBack, name: str) -> tuple[int, list[int]] | None:
    """Of a generator that its class makes with a seed: the line, and those that draw from it.  None when the program
    seeds it again, puts its state back, or keeps the state of any."""
    tree = parsed(event.cls_site.file)
    cls = class_of(tree, event) if tree is not None else None
    if tree is None or cls is None or any(_STATES.search(line) for line in source_lines(event.cls_site.file)):
        return None
    made, drawn = 0, list[int]()
    for method in methods_of(tree, cls):
        me = method.args.args[0].arg
        for node in walk(method):
            if isinstance(node, ast.Assign) and any(is_own(t, me, name) for t in node.targets):
                if method.name != "__init__" or _is_unseeded(node.value):
                    return None
                made = node.lineno
            elif isinstance(node, ast.Call) and any(is_own(part, me, name) for part in _given_to(node)):
                if isinstance(node.func, ast.Attribute) and _SEEDS.search(node.func.attr):
                    return None
                if method.name != "__init__":
                    drawn.append(node.lineno)
    return (made, drawn) if made and drawn else None


def _is_unseeded(made: ast.expr) -> bool:
    """`default_rng()`, `Random()`: other numbers each time, where a `torch.Generator()` has a seed from the start."""
    return isinstance(made, ast.Call) and not made.args and last_name(made.func) in ("default_rng", "Random")


def _given_to(call: ast.Call) -> list[ast.expr]:
    """What a call is given, and whose method it is."""
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [*call.args, *(k.value for k in call.keywords), *owner]


def is_own(node: ast.AST, me: str, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and last_name(node.value) == me


def _by_any_name(file: str) -> bool:
    """Whether a file gives values to attributes without naming them: what was put back so is not seen in the text."""
    return any(_UNNAMED.search(line) for line in source_lines(file))


def line_that_makes(event: NotPutBack) -> int:
    """The first line that assigns a new object of the class to a name: `self.scale = Scale(4)`."""
    tree = parsed(event.cls_site.file)
    lines = [
        node.lineno
        for node in (walk(tree) if tree is not None else ())
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call)
        if last_name(node.value.func) == event.cls.rpartition(".")[2]
    ]
    return min(lines, default=0)


def _called(tree: ast.Module, cls: str) -> set[str]:
    """Names of methods that the file calls on something which may be of the class: not on names that are only ever
    given the results of other calls (`self.policy = nn.Sequential(...)`)."""
    mine, others = set[str](), set[str]()
    for node in walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {last_name(t) for t in targets if isinstance(t, (ast.Name, ast.Attribute))}
            (mine if last_name(node.value.func) == cls else others).update(names)
    return {
        node.func.attr
        for node in walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if last_name(node.func.value) not in others - mine
    }


def class_of(tree: ast.Module, event: NotPutBack) -> ast.ClassDef | None:
    line, name = event.cls_site.line, event.cls.rpartition(".")[2]
    found = [n for n in walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    return next((n for n in found if n.lineno <= line <= (n.end_lineno or n.lineno)), None)


def methods_of(tree: ast.Module, cls: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Methods of a class and of its bases in the same file."""
    yield from (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.args.args)
    bases = {last_name(base) for base in cls.bases}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in bases and node is not cls:
            yield from methods_of(tree, node)


def given_outside(tree: ast.Module, methods: list[ast.FunctionDef], name: str, use: Use) -> None:
    """What the rest of the program gives to the attribute: `model.tau *= 0.99`, `model.tau = at(step)`."""
    own = {id(n) for method in methods for n in walk(method)}
    for function in walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.Module)):
            continue
        restores = isinstance(function, ast.FunctionDef) and RESTORES.search(function.name) is not None
        for node in _statements(function):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in (t for one in targets for t in (one.elts if isinstance(one, ast.Tuple) else [one])):
                outside = isinstance(target, ast.Attribute) and target.attr == name and id(node) not in own
                use.restored |= outside and restores
                if not outside or last_name(getattr(target, "value", target)) in ("self", "cls") or restores:
                    continue
                parts = walk(node.value) if node.value is not None else ()
                by_itself = any(isinstance(p, ast.Attribute) and p.attr == name for p in parts)
                if isinstance(node, ast.AugAssign) or by_itself:
                    use.carried.append(node.lineno)
                else:
                    use.anew = True


def _statements(function: ast.AST) -> Iterator[ast.Assign | ast.AugAssign | ast.AnnAssign]:
    """Assignments of a function, in order, without those of functions within."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _statements(node)


class _Method:
    """One method, and what becomes of the attribute in it.  `level`: what it returns."""

    def __init__(
        self, method: ast.FunctionDef, name: str, told: dict[str, int], use: Use, called: Container[str] = ()
    ) -> None:
        self.me, self.name, self.told = method.args.args[0].arg, name, told
        self.levels: dict[str, int] = {}
        self.given = {a.arg for a in [*method.args.args[1:], *method.args.kwonlyargs]}
        self.level = 0
        self.use = use
        self.makes = method.name == "__init__"
        self.restores = RESTORES.search(method.name) is not None
        self.called = method.name in called or method.name.startswith("__")
        nodes = [n for n in walk(method) if isinstance(n, (ast.stmt, ast.expr))]
        nodes.sort(key=lambda n: (n.lineno, n.col_offset))
        self.writes = any(self._is_it(n) and not isinstance(n.ctx, ast.Load) for n in nodes if hasattr(n, "ctx"))
        for _ in range(2):  # a name may be used above the line, in a loop
            for node in nodes:
                self._names(node)
        for node in nodes:
            self._look(node)

    # ------------------------------------------------------------------ names

    def _names(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value)
        elif isinstance(node, ast.For):
            zipped = isinstance(node.iter, ast.Call) and last_name(node.iter.func) == "zip"
            parts = node.iter.args if isinstance(node.iter, ast.Call) and zipped else []
            if isinstance(node.target, ast.Tuple) and len(parts) == len(node.target.elts):
                for target, part in zip(node.target.elts, parts, strict=True):
                    self._bind(target, part)
            else:
                self._bind(node.target, node.iter)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) and same else [value] * len(target.elts)
            for one, part in zip(target.elts, parts, strict=True):
                self._bind(one, part)
        elif isinstance(target, ast.Name):
            self.levels[target.id] = max(self.levels.get(target.id, 0), self.of(value))
            if self._from_argument(value):
                self.given.add(target.id)

    def _from_argument(self, value: ast.expr) -> bool:
        return any(isinstance(n, ast.Name) and n.id in self.given for n in walk(value))

    def _is_it(self, node: ast.AST) -> bool:
        return is_own(node, self.me, self.name)

    def of(self, node: ast.expr | None) -> int:
        """Whether an expression is the attribute, or is computed with it."""
        if node is None or isinstance(node, (ast.JoinedStr, ast.Compare, ast.Lambda, ast.Constant)):
            return 0
        if isinstance(node, ast.Name):
            return self.levels.get(node.id, 0)
        if isinstance(node, ast.Attribute):
            if self._is_it(node):
                return BARE
            mine = isinstance(node.value, ast.Name) and node.value.id == self.me
            return self.told.get(node.attr, 0) if mine else self.of(node.value)  # (a property)
        if isinstance(node, ast.Call):
            called = last_name(node.func)
            if called in _SAYS:
                return 0
            parts = [*node.args, *(k.value for k in node.keywords)]
            level = max((self.of(p) for p in (*parts, node.func)), default=0)
            return level if called in _SAME or not any(self.of(p) for p in parts) else MIXED
        if isinstance(node, ast.BinOp):
            return MIXED if max(self.of(node.left), self.of(node.right)) else 0
        if isinstance(node, ast.Subscript):
            return self.of(node.value)
        if isinstance(node, ast.IfExp):
            return max(self.of(node.body), self.of(node.orelse))
        return max((self.of(p) for p in ast.iter_child_nodes(node) if isinstance(p, ast.expr)), default=0)

    # ------------------------------------------------------------------ what becomes of it

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Return):
            self.level = max(self.level, self.of(node.value))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._write(target, node.value, node.lineno)
        elif isinstance(node, ast.AugAssign):
            if self._is_it(node.target):
                self._carry(node.lineno, node.value)
            self._rate(node.target, node.value)
        elif isinstance(node, ast.Call) and last_name(node.func) in _GIVEN:
            self.use.felt |= any(self.of(part) for part in node.args)
        elif isinstance(node, ast.Call) and _LISTS.match(name := last_name(node.func)) and len(node.args) > 1:
            if name.removeprefix("_foreach_") not in _ANEW and self.of(node.args[0]):
                self.use.carried.append(node.lineno)  # of a list: each from its own last value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr.endswith("_") and not node.func.attr.startswith("_"):
                self._in_place(node, node.func)
        elif isinstance(node, ast.BinOp) and not self.writes:
            sides = (node.left, node.right), (node.right, node.left)
            self.use.mixed_in |= any(self.of(a) and self._from_argument(b) for a, b in sides)

    def _write(self, target: ast.expr, value: ast.expr, line: int) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) and same else [value] * len(target.elts)
            for one, part in zip(target.elts, parts, strict=True):
                self._write(one, part, line)
            return
        place = target.value if isinstance(target, ast.Subscript) else target
        if self._is_it(place):
            if self.makes:
                self.use.made = self.use.made or line
            elif self.of(value):
                self._carry(line, value)
            else:
                self._give()
        self._rate(target, value)

    def _give(self) -> None:
        """Another value comes in that does not come from its last one."""
        self.use.restored |= self.restores and self.called
        self.use.anew |= not self.restores

    def _carry(self, line: int, value: ast.expr) -> None:
        self.use.carried.append(line)
        self.use.taken_in |= self._from_argument(value)

    def _rate(self, target: ast.expr, value: ast.expr) -> None:
        """`group["lr"] = base * self.scale`."""
        if isinstance(target, ast.Subscript) and last_name(target) == "lr" and self.of(value):
            self.use.felt = True

    def _in_place(self, call: ast.Call, function: ast.Attribute) -> None:
        root: ast.expr = function.value
        while isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute):
            root = root.func.value
        whole = max((self.of(p) for p in (*call.args, *(k.value for k in call.keywords))), default=0)
        level = self.of(root)
        if not level:
            self.use.felt |= whole > 0
        elif self.makes or level == MIXED:  # (what was computed with it is not it)
            return
        elif function.attr in _ANEW and not whole:
            self._give()
        else:
            self._carry(call.lineno, call)
