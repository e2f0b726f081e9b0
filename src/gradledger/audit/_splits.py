"""What the source says about a split: which lines make it, which call a part held out, which fit statistics."""

from __future__ import annotations

import ast
import re

from gradledger.audit._code import arguments, last_name, lines_calling, names_in, parsed, walk
from gradledger.audit._evaluation import evaluates
from gradledger.audit._loops import enclosing_function
from gradledger.audit._made_at import makers
from gradledger.core.site import Site

_SPLITS = frozenset(
    {"randperm", "permutation", "shuffle", "train_test_split", "random_split", "sample", "choice", "KFold",
     "StratifiedKFold", "ShuffleSplit", "StratifiedShuffleSplit"}
)  # fmt: skip
_FIT = frozenset({"fit", "fit_transform"})
_FITS = _FIT | {"mean", "std", "var", "min", "max", "amin", "amax", "nanmean", "nanstd"}
_DRAWS = frozenset({"randint", "randrange", "integers", "choice", "random", "rand", "randperm", "sample", "uniform"})
_ENCODES = re.compile(
    r"encod|group_?by|bincount|per_(group|category)|by_(group|category)|target_?mean|mean_?target|^fit"
)
REACH = 40  # lines above


def is_held_out(site: Site, evaluated: bool) -> bool:
    """Whether rows picked at `site` were meant for validation: something evaluated them, or their name says so."""
    return evaluated or bool(evaluates(site))


def lines_that_split(site: Site) -> list[Site]:
    """Lines of the same function, at or above `site`, that draw a random order or split; nearest first."""
    return _lines(site, _SPLITS)


def lines_that_fit(site: Site) -> list[Site]:
    """Lines of the same function, at or above `site`, that fit a scaler or take a mean; nearest first.  Without any,
    those of the functions that made what the line uses.  What is called a fit comes first, also on the way there."""
    called = [one for frame in (site, *site.above(2)) for one in _lines(frame, _functions_that_fit(frame.file))]
    return list(dict.fromkeys([*(_lines(site, _FIT) or called), *_near(site, _FIT), *_near(site, _FITS)]))


def _near(site: Site, names: frozenset[str]) -> list[Site]:
    inside = [
        line
        for function in makers(site)
        for line in lines_calling(site.file, names, (function.lineno, function.end_lineno or function.lineno))
    ]
    return _lines(site, names) or [Site(site.file, line, "") for line in inside]


def _functions_that_fit(file: str) -> frozenset[str]:
    """Functions of a file that fit something to what they are given."""
    tree = parsed(file)
    functions = [n for n in walk(tree) if isinstance(n, ast.FunctionDef)] if tree is not None else []
    return frozenset(
        function.name
        for function in functions
        for n in walk(function)
        if isinstance(n, ast.Call) and last_name(n.func) in _FIT
        if any(names_in(a) & {g.arg for g in arguments(function)} for a in n.args)
    )


def lines_that_draw_items(file: str) -> list[int]:
    """Random draws of a `__getitem__` that never looks at the number that it is asked for."""
    tree = parsed(file)
    found = []
    for method in walk(tree) if tree is not None else ():
        if isinstance(method, ast.FunctionDef) and method.name == "__getitem__" and len(method.args.args) == 2:
            asked = method.args.args[1].arg
            if not any(isinstance(n, ast.Name) and n.id == asked for n in walk(method)):
                found += [n.lineno for n in walk(method) if isinstance(n, ast.Call) and last_name(n.func) in _DRAWS]
    return sorted(set(found))


def lines_that_encode(site: Site) -> list[Site]:
    """Lines of the file that replace categories by numbers made from targets, as their callers name it."""
    tree = parsed(site.file)
    found = set()
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and len(node.args) > 1 and _ENCODES.search(last_name(node.func)):
            inside = enclosing_function(site.file, node.lineno)
            if inside is None or not _ENCODES.search(getattr(inside, "name", "")):
                found.add(node.lineno)
    return [Site(site.file, line, "") for line in sorted(found)][:4]


def _lines(site: Site, names: frozenset[str]) -> list[Site]:
    tree = parsed(site.file)
    found = []
    own = enclosing_function(site.file, site.line)
    for node in walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Call) or last_name(node.func) not in names:
            continue
        if site.line - REACH <= node.lineno <= site.line and enclosing_function(site.file, node.lineno) is own:
            found.append(node.lineno)
    return [Site(site.file, line, site.function) for line in sorted(set(found), reverse=True)]
