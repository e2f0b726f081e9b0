"""The shape of an event: what makes two events "the same thing happening again".

Kind, line, words, flags, lengths and which module, optimizer or scheduler; not sequence numbers, tensor numbers or
values.  Shapes are hashes, computed by a function that is written out once per class from its field types: they are
taken of every event of a run, so they must cost about a microsecond.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from gradledger.core.events import Event
from gradledger.core.site import Site

# Numbers of long-lived objects: another optimizer at the same line is another thing happening.
_OBJECTS = frozenset({"optimizer", "module", "scheduler", "loader", "parent", "child", "root", "ident", "origin_ident"})
_PAIRED = frozenset({"source", "target"})  # a copy from one module to another
# Small counts whose size matters, up to a point.
_COUNTS = frozenset({"consumed", "times", "count", "changed", "age", "root_age", "given"})
# Sizes of axes: only 0, 1 and "more" are told apart.
_AXES = frozenset({"shape", "left", "right", "out", "root_shape"})
# Free text: only whether there is any.
_TEXT = frozenset({"message", "raised", "exception", "reason"})
_SKIPPED = frozenset({"seq", "iteration", "node", "call", "backward", "index"})


def length(n: int) -> int:
    """A length as it counts for a shape: exact when small, its power of two when large."""
    return n if n < 12 else 12 + n.bit_length()


def shape_of(event: Event) -> int:
    """A hash of the shape of an event; equal shapes have equal hashes within one process."""
    known = _functions.get(type(event)) or prepare(type(event))
    return hash((event.KIND, known(event)))


def prepare(cls: type[Event]) -> Callable[[Event], Any]:
    """Write the function of a class, ahead of its first event."""
    known = _functions[cls] = _compile(cls)
    return known


_functions: dict[type[Event], Callable[[Event], Any]] = {}


def line_of(event: Event) -> int:
    """The coarse shape: kind and line alone."""
    return hash((event.KIND, event.site.file, event.site.line))


def _compile(cls: type[Event]) -> Callable[[Event], Any]:
    """Write the function `lambda e: (e.site.file, e.site.line, ...)` for a class."""
    scope: dict[str, Any] = {"n": length}
    code = "lambda e: " + _tuple_of(cls, "e", 0)
    function: Callable[[Event], Any] = eval(code, scope)
    return function


def _tuple_of(cls: type, var: str, depth: int) -> str:
    hints = get_type_hints(cls)
    parts = [_part(f.name, hints[f.name], f"{var}.{f.name}", depth) for f in fields(cls)]
    return "(" + "".join(f"{p}, " for p in parts if p) + ")"


def _part(name: str, hint: Any, value: str, depth: int) -> str:
    """The expression for one field; empty when it does not count."""
    if name in _SKIPPED:
        return ""
    if hint is Site:
        return f"{value}.file, {value}.line"
    if name in _TEXT or hint is float:
        return f"bool({value})" if name in _TEXT else ""
    args = get_args(hint)
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):  # X | None
        inner = next(a for a in args if a is not type(None))
        if _counts_itself(name, inner):
            return value
        if isinstance(inner, type) and is_dataclass(inner):
            return f"None if {value} is None else {_tuple_of(inner, value, depth)}"
        return f"{value} is None"
    if origin is tuple:
        if name in _AXES:
            return f"tuple([2 if x > 1 else x for x in {value}])"
        element = args[0]
        if isinstance(element, type) and is_dataclass(element) and element is not Site:
            item = "abcdefgh"[depth]
            return f"n(len({value})), tuple([{_tuple_of(element, item, depth + 1)} for {item} in {value}[:12]])"
        if element is str:
            return f"{value}[:12]"
        return f"n(len({value}))"
    if isinstance(hint, type) and is_dataclass(hint):
        return _tuple_of(hint, value, depth)
    if hint is int and name in _COUNTS:
        return f"min({value}, 2)"
    return value if _counts_itself(name, hint) else ""


@functools.cache
def _counts_itself(name: str, hint: Any) -> bool:
    if hint in (str, bool):
        return True
    return hint is int and (name in _OBJECTS or name in _PAIRED)


__all__ = ["length", "line_of", "shape_of"]
