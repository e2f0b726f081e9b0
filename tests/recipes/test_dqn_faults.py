"""The audit on the DQN recipe: silent on the recipe as it is, and on a planted fault the right code at the planted
line. The faults are those of `faults.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes import faults

PLANTED = [fault for fault in faults.FAULTS if fault.code]
RIGHT = [fault for fault in faults.FAULTS if not fault.code]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the audit says to every fault; torch is imported once for all of them."""
    return faults.found_by(faults.__file__, tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("fault", RIGHT, ids=lambda fault: fault.name)
def test_nothing_is_said_about_the_recipe(fault: faults.Fault, audited: dict[str, dict[str, Any]]) -> None:
    told = audited[fault.name]
    assert told["reported"], told["output"]
    assert told["exit_code"] == 0, told["output"]
    assert told["findings"] == []
    assert "plumbing test" in told["output"]


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_at_its_line(fault: faults.Fault, audited: dict[str, dict[str, Any]]) -> None:
    told = audited[fault.name]
    assert told["reported"], told["output"]
    _, lines = faults.plant(fault)
    mine = [finding for finding in told["findings"] if finding["code"] == fault.code]
    assert len(mine) == 1, told["findings"]
    named = mine[0]["related_lines"] if fault.related else [mine[0]["line"]]
    assert lines & set(named), mine
    assert mine[0]["severity"] in ("error", "warning")
    assert Path(mine[0]["file"]).name == fault.named
    assert {finding["code"] for finding in told["findings"]} <= {fault.code} | fault.also, told["findings"]


def test_the_faults_cover_at_least_ten_codes_at_single_lines() -> None:
    assert len({fault.code for fault in PLANTED}) >= 10
    assert all(len(faults.plant(fault)[1]) == 1 for fault in PLANTED)


def test_a_text_that_is_gone_is_an_error_and_no_fault() -> None:
    with pytest.raises(LookupError, match=r"0 times in dqn_atari\.py, not once"):
        faults.plant(faults.Fault("stale", "GL-G01", (("no such line\n", ""),)))
    with pytest.raises(LookupError, match="no line to be named"):
        faults.plant(faults.Fault("nameless", "GL-G01", ((faults.CLEAR, ""),)))
