"""Rows that an evaluation asks for and that were trained on, or their relatives (`RowsMet`): is the evaluation meant
for rows held out, and which lines made the split?

An evaluation on training rows is a common thing to do.  Only the names tell: `x_val`, `test_dl`, `held`, and nothing
about training beside them.
"""

from __future__ import annotations

import ast

from gradledger.audit._code import last_name, parsed
from gradledger.audit._evaluation import names_around, words
from gradledger.core.events import RowsMet
from gradledger.core.site import Site

HELD = frozenset({"val", "vals", "valid", "validation", "test", "te", "tst", "dev", "held", "heldout", "holdout"})
TRAINED = frozenset({"train", "training", "tr", "trn", "fit", "fitted", "all", "full", "whole", "both"})
_SPLITS = frozenset(
    {"train_test_split", "random_split", "randperm", "permutation", "shuffle", "sample", "choice", "KFold",
     "StratifiedKFold", "ShuffleSplit", "StratifiedShuffleSplit", "Subset", "SubsetRandomSampler"}
)  # fmt: skip
_PARTS = frozenset({"train", "val", "valid", "validation", "test", "dev", "fit", "held"})
_MOST = 12
_COPIES = 0.05  # of the rows asked for


def asks_for_held_out(site: Site) -> bool:
    """Whether the line, the loop around it or one that led to it reads what is named for rows held out, before any that
    names others.  What the line itself makes says nothing: `val = critic(states)` is a value."""
    for read, names in names_around(site):
        held = {word for name in read for word in words(name)} & HELD
        others = {word for name in names for word in words(name)} & TRAINED
        if held or others:
            return bool(held) and not others
    return False


def are_copies(event: RowsMet) -> bool:
    """Whether the table held copies of its rows before it was split (GL-D06), where others would be rows that are
    trained on and evaluated (GL-D08)."""
    return event.how == "same" and event.repeated >= _COPIES and event.shared < 1


def split_lines(event: RowsMet) -> list[Site]:
    """Lines of the evaluation's file that part rows: calls that split or draw an order, what is cut out of their
    result, and branches on the name of a part."""
    file = event.site.file
    tree = parsed(file)
    calls: list[int] = []
    more: list[int] = []
    orders: set[str] = set()
    nodes = list(ast.walk(tree)) if tree is not None else []
    for node in nodes:
        if isinstance(node, ast.Assign) and any(_splits(n) for n in ast.walk(node.value)):
            orders.update(n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name))
    for node in nodes:
        if _splits(node):
            calls.append(node.lineno)  # type: ignore[attr-defined]
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and last_name(node.value) in orders:
            more.append(node.lineno)
        elif isinstance(node, ast.If) and _names_a_part(node.test):
            more += [node.lineno, *(part.lineno for part in (*node.body, *node.orelse))]
    calls.sort(key=lambda line: line in _in_loops(nodes))  # an order drawn anew for each epoch splits nothing
    lines = dict.fromkeys([*calls, *sorted(more)])
    return [Site(file, line, "") for line in lines][:_MOST]


def _splits(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in _SPLITS


def _names_a_part(test: ast.expr) -> bool:
    """`part == "val"`"""
    return any(isinstance(n, ast.Constant) and n.value in _PARTS for n in ast.walk(test))


def _in_loops(nodes: list[ast.AST]) -> set[int]:
    loops = [n for n in nodes if isinstance(n, (ast.For, ast.While))]
    return {line for loop in loops for line in range(loop.lineno + 1, (loop.end_lineno or loop.lineno) + 1)}
