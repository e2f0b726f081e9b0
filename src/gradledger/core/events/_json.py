"""Events by kind, and events to JSON and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from gradledger.core.events import _base, _copies, _data, _modules, _optimizers, _oracle, _ranks, _reverse
from gradledger.core.events._base import Event

EVENTS: dict[str, type[Event]] = {
    value.KIND: value
    for module in (_base, _modules, _optimizers, _reverse, _copies, _data, _ranks, _oracle)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
}
"""The closed vocabulary by kind."""


def to_json(value: Any) -> Any:
    """Plain JSON value of an event or of a part of one (dataclasses become lists of field values, in order)."""
    if is_dataclass(value) and not isinstance(value, type):
        return [to_json(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, tuple):
        return [to_json(v) for v in value]
    return value


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls)
    return _HINTS[cls]


def _build(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(hint, type) and is_dataclass(hint):
        hints = _hints(hint)
        return hint(**{f.name: _build(hints[f.name], v) for f, v in zip(fields(hint), value, strict=False)})
    origin = get_origin(hint)
    if origin is tuple:
        args = get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_build(args[0], v) for v in value)
        return tuple(_build(a, v) for a, v in zip(args, value, strict=True))
    inner = [a for a in get_args(hint) if a is not type(None)]
    if len(inner) == 1:  # X | None
        return _build(inner[0], value)
    return value


def from_json(kind: str, value: Any) -> Event:
    """Inverse of `to_json` for a whole event of kind `kind`.

    Raises KeyError for an unknown kind: a ledger of a newer schema.
    """
    event: Event = _build(EVENTS[kind], value)
    return event
