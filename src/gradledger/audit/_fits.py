"""Transforms, of scikit-learn or the program's own, that the source fits on a whole table, before it parts the table:
read from the text.

What such a transform computes is numpy's and is not followed; that the lines ran is told by the optimizers that the
file, or what it was called from, built.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._by_split import HELD, TRAIN, lines_under_names, names_by_split
from gradledger.audit._code import bindings, last_name, parsed, scopes_of, walk
from gradledger.audit._evaluation import words
from gradledger.audit._iterators import own_nodes
from gradledger.audit._source import source_lines
from gradledger.core.site import Site

_FITTED = re.compile(r"(Scaler|PCA|SVD|Imputer|PowerTransformer|QuantileTransformer|Vectorizer|ICA|NMF|Discretizer)$")
_PARTS = frozenset({"train_test_split", "random_split", "Subset"})
_HELD_OUT = HELD - {"eval"}
_TARGETS = frozenset({"y", "ys", "target", "targets", "label", "labels"})
_JOINS = frozenset({"concatenate", "concat", "cat", "vstack", "row_stack"})
_FOR_VALIDATION = frozenset({"val", "va", "valid", "validation", "dev"})
_MEASURES = frozenset(
    {
        "mean", "average", "std", "var", "min", "max", "amin", "amax", "cov", "median", "quantile", "percentile", "svd",
        "eigh",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FittedWhole:
    """`kind`: class of the transform; `site`: where it is fitted, on `table`; `split`: where that is parted later."""

    kind: str
    table: str
    site: Site
    split: Site


def fitted_before_split(file: str) -> Iterator[FittedWhole]:
    """Fits of a file whose results are parted into training and held-out rows afterwards, in the same function."""
    tree = parsed(file)
    if tree is None or not any(".fit" in line for line in source_lines(file)):
        return
    own = _classes_that_fit(tree) | _classes_that_measure(tree)
    for scope in scopes_of(tree):
        nodes = sorted(own_nodes(scope), key=lambda n: getattr(n, "lineno", 0))
        kinds = _kinds(nodes, own)
        for node in nodes:
            if not isinstance(node, ast.Call) or (found := _fit(node, kinds, own)) is None:
                continue
            kind, scaler, table = found
            scaler = scaler or _bound_to(nodes, node)
            line = _parted(nodes, scaler, table, node.lineno) or _split_beside(nodes, table)
            line = line or _numbers_parted(nodes, table, node.lineno)
            line = line or _parted_by_name(tree, nodes, scaler, table, node.lineno)
            if line:
                yield FittedWhole(kind, table, Site(file, node.lineno, ""), Site(file, line, ""))


@dataclass(frozen=True, slots=True)
class FittedTogether:
    """A fit on `site` to training rows (`train`) and held-out rows (`held`), put together on line `joined`; `told`:
    the line that says of the latter what they are."""

    site: Site
    train: str
    held: str
    joined: int
    told: int


def fitted_on_both(file: str) -> Iterator[FittedTogether]:
    """Fits of a file to what is put together of rows that are trained on and rows that it names as held out.

    Rows for validation that are taken in for a last fit, where others are kept for a test, do not count.
    """
    tree = parsed(file)
    if tree is None or not any(".fit" in line for line in source_lines(file)):
        return
    own = _classes_that_measure(tree)
    kinds = _kinds(list(walk(tree)), own)
    tested = any("test" in line for line in source_lines(file))
    for scope in scopes_of(tree):
        nodes = list(own_nodes(scope))
        made = [n for n in nodes if isinstance(n, ast.Assign)]
        for node in nodes:
            if not isinstance(node, ast.Call) or not _fitted_kind(node, kinds, own):
                continue
            joined, parts = _joined(node.args[0], made)
            sides = {part: _held_out(part, made) for part in parts if part}
            train, held = [p for p in sides if not sides[p][0]], [p for p in sides if sides[p][0]]
            if train and held and len(sides) == len(parts) and not (tested and sides[held[0]][0] & _FOR_VALIDATION):
                yield FittedTogether(Site(file, node.lineno, ""), train[0], held[0], joined, sides[held[0]][1])


def _classes_that_measure(tree: ast.Module) -> frozenset[str]:
    """Classes of the program whose `fit` takes statistics of rows; one that looks for labels or words does not."""
    return frozenset(
        node.name
        for node in walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "fit"
        if any(isinstance(n, ast.Call) and last_name(n.func).removeprefix("nan") in _MEASURES for n in walk(method))
    )


def _joined(value: ast.expr, made: list[ast.Assign]) -> tuple[int, list[str]]:
    """Of a call that puts rows together, which `value` is or is a name of: its line, and the names of the parts."""
    if isinstance(value, ast.Name):
        given = [n.value for n in made if any(isinstance(t, ast.Name) and t.id == value.id for t in n.targets)]
        value = given[0] if len(given) == 1 else value
    if isinstance(value, ast.Call) and last_name(value.func) in _JOINS and value.args:
        if isinstance(value.args[0], (ast.List, ast.Tuple)):
            return value.lineno, [last_name(part) for part in value.args[0].elts]
    return 0, []


def _held_out(part: str, made: list[ast.Assign]) -> tuple[set[str], int]:
    """What these rows, or what is made of them, are called that is held out, and the line that does."""
    said = words(part) & _HELD_OUT
    for node in made:
        names = [name for name, value in bindings(node) if part in _names(value)]
        here = said or {word for name in names for word in words(name)} & _HELD_OUT
        if names and here:
            return here, node.lineno
    return said, 0


def _classes_that_fit(tree: ast.Module) -> frozenset[str]:
    """Classes of the program with a `fit` that fits transforms of scikit-learn."""
    found = set()
    for node in walk(tree):
        if isinstance(node, ast.ClassDef):
            built = {last_name(n.func) for n in walk(node) if isinstance(n, ast.Call)}
            fits = any(isinstance(n, ast.FunctionDef) and n.name == "fit" for n in node.body)
            if fits and any(_FITTED.search(name) for name in built):
                found.add(node.name)
    return frozenset(found)


def _split_beside(nodes: list[ast.AST], table: str) -> int:
    """The line on which the fitted table itself is parted, before or after: its parts are transformed one by one."""
    for node in nodes:
        if isinstance(node, ast.Call) and last_name(node.func) == "train_test_split":
            if any(isinstance(a, ast.Name) and a.id == table for a in node.args):
                return node.lineno
    return 0


def _numbers_parted(nodes: list[ast.AST], table: str, fitted: int) -> int:
    """The line on which numbers of all rows of the table, which is bound once until it is `fitted`, are parted into
    those trained on and those held out: `order = permutation(len(table))`, `held, train = order[:n], order[n:]`."""
    pairs = [pair for n in nodes if isinstance(n, ast.Assign) for t in n.targets for pair in _pairs(t, n.value)]
    if sum(name == table and value.lineno < fitted for name, value in pairs) > 1:
        return 0
    counts = {name for name, value in pairs if _counts_rows(value, table)}
    orders = {name for name, value in pairs if _numbers_rows(value, table, counts)} - {""}
    train = held = 0
    for name, value in pairs:
        if isinstance(value, ast.Subscript) and last_name(value.value) in orders and isinstance(value.slice, ast.Slice):
            said = words(name)
            train, held = train or value.lineno * bool(said & TRAIN), held or value.lineno * bool(said & HELD)
    return max(train, held) if train and held else 0


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """(name, value) of an assignment, pairwise for `a, b = x, y` and for `a, b = f()`."""
    values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value] * len(_flat(target))
    plain = (ast.Name, ast.Attribute)
    return [(last_name(t), v) for t, v in zip(_flat(target), values, strict=False) if isinstance(t, plain)]


def _counts_rows(value: ast.expr, table: str) -> bool:
    """`len(table)`, `table.shape[0]`."""
    if isinstance(value, ast.Call):
        return last_name(value.func) == "len" and bool(value.args) and last_name(value.args[0]) == table
    owner = value.value if isinstance(value, ast.Subscript) else None
    return isinstance(owner, ast.Attribute) and owner.attr == "shape" and last_name(owner.value) == table


def _numbers_rows(value: ast.expr, table: str, counts: set[str]) -> bool:
    """`rng.permutation(len(table))`, `torch.randperm(n)`."""
    if not isinstance(value, ast.Call) or last_name(value.func) not in ("permutation", "randperm") or not value.args:
        return False
    return _counts_rows(value.args[0], table) or last_name(value.args[0]) in counts | {table}


def _kinds(nodes: list[ast.AST], own: frozenset[str]) -> dict[str, str]:
    """Names of transforms, and their classes."""
    return {
        last_name(target): last_name(node.value.func)
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if _FITTED.search(last_name(node.value.func)) or last_name(node.value.func) in own
        for target in node.targets
    }


def _fit(node: ast.Call, kinds: dict[str, str], own: frozenset[str]) -> tuple[str, str, str] | None:
    """(class, name of the transform, name of the table) of a call that fits one to what is not called training rows."""
    kind = _fitted_kind(node, kinds, own)
    table = _table(node.args[0]) if kind else ""
    given = [*node.args[1:], *(k.value for k in node.keywords)]
    chosen = {word for value in given for name in _names(value) for word in words(name)}
    if not table or words(table) & (TRAIN | _TARGETS) or chosen & TRAIN:
        return None
    return kind, last_name(node.func.value), table  # type: ignore[attr-defined]


def _fitted_kind(node: ast.Call, kinds: dict[str, str], own: frozenset[str]) -> str:
    """The class of the transform that a call fits to something; "" when it is no such call."""
    if not isinstance(node.func, ast.Attribute) or not node.args or node.func.attr not in ("fit", "fit_transform"):
        return ""
    owner = node.func.value
    kind = last_name(owner.func) if isinstance(owner, ast.Call) else kinds.get(last_name(owner), "")
    return kind if _FITTED.search(kind) or kind in own else ""


def _parted(nodes: list[ast.AST], scaler: str, table: str, after: int) -> int:
    """The line on which what was made with a fitted transform is parted; 0 when none does."""
    made: set[str] = set()
    train = held = 0
    for node in nodes:
        if getattr(node, "lineno", 0) < after:
            continue
        if isinstance(node, ast.Assign):
            transforms = any(_transforms(part, scaler, table) for part in walk(node.value))
            if transforms or _names(node.value) & made:
                sides = [_side(node, part, made) for part in walk(node.value)]
                train, held = train or node.lineno * ("train" in sides), held or node.lineno * ("held" in sides)
                made |= {last_name(t) for target in node.targets for t in _flat(target)} - {""}
        if isinstance(node, ast.Call) and last_name(node.func) in _PARTS and _names(node) & made:
            return node.lineno
        if isinstance(node, ast.Call):
            sides = [_side(node, part, made) for part in walk(node)]
            train, held = train or node.lineno * ("train" in sides), held or node.lineno * ("held" in sides)
        if train and held:
            return max(train, held)
    return 0


def _parted_by_name(tree: ast.Module, nodes: list[ast.AST], scaler: str, table: str, after: int) -> int:
    """The line on which what was made with a fitted transform is cut to one of several parts, which an argument names:
    each is made by a call of its own."""
    chosen, branches = names_by_split(tree, nodes), lines_under_names(nodes)
    given = [value for n in nodes if isinstance(n, ast.Assign) for name, value in bindings(n) if name == table]
    if any(words(ast.unparse(value)) & TRAIN for value in given if isinstance(value, ast.Subscript)):
        return 0  # it holds the rows that are trained on, by whatever name
    made: set[str] = set()
    for node in nodes:
        if not isinstance(node, ast.Assign) or node.lineno < after:
            continue
        for part in walk(node.value):
            if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice):
                if last_name(part.value) in made or _transforms(part.value, scaler, table):
                    if _names(part.slice) & chosen or any(a <= node.lineno <= b for a, b in branches):
                        return node.lineno
        if any(_transforms(part, scaler, table) for part in walk(node.value)):
            made |= {last_name(t) for target in node.targets for t in _flat(target)} - {""}
    return 0


def _bound_to(nodes: list[ast.AST], call: ast.Call) -> str:
    """`scaler` of `scaler = Scaler().fit(rows)`"""
    return next((last_name(n.targets[0]) for n in nodes if isinstance(n, ast.Assign) and n.value is call), "")


def _transforms(node: ast.AST, scaler: str, table: str) -> bool:
    """`scaler.transform(table)`, or `Scaler().fit_transform(table)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return False
    return node.func.attr in ("transform", "fit_transform") and last_name(node.func.value) == scaler and (
        _table(node.args[0]) == table
    )


def _table(node: ast.expr) -> str:
    """`rows` of `rows`, `rows.values` and `rows.to_numpy()`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("to_numpy", "numpy"):
        return _table(node.func.value)
    if isinstance(node, ast.Attribute) and node.attr == "values":
        return _table(node.value) or node.attr
    return last_name(node)


def _side(statement: ast.AST, node: ast.AST, made: set[str]) -> str:
    """ "train" or "held" for a piece of what was made that the text calls so, by its index or by the name it gets."""
    if not isinstance(node, ast.Subscript) or last_name(node.value) not in made:
        return ""
    said = {word for name in _names(node.slice) for word in words(name)}
    if not said & (HELD | TRAIN) and isinstance(statement, ast.Assign):
        targets = _flat(statement.targets[0])
        values = _flat(statement.value)
        mine = [t for t, v in zip(targets, values, strict=False) if any(n is node for n in walk(v))]
        said = {word for target in mine for word in words(last_name(target))}
    return "train" if said & TRAIN else "held" if said & HELD else ""


def _flat(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, (ast.Tuple, ast.List)) else [node]


def _names(node: ast.AST) -> set[str]:
    return {last_name(n) for n in walk(node) if isinstance(n, (ast.Name, ast.Attribute))} - {""}
