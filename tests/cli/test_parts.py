"""A part of the report that fails is told and costs nothing else."""

from __future__ import annotations

import pytest

from gradledger.audit.report import Cost, Report
from gradledger.audit.story import Storyteller
from gradledger.audit.world import World
from gradledger.cli._parts import Parts

EMPTY = Report(None, None, (), (), (), (), (), {})


def test_nothing_asked_for_is_nothing_loaded_or_heard() -> None:
    parts = Parts(pictures=False, like=None)
    assert parts.listeners == []
    report = parts.complete(EMPTY, World(), Cost(1.0))
    assert (report.story, report.comparison, report.cost, report.notes) == (None, None, Cost(1.0), ())


def test_pictures_that_fail_become_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(pictures=True, like=None)
    assert len(parts.listeners) == 1
    assert parts.complete(EMPTY, World()).story is not None

    def broken(self: Storyteller, world: World) -> None:
        raise ValueError("torn")

    monkeypatch.setattr(Storyteller, "story", broken)
    report = parts.complete(EMPTY, World())
    assert report.story is None
    assert [n.message for n in report.notes] == ["a part of the report could not be made: ValueError: torn"]
