"""Rows that an evaluation asks for and that were trained on, or their relatives (`RowsMet`): is the evaluation meant
for rows held out, and which lines made the split?

An evaluation on training rows is a common thing to do.  Only the names tell: `x_val`, `test_dl`, `held`, and nothing
about training beside them.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from gradledger.audit._code import last_name, lines_calling, parsed, walk
from gradledger.audit._evaluation import _names, names_around, words
from gradledger.audit._loops import calls_at, enclosing_function
from gradledger.core.events import RowsMet
from gradledger.core.site import Site, is_installed

HELD = frozenset(
    {"val", "vals", "va", "xv", "xva", "valid", "validation", "test", "te", "tst", "dev", "held", "heldout", "holdout"}
)  # fmt: skip
TRAINED = frozenset({"train", "training", "tr", "trn", "fit", "fitted", "all", "full", "whole", "both"})
_SPLITS = frozenset(
    {"train_test_split", "random_split", "randperm", "permutation", "shuffle", "sample", "choice", "KFold",
     "StratifiedKFold", "ShuffleSplit", "StratifiedShuffleSplit", "Subset", "SubsetRandomSampler"}
)  # fmt: skip
_PARTS = frozenset({"train", "val", "valid", "validation", "test", "dev", "fit", "held"})
_MOST = 12
_COPIES = 0.05  # of the rows asked for


def asks_for_held_out(site: Site) -> bool:
    """Whether the line, the loop around it, what the line gives a call, or one that led to it reads what is named for
    rows held out, before any that names others.  What the line itself makes says nothing: `val = critic(states)` is a
    value."""
    told = _by_names(replace(site, callers=()))
    return bool(_taken_at(site) or _by_names(site)) if told is None else told


def _by_names(site: Site) -> bool | None:
    for read, names in names_around(site):
        held = {word for name in read for word in words(name)} & HELD
        others = {word for name in names for word in words(name)} & TRAINED
        if held or others:
            return bool(held) and not others
    return None


def _taken_at(site: Site) -> list[int]:
    """Lines above that gave an argument of a call on the line its rows, and say that they are held out:
    `tx = table[fold == test_fold]`."""
    tree = parsed(site.file) if site.file and not is_installed(site.file) else None
    if tree is None:
        return []
    scope = enclosing_function(site.file, site.line) or tree
    calls = calls_at(*site.key())
    given = {n.id for c in calls for a in c.args for n in walk(a) if isinstance(n, ast.Name)}
    found = []
    for node in walk(scope):
        if isinstance(node, ast.Assign) and node.lineno < site.line and _takes_held(node.value):
            if given & {n.id for t in node.targets for n in walk(t) if isinstance(n, ast.Name)}:
                found.append(node.lineno)
    return sorted(found)


def _takes_held(value: ast.expr) -> bool:
    """Whether rows are taken by a name for those held out: compared with it, numbered or named by it.  A name among the
    arguments of a split (`test_share`) says nothing of its parts, and what is negated is the other part."""
    parts: list[ast.AST] = []
    for node in walk(value):
        if isinstance(node, (ast.NotEq, ast.NotIn, ast.Not, ast.Invert)):
            return False
        if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Eq, ast.In)) for op in node.ops):
            parts.append(node)
        elif isinstance(node, ast.Subscript):
            parts.append(node.slice)
        elif isinstance(node, ast.Call):
            parts += [a for a in node.args if isinstance(a, ast.Constant)]
    held = {word for part in parts for word in _words_of(part)} & HELD
    return bool(held) and not _words_of(value) & TRAINED


def _words_of(node: ast.AST) -> set[str]:
    return {word for name in _names(node) for word in words(name)}


def are_copies(event: RowsMet) -> bool:
    """Whether the table held copies of its rows before it was split (GL-D06), where others would be rows that are
    trained on and evaluated (GL-D08)."""
    return event.how == "same" and event.repeated >= _COPIES and event.shared < 1


def split_lines(site: Site) -> list[Site]:
    """Lines of the evaluation's file that part rows: those that take the rows evaluated, calls that split or draw an
    order and the lines that call their function, what is cut out of their result, and branches on the name of a
    part."""
    file = site.file
    tree = parsed(file)
    calls: list[int] = []
    more: list[int] = []
    orders: set[str] = set()
    nodes = list(walk(tree)) if tree is not None else []
    for node in nodes:
        if isinstance(node, ast.Assign) and any(_splits(n) for n in walk(node.value)):
            orders.update(n.id for t in node.targets for n in walk(t) if isinstance(n, ast.Name))
    for node in nodes:
        if _splits(node):
            calls.append(node.lineno)  # type: ignore[attr-defined]
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and last_name(node.value) in orders:
            more.append(node.lineno)
        elif isinstance(node, ast.If) and _names_a_part(node.test):
            more += [node.lineno, *(part.lineno for part in (*node.body, *node.orelse))]
    again = _in_loops(nodes)
    calls.sort(key=lambda line: line in again)  # an order drawn anew for each epoch splits nothing
    taken = _taken_at(site) if _by_names(replace(site, callers=())) is None else []
    around = enclosing_function(file, calls[0]) if calls and calls[0] not in again else None
    callers = lines_calling(file, frozenset({around.name}))[:2] if around is not None else []
    lines = dict.fromkeys([*taken, *calls, *callers, *sorted(more)])
    return [Site(file, line, "") for line in lines][:_MOST]


def _splits(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in _SPLITS


def _names_a_part(test: ast.expr) -> bool:
    """`part == "val"`"""
    return any(isinstance(n, ast.Constant) and n.value in _PARTS for n in walk(test))


def _in_loops(nodes: list[ast.AST]) -> set[int]:
    loops = [n for n in nodes if isinstance(n, (ast.For, ast.While))]
    return {line for loop in loops for line in range(loop.lineno + 1, (loop.end_lineno or loop.lineno) + 1)}
