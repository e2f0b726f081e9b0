"""The audit on seal_scout: silent on the recipe as it is, and on a planted fault the right code at the planted line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes import faults, seal_faults

PLANTED = [fault for fault in seal_faults.FAULTS if fault.code]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the audit says to every fault; torch is imported once for all of them."""
    return faults.found_by(seal_faults.__file__, tmp_path_factory.mktemp("faults"))


def test_nothing_is_said_about_the_recipe(audited: dict[str, dict[str, Any]]) -> None:
    told = audited["nothing"]
    assert told["reported"], told["output"]
    assert told["exit_code"] == 0, told["output"]
    assert told["findings"] == []
    assert len(told["output"].split()) == 3  # three trials came to their end


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_at_its_line(fault: faults.Fault, audited: dict[str, dict[str, Any]]) -> None:
    told = audited[fault.name]
    assert told["reported"], told["output"]
    _, lines = faults.plant(fault, seal_faults.RECIPE)
    mine = [finding for finding in told["findings"] if finding["code"] == fault.code]
    assert len(mine) == 1, told["findings"]
    named = mine[0]["related_lines"] if fault.related else [mine[0]["line"]]
    assert lines & set(named), mine
    assert Path(mine[0]["file"]).name == "recipe.py"
    assert {finding["code"] for finding in told["findings"]} <= {fault.code} | fault.also, told["findings"]


def test_the_faults_cover_ten_codes() -> None:
    assert len({fault.code for fault in PLANTED}) >= 10
