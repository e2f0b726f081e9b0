"""A folder in which somebody made things fit: chains and seals computed anew, and what still does not hold together."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from evidence import experiments
from gradledger.core.records import GENESIS, canonical, digest, field_digests
from gradledger.evidence import _page, bundle, compare, lock, report
from gradledger.evidence.errors import BundleError
from gradledger.evidence.hypothesis import parse
from gradledger.evidence.judge import judge
from gradledger.evidence.record import TrialRecord, load_arrays, save_arrays
from gradledger.evidence.runner import run_trials, trials_of

PLAN = experiments.LINE_PLAN


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("line")
    (folder / lock.PLAN).write_text(PLAN)
    version = lock.lock(folder, folder / lock.PLAN)
    bundle.open_labels(folder)
    attempts = run_trials(experiments.fit, trials_of(version.plan), folder, plan=version.sha256)
    record = TrialRecord(folder)
    rows = [
        {"arm": one.trial.arm, "rng_seed": one.trial.rng_seed, "status": one.status, **dict(one.quantities or {})}
        for one in attempts
    ]
    told = {
        "hypotheses": [one.record() for one in judge(version.plan, record.measured())],
        "trials": rows,
        "model": {key: value for key, value in rows[0].items() if key != "status"},
        "measured": {"slow": rows[-1]},
        "over_seeds": [
            {"arm": one.arm, "quantity": one.quantity, **asdict(one.summary)}
            for one in compare.columns(record.latest())
            if one.summary is not None
        ],
        "baselines": [{"name": "zero", "value": 4.0}],
    }
    (folder / "results.json").write_text(json.dumps(told))
    (folder / "report.html").write_text(report.page(report.tell(folder)))
    return folder, bundle.seal(folder)


@pytest.fixture
def folder(tmp_path: Path, once: tuple[Path, str]) -> Path:
    return Path(shutil.copytree(once[0], tmp_path / "copy"))


def chained(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change lines of a chain, and every hash with them."""
    previous, written = GENESIS, b""
    for text in path.read_text().splitlines():
        line = json.loads(text)
        change(line)
        line |= {"previous": previous, "fields": field_digests(line["body"])}
        previous = line["sha256"] = digest({key: value for key, value in line.items() if key != "sha256"})
        written += canonical(line) + b"\n"
    path.write_bytes(written)


def result(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        told = json.loads((folder / "results.json").read_text())
        change(told)
        (folder / "results.json").write_text(json.dumps(told))

    return work


def page(old: str, new: str) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        text = (folder / "report.html").read_text()
        assert re.search(old, text)
        (folder / "report.html").write_text(re.sub(old, new, text, count=1))

    return work


def better(line: dict[str, Any]) -> None:
    if line["body"]["event"] == "finished":
        line["body"]["quantities"]["loss"] = 0.001


def other_seed(line: dict[str, Any]) -> None:
    if line["body"].get("rng_seed") == 2:
        line["body"]["rng_seed"] = 7


def easier(line: dict[str, Any]) -> None:
    body = line["body"]
    body["text"] = body["text"].replace("low = 2.0", "low = 0.5")
    body["sha256"] = parse(body["text"]).sha256


def other_answers(folder: Path) -> None:
    path = sorted((folder / "predictions").iterdir())[0]
    arrays = load_arrays(path)
    vouched = save_arrays(path, {**arrays, "prediction": arrays["target"]})

    def tell(line: dict[str, Any]) -> None:
        if line["body"]["id"] == path.stem and line["body"]["event"] == "finished":
            line["body"]["predictions"] = vouched

    chained(folder / lock.TRIALS, tell)


def swapped(folder: Path) -> None:
    one, other = sorted((folder / "predictions").iterdir())[:2]
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def renamed(folder: Path) -> None:
    sorted((folder / "predictions").iterdir())[0].rename(folder / "predictions" / "0123456789abcdef.npz")


def last_trial_cut(folder: Path) -> None:
    lines = (folder / lock.TRIALS).read_text().splitlines(keepends=True)
    (folder / lock.TRIALS).write_text("".join(lines[:-2]))


# name: the forgery, and file and field in which it does not hold together, with a new seal over it
RESEALED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "figure of a trial": (result(lambda x: x["trials"][1].update(loss=0.0)), "results.json", "trials[1].loss"),
    "curve of a trial": (result(lambda x: x["trials"][1].update(curve=[1.0])), "results.json", "trials[1].curve"),
    "state of a trial": (result(lambda x: x["trials"][2].update(status="failed")), "results.json", "trials[2].status"),
    "seed of a trial": (result(lambda x: x["trials"][2].update(rng_seed=9)), "results.json", "trials[2]"),
    "trial left out": (result(lambda x: x["trials"].pop()), "results.json", "trials"),
    "figure of the model": (result(lambda x: x["model"].update(loss=0.0)), "results.json", "model.loss"),
    "figure of an arm": (result(lambda x: x["measured"]["slow"].update(w=0.0)), "results.json", "measured.slow.w"),
    "mean over seeds": (result(lambda x: x["over_seeds"][0].update(mean=0.0)), "results.json", "over_seeds[0].mean"),
    "claim": (result(lambda x: x["hypotheses"][0].update(claim="any")), "results.json", "hypotheses.H1.claim"),
    "verdict of the page": (page("✓ supported", "✕ refuted"), "report.html", "Hypotheses, row 1: verdict"),
    "counts of the page": (page("0 refuted", "7 refuted"), "report.html", "Summary, row 1: counts"),
    "row of the page": (page(r'<tr><td data-label="arm"[^>]*>fast.*?</tr>', ""), "report.html", "Trials"),
    "table of the page": (page("<h2>Trials</h2>", "<h2>Other</h2>"), "report.html", "Trials"),
    "records": (lambda f: chained(f / lock.TRIALS, better), "results.json", "hypotheses.H1.measured"),
    "seed of a record": (lambda f: chained(f / lock.TRIALS, other_seed), lock.TRIALS, "body.id"),
    "last trial cut off": (last_trial_cut, "results.json", "hypotheses.H1"),
    "openings taken out": (lambda f: (f / "openings.jsonl").unlink(), "report.html", "Test labels opened"),
    "plan": (lambda f: chained(f / lock.LOCK, easier), lock.TRIALS, "body.plan"),
    "swapped predictions": (swapped, "predictions/", "prediction"),
    "renamed predictions": (renamed, "predictions/0123456789abcdef.npz", "file"),
}


@pytest.mark.parametrize("case", RESEALED)
def test_a_forgery_that_does_not_hold_together_gets_no_seal_and_is_named(case: str, folder: Path) -> None:
    forge, file, field = RESEALED[case]
    forge(folder)
    found = bundle.verify(folder)
    assert any(one.file.startswith(file) and field in one.field for one in found), "\n".join(map(str, found))
    with pytest.raises(BundleError, match="vouches for nothing"):
        bundle.seal(folder)


# Hashes of the chain are right, and the seal is the old one.
CHAINED: dict[str, tuple[Callable[[Path], None], str]] = {
    "records": (lambda f: chained(f / lock.TRIALS, better), "body.quantities.loss"),
    "predictions and their record": (other_answers, "body.predictions.arrays.prediction"),
    "time of a record": (
        lambda f: chained(f / lock.TRIALS, lambda x: x.update(at=x["at"].replace("+00:00", "1+00:00"))),
        "line 1: at",
    ),
}


@pytest.mark.parametrize("case", CHAINED)
def test_a_chain_that_was_computed_anew_is_named_by_line_and_field(case: str, folder: Path) -> None:
    forge, field = CHAINED[case]
    forge(folder)
    assert any(one.file == lock.TRIALS and field in one.field for one in bundle.verify(folder))


def test_a_forgery_in_all_places_at_once_is_left_to_the_hash_that_was_kept(
    folder: Path, once: tuple[Path, str]
) -> None:
    result(lambda x: x["baselines"][0].update(value=9.0))(folder)
    assert [(one.file, one.field) for one in bundle.verify(folder)][:1] == [
        ("report.html", "Baselines, row 1: value")
    ]  # the page knows better
    (folder / "report.html").write_text(report.page(report.tell(folder)))
    bundle.seal(folder)
    assert bundle.verify(folder) == []
    assert [one.field for one in bundle.verify(folder, expect=once[1])] == ["self"]


def test_an_older_seal_put_back_and_a_seal_of_before_are_told_apart(folder: Path, once: tuple[Path, str]) -> None:
    (folder / "notes.txt").write_text("more")
    bundle.open_labels(folder, why="a second look")
    (folder / "report.html").write_text(report.page(report.tell(folder)))
    later = bundle.seal(folder)
    assert bundle.verify(folder, expect=later) == []
    shutil.copy(once[0] / bundle.BUNDLE, folder / bundle.BUNDLE)
    found = {(one.file, one.field) for one in bundle.verify(folder)}
    assert {("notes.txt", "file"), ("openings.jsonl", "head"), ("openings.jsonl", "line 2: body.why")} <= found

    document = json.loads((folder / bundle.BUNDLE).read_text())
    for one in document["files"].values():  # a seal of a version that told no fields of these files
        one["fields"] = {}
    vouched = document["files"]["openings.jsonl"]
    assert [one.field for one in bundle.file_faults(folder / "openings.jsonl", vouched, name="x")] == ["file"]


def test_a_page_of_another_hand_is_vouched_for_by_the_seal_alone(folder: Path) -> None:
    (folder / "report.html").write_text("<h1>What we did</h1><p>0 refuted</p>")
    bundle.seal(folder)
    assert bundle.verify(folder) == []
    page("0 refuted", "1 refuted")(folder)
    assert [(one.file, one.field) for one in bundle.verify(folder)] == [("report.html", "file")]


def test_the_tables_of_a_page_are_read_as_they_were_told(folder: Path) -> None:
    story = report.tell(folder)
    tables = _page.tables(report.page(story))
    for block in story.blocks:
        told = tables[block.title]
        assert (told.heads, told.rows) == (list(block.heads), [list(row) for row in block.rows])
    assert tables["Summary"].rows == [[story.summary]]
    assert list(tables) == ["Summary", *(block.title for block in story.blocks)]
