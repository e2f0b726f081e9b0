"""Lists of name patterns that a program freezes or unfreezes by, of which some match and one matches nothing.

The loop does something, so that nothing looks wrong: two of three blocks are frozen and the third trains on.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gradledger.audit._code import parsed

_LISTS = (ast.List, ast.Tuple, ast.Set)
_LONGEST = 64


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
    for node in ast.walk(tree) if tree is not None else ():
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
