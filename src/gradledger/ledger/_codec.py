"""Events to rows and back: compact JSON in which every site is a number into one table of sites.

A site repeats its file name and its callers; most events of a run share a few dozen of them.  Encoders and decoders are
built once per class from the field types of the vocabulary, so a new event needs no code here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from gradledger.core.events import EVENTS, Event, to_json
from gradledger.core.site import Frame, Site

Plain = Any  # what JSON holds
_NUMBERED = ("seq", "iteration")  # columns of their own


class SiteTable:
    """Numbers for sites, given in order of first mention.  `fresh()` hands out those not yet stored."""

    def __init__(self) -> None:
        self._numbers: dict[Site, int] = {}
        self._fresh: list[tuple[int, str]] = []

    def number(self, site: Site) -> int:
        """The number of a site."""
        known = self._numbers.get(site)
        if known is None:
            known = self._numbers[site] = len(self._numbers)
            self._fresh.append((known, json.dumps(to_json(site), separators=(",", ":"))))
        return known

    def fresh(self) -> list[tuple[int, str]]:
        """(number, JSON) of the sites numbered since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh


def site_from_json(text: str) -> Site:
    """Inverse of what `SiteTable.fresh` gives."""
    file, line, function, first_line, in_init, callers = json.loads(text)
    return Site(file, line, function, first_line, in_init, tuple(Frame(*frame) for frame in callers))


def encode(event: Event, sites: SiteTable) -> str:
    """The body of an event: its fields in order without `seq` and `iteration`, as JSON."""
    cls: Any = type(event)
    return json.dumps([_plain(getattr(event, name), sites) for name in _body_fields(cls)], separators=(",", ":"))


def decode(kind: str, seq: int, iteration: int, body: str, sites: dict[int, Site]) -> Event:
    """Inverse of `encode`.  Raises KeyError for a kind or a site that is not known."""
    cls: Any = EVENTS[kind]
    names = _body_fields(cls)
    readers = _readers(cls)
    values = json.loads(body)
    # fields added to an event since the ledger was written take their defaults
    given = {n: readers[n](v, sites) for n, v in zip(names, values, strict=False)}
    event: Event = cls(seq=seq, iteration=iteration, **given)
    return event


def _plain(value: Any, sites: SiteTable) -> Plain:
    if isinstance(value, Site):
        return sites.number(value)
    if isinstance(value, tuple):
        return [_plain(v, sites) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        part: Any = type(value)
        return [_plain(getattr(value, name), sites) for name in _all_fields(part)]
    return value


@functools.cache
def _all_fields(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


@functools.cache
def _body_fields(cls: Any) -> tuple[str, ...]:
    return tuple(name for name in _all_fields(cls) if name not in _NUMBERED)


Reader = Callable[[Plain, dict[int, Site]], Any]


@functools.cache
def _readers(cls: Any) -> dict[str, Reader]:
    hints = get_type_hints(cls)
    return {name: _reader(hints[name]) for name in _all_fields(cls)}


@functools.cache
def _reader(hint: Any) -> Reader:
    """How a value of type `hint` is read back."""
    if hint is Site:
        return lambda value, sites: sites[value]
    if isinstance(hint, type) and is_dataclass(hint):
        return _part_reader(hint)
    args = get_args(hint)
    if get_origin(hint) is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            one = _reader(args[0])
            return (lambda value, _: tuple(value)) if one is _same else _many_reader(one)
        each = [_reader(a) for a in args]
        return lambda value, sites: tuple(r(v, sites) for r, v in zip(each, value, strict=True))
    inner = [a for a in args if a is not type(None)]
    if len(inner) == 1 and len(args) == 2:  # X | None
        some = _reader(inner[0])
        return _same if some is _same else lambda value, sites: None if value is None else some(value, sites)
    return _same


def _same(value: Plain, sites: dict[int, Site]) -> Any:
    return value


def _many_reader(one: Reader) -> Reader:
    return lambda value, sites: tuple(one(v, sites) for v in value)


def _part_reader(cls: type) -> Reader:
    readers = list(_readers(cls).values())
    return lambda value, sites: cls(*(r(v, sites) for r, v in zip(readers, value, strict=False)))


__all__ = ["SiteTable", "decode", "encode", "site_from_json"]
