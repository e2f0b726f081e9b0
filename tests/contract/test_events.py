"""What every event owes: it is frozen, documented, survives JSON and the store, and the read model takes it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from gradledger.audit.world import World
from gradledger.core.events import EVENTS, Event, from_json, to_json
from gradledger.core.site import Frame, Site
from gradledger.ledger._sink import SqliteSink
from gradledger.ledger._store import read

each_event = pytest.mark.parametrize("cls", list(EVENTS.values()), ids=list(EVENTS))
SITE = Site("train.py", 7, "fit", 3, True, (Frame("train.py", 20, "main"),))


def sample(hint: Any) -> Any:
    """A value of a type: nothing empty, so that every part of it is exercised."""
    if hint is Site:
        return SITE
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{f.name: sample(hints[f.name]) for f in dataclasses.fields(hint)})
    if get_origin(hint) is tuple:
        args = get_args(hint)
        return (sample(args[0]), sample(args[0])) if args[1:] == (...,) else tuple(sample(a) for a in args)
    inner = [a for a in get_args(hint) if a is not type(None)]
    if inner:
        return sample(inner[0])
    return {int: 3, float: 0.5, str: "word", bool: True}[hint]


def made(cls: type[Event]) -> Event:
    hints = get_type_hints(cls)
    return cls(**{f.name: sample(hints[f.name]) for f in dataclasses.fields(cls)})


@each_event
def test_kind_is_the_name_of_the_class(cls: type[Event]) -> None:
    assert re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower() == cls.KIND
    assert EVENTS[cls.KIND] is cls


@each_event
def test_it_is_documented(cls: type[Event]) -> None:
    text = cls.__doc__ or ""
    assert text
    assert not text.startswith(f"{cls.__name__}("), "the docstring that dataclass makes"


@each_event
def test_it_is_frozen_and_hashable(cls: type[Event]) -> None:
    event = made(cls)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.seq = 5  # type: ignore[misc]
    assert hash(event) == hash(made(cls))


@each_event
def test_through_json_and_back(cls: type[Event]) -> None:
    import json

    event = made(cls)
    assert from_json(cls.KIND, json.loads(json.dumps(to_json(event)))) == event


@each_event
def test_through_the_store_and_back(cls: type[Event], tmp_path: Path) -> None:
    event = made(cls)
    sink = SqliteSink(tmp_path / "run.db")
    sink.put(event)
    sink.close()
    assert list(read(tmp_path / "run.db")) == [event]


@each_event
def test_the_read_model_takes_it_in_any_order(cls: type[Event]) -> None:
    world = World()
    world.apply(made(cls))
    world.apply(dataclasses.replace(made(cls), seq=4))
    assert world.seq == 4
    for tensor in (3, 99):
        assert world.name(tensor)
