"""Lists of name patterns that a program freezes or unfreezes by, of which some match and one matches nothing.

The loop does something, so that nothing looks wrong: two of three blocks are frozen and the third trains on.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import meanings

_LISTS = (ast.List, ast.Tuple, ast.Set)
_LONGEST = 64
_ANYTHING = "\0"  # stands for a part of a pattern that the text does not tell


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A pattern of a list, its line, and how many of the names the other patterns of the list match."""

    line: int
    pattern: str
    matched: int


def unmatched(file: str, names: list[str]) -> Iterator[Unmatched]:
    """Patterns with a path in them ("encoder.layer.0.*") that match none of the names, beside others that match some.

    A word without a dot ("norm", "ln") may be there for other models; a path is meant for this one.
    """
    tree = parsed(file)
    for node in walk(tree) if tree is not None else ():
        if not isinstance(node, _LISTS) or not 2 <= len(node.elts) <= _LONGEST:
            continue
        texts = [e for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str) and e.value]
        if len(texts) != len(node.elts):
            continue
        hits = {e.value: sum(_matches(str(e.value), n) for n in names) for e in texts}
        others = max(hits.values())
        if not 0 < others < len(names):
            continue
        for text in texts:
            if hits[text.value] == 0 and _is_path(str(text.value)):
                yield Unmatched(text.lineno, str(text.value), others)


def unmatched_built(file: str, asked: str, names: list[str]) -> Iterator[Unmatched]:
    """The same for lists that the program puts together, whose name stands in the test that is `asked`: elements that
    are appended, and texts made of others, as `prefix + "norm."` or `f"layers.{i}."`.  What the text does not tell
    (a number, an argument) may be anything."""
    words = {n.id for n in walk(ast.parse(asked)) if isinstance(n, ast.Name)} if asked else set()
    for word in words:
        elements = list(_elements(file, word))
        texts = [(line, text) for line, element in elements if (text := _text(file, element)) is not None]
        if len(texts) < max(2, len(elements)):
            continue
        found = [(line, text, sum(_may_match(text, n) for n in names)) for line, text in texts]
        others = max(hits for *_, hits in found)
        if 0 < others < len(names):
            for line, text, hits in found:
                if hits == 0 and _is_path(text):
                    yield Unmatched(line, text.replace(_ANYTHING, "*"), others)


def _elements(file: str, word: str) -> Iterator[tuple[int, ast.expr]]:
    """(line, element) of the lists that a name stands for, with what is appended to them."""
    tree = parsed(file)
    for node in walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and any(last_name(t) == word for t in node.targets):
            given: list[ast.expr] = [node.value]
        elif isinstance(node, ast.AugAssign) and last_name(node.target) == word:
            given = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and last_name(node.func.value) == word:
            if node.func.attr in ("append", "add"):
                yield from ((a.lineno, a) for a in node.args)
            given = node.args if node.func.attr in ("extend", "update") else []
        else:
            continue
        for value in given:
            yield from ((e.lineno, e) for e in (value.elts if isinstance(value, _LISTS) else [value]))


def _text(file: str, node: ast.expr, depth: int = 3) -> str | None:
    """What a text says; None for what is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [v.value if isinstance(v, ast.FormattedValue) else v for v in node.values]
        texts = [_text(file, part, depth) for part in parts]
        return "".join(_ANYTHING if t is None else t for t in texts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(file, node.left, depth), _text(file, node.right, depth)
        return None if left is right is None else (left or _ANYTHING) + (right or _ANYTHING)
    if isinstance(node, (ast.Name, ast.Attribute)) and depth:
        values = meanings(file, last_name(node))
        return _text(file, values[0], depth - 1) if len(values) == 1 else None
    return None


def _may_match(text: str, name: str) -> bool:
    if _ANYTHING not in text:
        return _matches(text, name)
    if re.search(r"[*?\[\\^$(|]", text):
        return True  # a pattern of which a part is not known
    return re.search(".*".join(re.escape(part) for part in text.split(_ANYTHING)), name) is not None


def _is_path(pattern: str) -> bool:
    return bool(re.match(r"\^?[A-Za-z_]\w*(\[[\w-]+\]|\w)*\\?\.", pattern))


def _matches(pattern: str, name: str) -> bool:
    asks: tuple[Callable[[], object], ...] = (
        lambda: pattern in name,
        lambda: name in pattern.split(),
        lambda: fnmatch.fnmatchcase(name, pattern),
        lambda: re.search(pattern, name),
    )
    for ask in asks:
        try:
            if ask():
                return True
        except re.error:
            continue
    return False
