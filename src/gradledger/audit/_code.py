"""Evidence from the source of the user's program: which names a line calls, who is an alias of whom, who updates whom.

Only whole files that events point to are read; a file that cannot be read or parsed gives no evidence.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache

from gradledger.audit._source import source_lines
from gradledger.core.site import Site

# Words by which people call a network that is meant to lag behind another one.
_LAGGING = frozenset(
    {
        "tgt", "delay", "delayed", "ema", "momentum", "slow", "old", "lag", "lagged", "frozen", "shadow", "prev",
        "previous", "avg", "averaged", "average", "ref", "reference", "anchor", "stable", "polyak", "base", "initial",
        "init", "prior", "sft",
    }
)  # fmt: skip
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}


@lru_cache(maxsize=64)
def parsed(file: str) -> ast.Module | None:
    """The syntax tree of a file, None when it cannot be had."""
    lines = source_lines(file) if file else ()
    if not lines:
        return None
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return None


def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """A node and all below it, in the order of `ast.walk`; kept with the node, for rules read the same trees again and
    again."""
    found: tuple[ast.AST, ...] | None = node.__dict__.get("_below")
    if found is None:
        found = node.__dict__["_below"] = tuple(ast.walk(node))
    return found


def scopes_of(tree: ast.Module) -> Iterator[ast.AST]:
    """A file and its functions: what has names of its own."""
    yield tree
    for node in walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """All arguments of a function that have a name of their own, in order."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def last_name(node: ast.expr) -> str:
    """`q`, `self.q`, `agent.nets["q"]` -> "q"; "" for anything that is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    return ""


def names_in(node: ast.AST) -> set[str]:
    """Names that stand in a piece of code; of `a.b`, `a`."""
    return {n.id for n in walk(node) if isinstance(n, ast.Name)}


def called_names(file: str, line: int) -> list[str]:
    """Last names of what is called in an expression on this line, in order: the program's own, `torch.cat` and `len`
    are none of them."""
    return list(dict.fromkeys(name for name in map(last_name, _called(file, line)) if name))


def owners_called(file: str, line: int) -> set[str]:
    """Names on the way to what is called on this line: `self.target.model(x)` -> {"target"}."""
    found: set[str] = set()
    for part in _called(file, line):
        while isinstance(part, (ast.Attribute, ast.Subscript)):
            part = part.value
            found.add(last_name(part))
    return found - {"", "self", "cls"}


def _called(file: str, line: int) -> list[ast.expr]:
    """What is called on this line by a chain of names that begins with one of the program's own."""
    tree = parsed(file)
    if tree is None:
        return []
    others = _names_of_others(file)
    return [
        node.func
        for node in walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and _first_name(node.func) not in others
    ]


def _first_name(node: ast.expr) -> str:
    """`self` of `self.nets["a"].model`, and "" for what begins with a call or a number."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@lru_cache(maxsize=64)
def _names_of_others(file: str) -> frozenset[str]:
    """"", builtins, and what a file imports from the standard library, torch and numpy, itself or a part of it."""
    found = {"", *dir(builtins)}
    tree = parsed(file)
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                whole = alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")
                if whole.partition(".")[0] in _LIBRARIES:
                    found.add(alias.asname or alias.name.partition(".")[0])
    return frozenset(found)


def aliases(file: str) -> Iterator[tuple[str, str, int]]:
    """(name, other name, line) of every plain assignment of one name to another: `self.target = self.online`."""
    tree = parsed(file)
    for node in walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Assign):
            continue
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for target in node.targets:
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            if len(targets) != len(values):
                # a = b = net: every name on the left is the same object
                targets, values = [target], [node.value]
            for left, right in zip(targets, values, strict=True):
                name, other = last_name(left), last_name(right)
                if name and other and name != other:
                    yield name, other, node.lineno
        if len(node.targets) > 1:
            names = [n for t in node.targets if (n := last_name(t))]
            for name in names:
                for other in names:
                    if name != other:
                        yield name, other, node.lineno


def assigned_to(text: str) -> tuple[str, str] | None:
    """("y", "r + g * v") for the source line `y = r + g * v`; None when it is no plain assignment of one name."""
    match = re.match(r"^([A-Za-z_][\w.]*)\s*=(?!=)\s*(.+)$", text.strip())
    if match is None or match[2].count("(") != match[2].count(")") or match[2].endswith(("\\", ",")):
        return None
    return match[1], match[2]


def shallow_copies(file: str) -> dict[str, int]:
    """name -> line of every `name = copy.copy(...)`."""
    tree = parsed(file)
    return {
        last_name(target): node.lineno
        for node in (walk(tree) if tree is not None else ())
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and last_name(node.value.func) == "copy"
        for target in node.targets
    }


def shallow_copy_line(file: str, names: Iterable[str]) -> int:
    """Line of `name = copy.copy(...)` for one of `names`, 0 when there is none."""
    copies = shallow_copies(file)
    return next((copies[name] for name in names if name in copies), 0)


def alias_line(file: str, target_names: Iterable[str], source_names: Iterable[str]) -> tuple[str, str, int] | None:
    """The assignment that makes one of `target_names` the same object as one of `source_names`, if the file has one."""
    wanted, sources = set(target_names), set(source_names)
    for name, other, line in aliases(file):
        if name in wanted and other in sources:
            return name, other, line
    return None


def property_lines(call: Site) -> list[int]:
    """Lines that return something from a property whose name is called on this line."""
    tree, names = parsed(call.file), called_names(call.file, call.line)
    return [
        returned.lineno
        for node in (walk(tree) if tree is not None else ())
        if isinstance(node, ast.FunctionDef) and node.name in names
        if any(last_name(d) in ("property", "cached_property") for d in node.decorator_list)
        for returned in walk(node)
        if isinstance(returned, ast.Return)
    ]


def lagging(name: str) -> bool:
    """Whether a name says that its network lags behind or stands still: `target_net`, `qTarget`, `ref_model`, `ema`."""
    return "targ" in name.lower() or "teacher" in name.lower() or any(w in _LAGGING for w in words(name))


def is_network_alias(alias: tuple[str, str, int]) -> bool:
    """Whether an alias joins two differently named networks; `net = self.net` or `q = self.q_net` is a shorthand."""
    name, other, _ = alias
    return not (name in other or other in name) or lagging(name)


def sharing_lines(file: str) -> list[int]:
    """Lines that bind memory instead of copying values: `t.data = p.data`, `load_state_dict(..., assign=True)`,
    `t.data = torch.from_numpy(a)`, and one vector that is unpacked into parameters more than once."""
    tree = parsed(file)
    found: list[int] = []
    unpacked: dict[str, list[int]] = {}
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign):
            left = any(isinstance(t, ast.Attribute) and t.attr == "data" for t in node.targets)
            right = node.value.func if isinstance(node.value, ast.Call) else node.value
            if left and last_name(right) in ("data", "detach", "from_numpy", "as_tensor"):
                found.append(node.lineno)
        elif isinstance(node, ast.Call) and last_name(node.func) == "load_state_dict":
            found += [node.lineno for k in node.keywords if k.arg == "assign" and getattr(k.value, "value", False)]
        elif isinstance(node, ast.Call) and last_name(node.func) == "vector_to_parameters" and node.args:
            unpacked.setdefault(last_name(node.args[0]), []).append(node.lineno)
    found += [line for name, lines in unpacked.items() if name and len(lines) > 1 for line in lines]
    return sorted(found)


def due_every(file: str, line: int) -> float | None:
    """How many steps a conditional line may have to wait: the largest number compared with, or taken modulo or divided
    by, around it.

    Names in a condition are looked up among the numbers that the file gives to them (assignments, defaults, keyword
    arguments, command-line defaults; the smallest counts).  0 when the line stands under no condition; None when no
    such number, or not that of a modulo, is known.
    """
    tree = parsed(file)
    tests = [
        node.test
        for node in (walk(tree) if tree is not None else ())
        if isinstance(node, ast.If) and any(_covers(part, line) for part in node.body) and not _is_main(node.test)
    ]
    if not tests:
        return 0
    assert tree is not None
    known = _numbers(tree)
    numbers: list[float] = []
    for node in (n for test in tests for n in walk(test)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv)):
            interval = _number(node.right, known)
            if interval is None:
                return None
            numbers.append(interval)
        elif isinstance(node, ast.Compare):
            numbers += [n for c in (node.left, *node.comparators) if (n := _number(c, known)) is not None]
    return max((n for n in numbers if n >= 1), default=None)


def _number(node: ast.expr, known: dict[str, float]) -> float | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float)) else None
    return known.get(last_name(node))


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _is_main(test: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in walk(test))


def _positions(tree: ast.Module) -> dict[str, list[str]]:
    """Names of the positional arguments of each function and class of the file."""
    found: dict[str, list[str]] = {}
    for node in walk(tree):
        if isinstance(node, ast.ClassDef):
            makes = (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
            for function in makes:
                found[node.name] = [a.arg for a in function.args.args[1:]]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__init__":
            names = [a.arg for a in node.args.args]
            found.setdefault(node.name, names[1:] if names[:1] in (["self"], ["cls"]) else names)
    return found


def _numbers(tree: ast.Module) -> dict[str, float]:
    """The smallest plain number that the file gives to each name."""
    found: dict[str, float] = {}
    positions = _positions(tree)

    def give(name: str, value: ast.expr | None) -> None:
        if name and isinstance(value, ast.Constant) and isinstance(value.value, (int, float)) and value.value >= 1:
            found[name] = min(value.value, found.get(name, value.value))

    for node in walk(tree):
        if isinstance(node, ast.Assign):
            for name, value in bindings(node):
                give(name, value)
        elif isinstance(node, ast.AnnAssign):
            made = node.value  # every: int = field(default=500), option(500, "help")
            give(last_name(node.target), made.args[0] if isinstance(made, ast.Call) and made.args else made)
            for keyword in made.keywords if isinstance(made, ast.Call) else ():
                give(last_name(node.target) if keyword.arg == "default" else "", keyword.value)
        elif isinstance(node, ast.Dict):  # {"sync_every": 500}
            for key, entry in zip(node.keys, node.values, strict=True):
                give(key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else "", entry)
        elif isinstance(node, ast.arguments):
            places = [*node.posonlyargs, *node.args]
            for place, default in zip(places[len(places) - len(node.defaults) :], node.defaults, strict=True):
                give(place.arg, default)
            for place, given in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                give(place.arg, given)
        elif isinstance(node, ast.Call):
            option = node.args[0] if last_name(node.func) == "add_argument" and node.args else None
            for keyword in node.keywords:
                give(keyword.arg or "", keyword.value)
                if keyword.arg == "default" and isinstance(option, ast.Constant) and isinstance(option.value, str):
                    give(option.value.lstrip("-").replace("-", "_"), keyword.value)
            for name, given in zip(positions.get(last_name(node.func), ()), node.args, strict=False):  # Agent(20)
                give(name, given)
    return found


def words(name: str) -> list[str]:
    """The words of a name, in lower case: `softUpdate_net` -> soft, update, net."""
    return [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def bindings(node: ast.Assign) -> list[tuple[str, ast.expr]]:
    """(name, value) of an assignment, pairwise for `a, b = x, y`."""
    found = []
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            found += [(last_name(t), v) for t, v in zip(target.elts, node.value.elts, strict=False)]
        else:
            found.append((last_name(target), node.value))
    return found


def lines_calling(file: str, names: frozenset[str], within: tuple[int, int] | None = None) -> list[int]:
    """Lines of a file that call one of `names`; `within`: first and last line that count."""
    tree = parsed(file) if file else None
    nodes = walk(tree) if tree is not None else ()
    lines = {n.lineno for n in nodes if isinstance(n, ast.Call) and last_name(n.func) in names}
    return sorted(line for line in lines if within is None or within[0] <= line <= within[1])


def mentions(file: str, word: str) -> int:
    """How often a file says a word as a string: the key of an entry, one of a list of names."""
    tree = parsed(file) if file else None
    return sum(isinstance(n, ast.Constant) and n.value == word for n in (walk(tree) if tree is not None else ()))


def factors_of(node: ast.expr) -> list[ast.expr]:
    """What a product multiplies, products within it included; anything else is its own only factor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*factors_of(node.left), *factors_of(node.right)]
    return [node]


def is_computed_with(file: str, name: str) -> bool:
    """Whether a variable or attribute of this name is multiplied, divided or a power somewhere: `self.step / 100`."""
    tree = parsed(file) if file else None
    nodes = walk(tree) if tree is not None else ()
    told = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in walk(node)}
    products = [n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Mult, ast.Div, ast.Pow))]
    sides = [side for n in products if id(n) not in told for side in (n.left, n.right)]
    return any(isinstance(s, (ast.Name, ast.Attribute)) and last_name(s) == name for s in sides)


def asked_entry(node: ast.AST) -> ast.Constant | None:
    """The name in `checkpoint["epoch"]` (read, not written) or `checkpoint.get("epoch", 0)`."""
    key: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        key = node.slice
    elif isinstance(node, ast.Call) and last_name(node.func) == "get" and node.args:
        key = node.args[0]
    return key if isinstance(key, ast.Constant) else None


def lines_asking(file: str, name: str) -> list[int]:
    """Lines that read an entry of this name."""
    tree = parsed(file) if file else None
    keys = [key for node in (walk(tree) if tree is not None else ()) if (key := asked_entry(node)) is not None]
    return sorted(key.lineno for key in keys if key.value == name)
