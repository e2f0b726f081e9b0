"""Bundle and card: whatever is edited afterwards is found, and named by file and field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

from evidence import experiments
from gradledger.core.records import Fault, Records, canonical
from gradledger.evidence import bundle, lock, model_card
from gradledger.evidence.errors import BundleError, CardError
from gradledger.evidence.judge import judge
from gradledger.evidence.model_card import CARD, SECTIONS, SOURCE
from gradledger.evidence.record import TrialRecord, load_arrays
from gradledger.evidence.runner import run_trials, trials_of
from gradledger.evidence.trial import Trial

PLAN = experiments.LINE_PLAN
RESULT = """
[[results]]
dataset = "line data"
config = "{config}"
metric = "mse"
value = "results.json#slices[{at}].mean"
"""


def card_source(**changed: str) -> str:
    texts = {name: f"What is to be said of {name}, H1 and p95 included." for name in SECTIONS}
    texts["results"] = (
        "Mean loss {{results.json#mean|.4f}} over {{results.json#n}} seeds, at a level of "
        "{{card.toml#facts.level}} percent.\n\n{{table results.json#trials|rng_seed,loss:.4f,status}}"
    )
    texts |= changed
    sections = "".join(f"{name} = '''{text}'''\n" for name, text in texts.items())
    front = (
        '[front]\nname = "line"\nlicense = "apache-2.0"\ntags = ["gradledger", "line"]\ntask = "tabular-regression"\n'
    )
    results = "".join(RESULT.format(config=config, at=at) for at, config in enumerate(("near", "far")))
    return f"{front}[facts]\nlevel = 95\n[sections]\n{sections}{results}"


@pytest.fixture(scope="module")
def sealed_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("line")
    (folder / lock.PLAN).write_text(PLAN)
    version = lock.lock(folder, folder / lock.PLAN)
    attempts = run_trials(experiments.fit, trials_of(version.plan), folder, plan=version.sha256)
    verdicts = judge(version.plan, TrialRecord(folder).measured())
    assert [one.verdict for one in verdicts] == ["supported"]
    bundle.open_labels(folder)
    rows = [
        {"rng_seed": one.trial.rng_seed, "arm": one.trial.arm, "loss": one.quantities["loss"], "status": one.status}
        for one in attempts
        if one.quantities is not None
    ]
    results = {
        "n": len(rows),
        "mean": float(np.mean([row["loss"] for row in rows])),
        "trials": rows,
        "hypotheses": [one.record() for one in verdicts],
        "slices": [{"name": "near", "mean": 0.25}, {"name": "far", "mean": 0.5}],
    }
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "slices.csv").write_text("slice,loss\nnear,0.25\nfar,0.5\n")
    (folder / SOURCE).write_text(card_source())
    model_card.write(folder)
    return folder, bundle.seal(folder)


@pytest.fixture
def folder(sealed_once: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed_once[0], tmp_path / "copy"))


def test_what_was_sealed_is_verified_and_copies_are_as_good(folder: Path, sealed_once: tuple[Path, str]) -> None:
    assert bundle.verify(folder) == []
    assert bundle.verify(folder, expect=sealed_once[1]) == []
    assert bundle.verify(folder, expect=sealed_once[1][:12]) == []
    assert [str(one.field) for one in bundle.verify(folder, expect="0" * 12)] == ["self"]


def replace(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def edit_json(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        change(document)
        (folder / name).write_text(json.dumps(document))

    return work


def edit_line(name: str, line: int, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        lines = [json.loads(text) for text in (folder / name).read_text().splitlines()]
        change(lines[line])
        (folder / name).write_bytes(b"".join(canonical(one) + b"\n" for one in lines))

    return work


def edit_prediction(folder: Path) -> None:
    path = sorted((folder / "predictions").iterdir())[0]
    arrays = load_arrays(path)
    np.savez(path, **{**arrays, "prediction": arrays["target"]})


EDITS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "plan": (lambda f: replace(f, "plan.toml", "low = 2.0", "low = 1.5"), "plan.toml", "hypotheses.H1.predicate.low"),
    "lock": (
        edit_line(lock.LOCK, 0, lambda x: x["body"].update(text=x["body"]["text"].replace("2.0", "1.5"))),
        lock.LOCK,
        "body.text",
    ),
    "lock time": (edit_line(lock.LOCK, 0, lambda x: x.update(at="2001-01-01T00:00:00")), lock.LOCK, "at"),
    "metric": (
        edit_line(lock.TRIALS, 1, lambda x: x["body"]["quantities"].update(loss=0.0)),
        lock.TRIALS,
        "body.quantities.loss",
    ),
    "setting": (edit_line(lock.TRIALS, 0, lambda x: x["body"]["config"].update(lr=9.0)), lock.TRIALS, "config.lr"),
    "opening": (edit_line("openings.jsonl", 0, lambda x: x["body"].update(why="a")), "openings.jsonl", "body.why"),
    "opening taken out": (lambda f: (f / "openings.jsonl").unlink(), "openings.jsonl", "file"),
    "prediction": (edit_prediction, "predictions/", "prediction"),
    "result": (edit_json("results.json", lambda x: x.update(mean=0.0)), "results.json", "mean"),
    "row of a result": (
        edit_json("results.json", lambda x: x["trials"][1].update(loss=0.0)),
        "results.json",
        "trials[1].loss",
    ),
    "verdict": (
        edit_json("results.json", lambda x: x["hypotheses"][0].update(verdict="refuted")),
        "results.json",
        "hypotheses.H1.verdict",
    ),
    "column": (lambda f: replace(f, "slices.csv", "far,0.5", "far,0.1"), "slices.csv", "column loss"),
    "number in the card": (lambda f: replace(f, CARD, "over 6 seeds", "over 9 seeds"), CARD, "results.json#n"),
    "number in its front matter": (lambda f: replace(f, CARD, '"value": 0.5', '"value": 0.1'), CARD, "slices[1].mean"),
    "words of the card": (lambda f: replace(f, CARD, "What is to be said of slices", "Fine"), CARD, "Slices"),
    "section of the card": (lambda f: replace(f, CARD, "## Limitations\n", ""), CARD, "Limitations"),
    "source of the card": (lambda f: replace(f, SOURCE, "level = 95", "level = 99"), SOURCE, "facts.level"),
    "added file": (lambda f: (f / "more.json").write_text("{}"), "more.json", "file"),
    "lost file": (lambda f: (f / "slices.csv").unlink(), "slices.csv", "file"),
    "hash in the seal": (
        edit_json(bundle.BUNDLE, lambda x: x["files"]["slices.csv"].update(sha256="0" * 64)),
        bundle.BUNDLE,
        "files.slices.csv.sha256",
    ),
    "seal": (edit_json(bundle.BUNDLE, lambda x: x.update(self="0" * 64)), bundle.BUNDLE, "self"),
    "head in the seal": (
        edit_json(bundle.BUNDLE, lambda x: x["heads"].update({lock.LOCK: "0"})),
        bundle.BUNDLE,
        "heads.",
    ),
    "no json": (lambda f: (f / bundle.BUNDLE).write_text("{"), bundle.BUNDLE, "file"),
}


@pytest.mark.parametrize("case", EDITS)
def test_an_edit_is_found_and_named_by_file_and_field(case: str, folder: Path) -> None:
    edit, file, field = EDITS[case]
    edit(folder)
    found = bundle.verify(folder)
    assert any(one.file.startswith(file) and field in one.field for one in found), "\n".join(map(str, found))


@pytest.mark.parametrize("case", ["metric", "prediction", "verdict", "number in the card", "plan", "lock"])
def test_what_was_edited_is_not_sealed_again(case: str, folder: Path) -> None:
    EDITS[case][0](folder)
    with pytest.raises(BundleError, match="vouches for nothing"):
        bundle.seal(folder)


def test_a_forged_whole_is_found_by_the_hash_that_was_kept(folder: Path, sealed_once: tuple[Path, str]) -> None:
    edit_json("results.json", lambda x: x.update(mean=0.0))(folder)
    model_card.write(folder)
    forged = bundle.seal(folder)
    assert forged != sealed_once[1]
    assert bundle.verify(folder) == []
    assert [(one.file, one.field) for one in bundle.verify(folder, expect=sealed_once[1])] == [(bundle.BUNDLE, "self")]


def test_a_trial_of_no_registered_plan_and_one_before_the_plan_are_found(folder: Path) -> None:
    body = {"event": "started", "attempt": 1, "arm": "x", "config": {"x": 1}, "rng_seed": 0, "plan": "elsewhere"}
    Records(folder / lock.TRIALS).append({**body, "id": Trial("x", {"x": 1}, 0).id})
    assert any("body.plan" in one.field and one.got == "elsewhere" for one in bundle.verify(folder))


def test_a_plan_that_was_registered_anew_after_the_result_is_found(folder: Path) -> None:
    """The lock is forged with every hash right: for the same plan its time tells, for another one its hash."""
    (folder / lock.LOCK).unlink()
    trials = (folder / lock.TRIALS).read_bytes()
    (folder / lock.TRIALS).unlink()
    lock.lock(folder, folder / lock.PLAN)
    (folder / lock.TRIALS).write_bytes(trials)
    late = [one for one in bundle.verify(folder) if one.file == lock.TRIALS]
    assert {one.field.partition(": ")[2] for one in late} == {"at"}
    with pytest.raises(BundleError, match="after the plan was registered"):
        bundle.seal(folder)
    (folder / lock.LOCK).unlink()
    (folder / lock.TRIALS).unlink()
    replace(folder, lock.PLAN, "low = 2.0", "low = 1.5")
    lock.lock(folder, folder / lock.PLAN)
    (folder / lock.TRIALS).write_bytes(trials)
    other = [one for one in bundle.verify(folder) if one.file == lock.TRIALS]
    assert {one.field.partition(": ")[2] for one in other} == {"body.plan"}


def test_a_flipped_bit_and_a_cut_anywhere_are_found_and_never_a_crash(folder: Path) -> None:
    """Every file in turn, at places drawn at random: the file itself is named."""
    rng = np.random.default_rng(0)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole, name = path.read_bytes(), path.relative_to(folder).as_posix()
        for at in rng.integers(0, len(whole), size=6).tolist():
            flipped = bytearray(whole)
            flipped[at] ^= 1 << int(rng.integers(0, 8))
            for broken in (bytes(flipped), whole[:at]):
                path.write_bytes(broken)
                found = bundle.verify(folder)
                assert found, f"{name} at byte {at}"
                assert any(one.file == name for one in found), f"{name} at byte {at}: {list(map(str, found))}"
        path.write_bytes(whole)
    assert bundle.verify(folder) == []


def test_results_that_came_after_the_seal_are_told(folder: Path) -> None:
    Records(folder / "openings.jsonl").append({"plan": "x", "in_version": 2, "why": "y"})
    found: list[Fault] = bundle.verify(folder)
    assert ("openings.jsonl", "head") in [(one.file, one.field) for one in found]


def test_labels_are_opened_once_and_later_ones_are_counted_with_their_reason(folder: Path) -> None:
    with pytest.raises(BundleError, match="opened 1 times under version 1"):
        bundle.open_labels(folder)
    second = bundle.open_labels(folder, why="the loader read the wrong column")
    assert (second.number, second.in_version) == (2, 2)
    replace(folder, lock.PLAN, "rng_seeds = [0, 1, 2]", "rng_seeds = [0, 1]")
    lock.amend(folder, folder / lock.PLAN, reason="time")
    assert bundle.open_labels(folder).in_version == 1
    assert [one.why for one in bundle.openings(folder)] == ["", "the loader read the wrong column", ""]
    stale = [one for one in bundle.verify(folder) if one.file == CARD]
    assert any("openings.jsonl line 2" in one.field for one in stale)
    model_card.write(folder)
    told = (folder / CARD).read_text().partition("## Test labels opened")[2].splitlines()
    assert told[2] == "Once under each version of the plan, and 1 more: see why."
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told[6:]]
    assert [(row[0], row[3], row[4]) for row in rows] == [
        ("1", "1", "first under this plan"),
        ("2", "2", "the loader read the wrong column"),
        ("3", "1", "first under this plan"),
    ]


def test_what_is_no_bundle_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(BundleError, match=r"no bundle\.json"):
        bundle.verify(tmp_path)
    with pytest.raises(BundleError, match="8 digits or more"):
        bundle.verify(folder, expect="abc")
    with pytest.raises(BundleError, match="no registered plan"):
        bundle.open_labels(tmp_path)
    (folder / "link.csv").symlink_to(folder / "slices.csv")
    assert [(one.file, one.got[:6]) for one in bundle.verify(folder)] == [("link.csv", "a link")]
    with pytest.raises(BundleError, match=r"a link, link\.csv"):
        bundle.seal(folder)


# -------------------------------------------------------------------------------------------------------------- card


def test_the_hub_reads_the_card_with_one_result_a_slice(folder: Path) -> None:
    card = ModelCard.load(folder / CARD)
    assert (card.data.license, card.data.tags) == ("apache-2.0", ["gradledger", "line"])
    results = {one.dataset_config: one.metric_value for one in card.data.eval_results}
    assert results == {"near": 0.25, "far": 0.5}
    assert {one.task_type for one in card.data.eval_results} == {"tabular-regression"}
    again = ModelCard(str(card))  # what the Hub writes back has lost nothing
    assert {one.dataset_config: one.metric_value for one in again.data.eval_results} == results


def test_the_card_shows_what_the_folder_holds(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    text = (folder / CARD).read_text()
    assert f"Mean loss {results['mean']:.4f} over 6 seeds, at a level of 95 percent." in text
    assert all(f"## {title}\n" in text for title in SECTIONS.values())
    for row in results["trials"]:
        assert f"| {row['rng_seed']} | {row['loss']:.4f} | finished |" in text


REFUSED = {
    "empty section": (card_source(latency="  "), "no text, wanted the section 'Latency' filled"),
    "missing section": (card_source().replace("worst_cases =", "worst_case ="), "the section 'worst_case'"),
    "number by hand": (card_source(slices="It misses 0.03 of them."), "the number 0.03 written by hand"),
    "per cent by hand": (card_source(slices="It misses 3% of them."), "the number 3 written by hand"),
    "number in quotes": (card_source(slices="It misses `0.03`."), "the number 0.03 written by hand"),
    "reference to nothing": (card_source(slices="{{results.json#median}}"), "no median in results.json#(top)"),
    "reference to a later row": (card_source(slices="{{results.json#slices[7].mean}}"), "no [7]"),
    "reference out of the folder": (card_source(slices="{{../x.json#a}}"), "inside the folder"),
    "reference to a table": (card_source(slices="{{results.json#slices[0]}}"), "a table of fields"),
    "unfit form": (card_source(slices="{{results.json#mean|d}}"), "the form 'd'"),
    "config twice": (card_source().replace('config = "far"', 'config = "near"'), "a distinct config for each slice"),
    "text as a result": (card_source().replace("#slices[1].mean", "#slices[1].name"), "wanted a number"),
    "no front": (card_source().replace("[front]", "[frnt]"), "no [front]"),
    "no TOML": ("[front", "TOMLDecodeError"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_card_that_would_say_too_little_or_too_much_is_refused(case: str, folder: Path) -> None:
    text, told = REFUSED[case]
    (folder / SOURCE).write_text(text)
    with pytest.raises(CardError) as error:
        model_card.write(folder)
    assert told in str(error.value)
    assert any(one.file == SOURCE for one in model_card.faults(folder))
