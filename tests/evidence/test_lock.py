"""The lock: registered before the first run, refused after an edit, amended under a number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradledger.core.records import RecordError, Records, canonical
from gradledger.evidence.errors import PlanError
from gradledger.evidence.lock import LOCK, PLAN, TRIALS, amend, changed, faults, lock, versions

TEXT = """
name = "gradients"
rng_seeds = [42]
[arms.plain]
lr = 0.01
[[hypotheses]]
id = "H1"
claim = "the first gradient has norm 0.7642"
quantity = "norm"
arms = ["plain"]
predicate = { kind = "equals", value = 0.7642, tolerance = 1e-3 }
"""
MORE = """
[[hypotheses]]
id = "H2"
claim = "no gradient"
quantity = "grad"
arms = ["plain"]
predicate = { kind = "is_none" }
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / PLAN
    path.write_text(TEXT)
    return path


def test_the_first_call_registers_and_the_next_confirms(plan: Path, tmp_path: Path) -> None:
    first = lock(tmp_path, plan)
    assert (first.number, first.trials_before, first.text) == (1, 0, TEXT)
    assert first.plan.sha256 == first.sha256
    plan.write_text(TEXT + "\n# a comment is no edit of the plan\n")
    assert lock(tmp_path, plan) == first
    assert faults(tmp_path) == []


EDITS = {
    "value": ("value = 0.7642", "value = 0.764189", "hypotheses.H1.predicate.value"),
    "tolerance": ("tolerance = 1e-3", "tolerance = 1.0", "hypotheses.H1.predicate.tolerance"),
    "claim": ("has norm 0.7642", "is small", "hypotheses.H1.claim"),
    "arm": ("lr = 0.01", "lr = 0.02", "arms.plain.lr"),
    "seed": ("rng_seeds = [42]", "rng_seeds = [43]", "rng_seeds"),
    "kind": ('kind = "equals", value = 0.7642, tolerance = 1e-3', 'kind = "range", low = 0.0', "predicate.kind"),
    "one more": ("[arms.plain]", MORE.replace("[[", "[[") + "\n[arms.plain]", "hypotheses.H2"),
}


@pytest.mark.parametrize("case", EDITS)
def test_an_edit_after_the_lock_is_refused_and_verify_names_the_field(case: str, plan: Path, tmp_path: Path) -> None:
    lock(tmp_path, plan)
    old, new, field = EDITS[case]
    plan.write_text(TEXT.replace(old, new))
    with pytest.raises(PlanError, match="edited since") as error:
        lock(tmp_path, plan)
    assert field in str(error.value)
    found = faults(tmp_path)
    assert any(fault.file == PLAN and field in fault.field for fault in found)


def test_a_plan_that_is_written_after_the_result_is_refused(plan: Path, tmp_path: Path) -> None:
    Records(tmp_path / TRIALS).append({"event": "finished"})
    with pytest.raises(PlanError, match=r"1 trials in .* and no registered plan"):
        lock(tmp_path, plan)


def test_amendments_are_numbered_and_say_how_many_results_were_known(plan: Path, tmp_path: Path) -> None:
    lock(tmp_path, plan)
    for event in ("started", "finished", "failed"):
        Records(tmp_path / TRIALS).append({"event": event})
    plan.write_text(TEXT + MORE)
    second = amend(tmp_path, plan, reason="the gradient turned out to be None")
    assert (second.number, second.trials_before) == (2, 2)
    assert lock(tmp_path, plan) == second
    first, again = versions(tmp_path)
    assert again == second
    assert [one.id for one in first.plan.hypotheses] == ["H1"]
    assert any(name.startswith("hypotheses.H2.") for name in changed(first.plan, second.plan))
    assert faults(tmp_path) == []
    plan.write_text(TEXT)  # back to what was registered first: an edit as well
    with pytest.raises(PlanError, match="version 2 as registered"):
        lock(tmp_path, plan)


def test_what_is_no_amendment_is_refused(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no registered plan"):
        amend(tmp_path, plan, reason="x")
    lock(tmp_path, plan)
    with pytest.raises(PlanError, match="the registered one"):
        amend(tmp_path, plan, reason="x")
    plan.write_text(TEXT + MORE)
    with pytest.raises(PlanError, match="no reason"):
        amend(tmp_path, plan, reason=" ")
    amend(tmp_path, plan, reason="one more")
    plan.write_text(TEXT.replace('"H1"', '"H3"') + MORE)
    with pytest.raises(PlanError, match="a plan without H1"):
        amend(tmp_path, plan, reason="it was refuted")


def test_an_edit_of_the_lock_itself_is_found(plan: Path, tmp_path: Path) -> None:
    lock(tmp_path, plan)
    path = tmp_path / LOCK
    line = json.loads(path.read_text())
    line["body"]["text"] = line["body"]["text"].replace("0.7642", "0.9")
    path.write_bytes(canonical(line) + b"\n")
    assert [(one.file, one.field) for one in faults(tmp_path)] == [(LOCK, "line 1: body.text")]
    with pytest.raises(RecordError, match=r"body\.text"):
        lock(tmp_path, plan)


def test_a_lock_whose_every_hash_was_computed_anew_still_disagrees_with_itself(plan: Path, tmp_path: Path) -> None:
    registered = lock(tmp_path, plan)
    (tmp_path / LOCK).unlink()
    text = TEXT.replace("value = 0.7642", "value = 0.9")
    Records(tmp_path / LOCK).append({"sha256": registered.sha256, "reason": "", "trials_before": 0, "text": text})
    assert next(one.field for one in faults(tmp_path)) == "line 1: body.sha256"


def test_a_folder_without_a_lock_is_told(tmp_path: Path) -> None:
    assert [one.got for one in faults(tmp_path)] == ["no registered plan"]
