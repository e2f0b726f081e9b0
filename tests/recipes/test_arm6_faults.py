"""The audit on arm6_policy: silent on the recipe as it is, and on a planted fault the right code at its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes import arm6_faults, faults

PLANTED = [fault for fault in arm6_faults.FAULTS if fault.code]
RIGHT = [fault for fault in arm6_faults.FAULTS if not fault.code]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the audit says to every fault; torch and MuJoCo are imported once for all of them."""
    return faults.found_by(arm6_faults.__file__, tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("fault", RIGHT, ids=lambda fault: fault.name)
def test_nothing_is_said_about_the_recipe(fault: faults.Fault, audited: dict[str, dict[str, Any]]) -> None:
    told = audited[fault.name]
    assert told["reported"], told["output"]
    assert told["exit_code"] == 0, told["output"]
    assert told["findings"] == []
    assert 0 < float(told["output"].split()[-1]) < 2  # the trial came to its end, a distance in m


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_at_its_line(fault: faults.Fault, audited: dict[str, dict[str, Any]]) -> None:
    told = audited[fault.name]
    assert told["reported"], told["output"]
    _, lines = faults.plant(fault, arm6_faults.RECIPE)
    found = [finding for finding in told["findings"] if finding["code"] == fault.code]
    # a net in the wrong mode is also named where the package's own policy calls it
    mine = [finding for finding in found if Path(finding["file"]).name == "recipe.py"]
    assert len(mine) == 1, told["findings"]
    named = mine[0]["related_lines"] if fault.related else [mine[0]["line"]]
    assert lines & set(named), mine
    assert mine[0]["severity"] in ("error", "warning")
    assert {finding["code"] for finding in told["findings"]} <= {fault.code} | fault.also, told["findings"]


def test_the_faults_cover_at_least_ten_codes() -> None:
    assert len({fault.code for fault in PLANTED}) >= 10
