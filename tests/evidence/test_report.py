"""The report and its commands: nothing that failed is missing, nothing is fetched, nothing of a program is run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gradledger.cli.commands import card, compare, predict, report, verify
from gradledger.evidence import _dots, bundle, lock
from gradledger.evidence import compare as comparing
from gradledger.evidence import report as reports
from gradledger.evidence.compare import Column
from gradledger.evidence.errors import StatisticsError
from gradledger.evidence.record import TrialRecord
from gradledger.evidence.runner import run_trials, trials_of
from gradledger.evidence.stats import summarise

PLAN = """
name = "two arms"
rng_seeds = [0, 1, 2, 3]
[arms.fast]
lr = 0.2
[arms.slow]
lr = 0.1
[[hypotheses]]
id = "H1"
claim = "fast is <script>alert(1)</script> lower"
quantity = "loss"
arms = ["slow", "fast"]
predicate = { kind = "ratio", low = 1.5 }
[[hypotheses]]
id = "H2"
claim = "no gradient"
quantity = "grad"
arms = ["fast"]
rng_seeds = [0]
predicate = { kind = "is_none" }
"""


def arms(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
    """The slow arm fails for the last seed and diverges for the one before."""
    if config["lr"] == 0.1 and rng_seed == 3:
        raise ValueError("a | pipe & <b>bold</b>")
    loss = 1.0 + rng_seed if config["lr"] == 0.2 else 2.0 + 2.0 * rng_seed
    if config["lr"] == 0.1 and rng_seed == 2:
        loss = float("inf")
    return {"loss": loss, "curve": [3.0, loss, 1.0], "grad": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("arms")
    (where / "plan.toml").write_text(PLAN)
    version = lock.lock(where, where / "plan.toml")
    run_trials(arms, trials_of(version.plan), where, plan=version.sha256)
    (where / "slices.json").write_text('[{"name": "dark", "n": 7, "support": "insufficient support", "worse": null}]')
    return where


def run(module: Any, *words: str) -> Any:
    app = typer.Typer()
    app.command()(module.command)
    return CliRunner().invoke(app, list(words), catch_exceptions=True)


class Reader(HTMLParser):
    """What a page holds: tags that load or run something, the text of its cells, tags left open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.active: list[str] = []
        self.text: list[str] = []
        self.pictures = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "img" and (given["src"] or "").startswith("data:image/png;base64,"):
            self.pictures += 1
        elif tag in ("script", "link", "img", "iframe", "object") or set(given) & {"src", "href", "onclick", "onload"}:
            self.active.append(tag)
        if tag not in ("meta", "line", "path", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "line", "circle"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_whole_and_loads_and_runs_nothing(folder: Path) -> None:
    page = reports.page(reports.tell(folder))
    reader = Reader()
    reader.feed(page)
    assert (reader.open, reader.active) == ([], [])
    assert "fast is <script>alert(1)</script> lower" in reader.text
    assert len(page.encode()) < 60_000
    story = reports.tell(folder)
    assert page.count("<figure>") == len(story.curves) + len(story.dots)
    assert len(story.curves) == 1
    broken = [path for path in re.findall(r'd="([^"]+)"', page) if path != "M0 4L20 4"]  # without those of the legend
    assert len(broken) == 7
    assert any(path.count("M") == 2 for path in broken)  # the infinite point parts its line
    assert "default-src 'none'" in page


def test_pictures_lie_in_the_page_as_long_as_there_is_room(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    for name, size in (("a.png", 1_500_000), ("b.png", 1_500_000), ("c.png", 100)):
        (copy / name).write_bytes(b"x" * size)
    page = reports.page(reports.tell(copy))
    reader = Reader()
    reader.feed(page)
    assert (reader.pictures, reader.active) == (1, [])
    assert len(page.encode()) < 3_000_000


def test_curves_over_decades_are_drawn_on_a_logarithmic_scale() -> None:
    drawn = reports.svg(reports.Curve("loss", {"a": [100.0, 10.0, 1.0]}))
    assert "logarithmic" in drawn
    assert "M62.0 12.0L237.0 101.0L412.0 190.0" in drawn
    assert "logarithmic" not in reports.svg(reports.Curve("loss", {"a": [2.0, -1.0]}))


def test_a_legend_tells_lines_apart_by_colour_and_dashes() -> None:
    drawn = reports.svg(reports.Curve("loss", {f"arm {at}": [1.0, 2.0] for at in range(14)}))
    looks = re.findall(r'<path class="([^"]+)" d="M6', drawn)
    assert looks[:7] == ["c0", "c1", "c2", "c3", "c4", "c5", "c0 d"]
    assert re.findall(r'<path class="([^"]+)" d="M0 4L20 4"/></svg>(arm \d+)', drawn)[6] == ("c0 d", "arm 6")
    assert "and 2 more</p>" in drawn


def test_every_seed_and_every_slice_is_a_dot_or_a_bar_on_one_scale() -> None:
    def column(arm: str, values: dict[int, float]) -> Column:
        return Column(arm, "loss", values, {}, summarise(list(values.values())))

    columns = [column("fast", {0: 1.0, 1: 2.0, 2: 3.0}), column("slow <b>", {0: 5.0})]
    (dots,) = _dots.of_seeds(columns, ["loss", "loss of another"])
    assert [(row.label, row.values, row.middle) for row in dots.rows] == [
        ("fast", (1.0, 2.0, 3.0), 2.0),
        ("slow <b>", (5.0,), 5.0),
    ]
    assert (dots.rows[0].low is not None, dots.rows[1].low) == (True, None)
    drawn = _dots.svg(dots)
    assert re.findall(r'<circle cx="([\d.]+)"', drawn) == ["138.0", "205.5", "273.0", "408.0"]  # 1 and 5 at the ends
    assert (drawn.count("<line class=m"), drawn.count("<line class=i"), "slow &lt;b&gt;" in drawn) == (2, 1, True)
    assert _dots.of_seeds(columns[1:], ["loss"]) == []  # one seed has nothing to be compared with

    rows = [
        {"name": "near", "mean": 0.5, "interval": {"low": 0.25, "high": 0.75}},
        {"name": "a slice with a long name", "mean": 1.0, "interval": {"low": None, "high": None}},
        {"name": "empty", "mean": None},
    ]
    (slices,) = _dots.of_slices(rows)
    assert [(row.label, row.low) for row in slices.rows] == [("near", 0.25), ("a slice with a long name", None)]
    assert "a slice with a long…<title>a slice with a long name: mean 1</title>" in _dots.svg(slices)
    assert _dots.of_slices([]) == []


def test_documents_bring_what_a_reader_must_know_and_what_is_torn_costs_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "slices.json").write_text('{"about": "in <rad>", "rows": [{"name": "dark", "n": 7}]}')
    (copy / "latency.json").write_text('{"whole": {"calls": 3}, "stages": {}, "distribution_ms": {"whole": [1, 2, 9]}}')
    fault = '{"fault": "no_clear", "predicted": "p", "actual": "a", "loud": false, "found": [["GL-G01", 12]]}'
    (copy / "results.json").write_text(f'{{"baselines": [{{"name": "mean", "mse": 1.5}}], "breaks": [{fault}]}}')
    story = reports.tell(copy)
    text = reports.markdown(story)
    assert "## Slices\n\nin <rad>\n\n| name | n |" in text
    assert "| mean | 1.5 |" in text
    assert "| no_clear | p | a | False | GL-G01 at line 12 | none |" in text
    assert story.curves[-1].lines == {"whole": [1.0, 2.0, 9.0]}
    assert "in &lt;rad&gt;" in reports.page(story)
    for torn in ("[]", '{"breaks": 3, "baselines": "x"}', "{"):
        (copy / "results.json").write_text(torn)
        assert "Faults" not in reports.markdown(reports.tell(copy))


def test_every_trial_and_what_is_in_no_mean_is_shown(folder: Path) -> None:
    text = reports.markdown(reports.tell(folder))
    assert "1 supported, 1 refuted, 0 inconclusive; 8 trials, 1 failed, 8 attempts" in text
    assert "| slow | 3 | 1 | failed |" in text
    assert "ValueError: a \\| pipe & &lt;b>bold" in text
    assert "| loss | fast | 4 | 2.5 | 2.5 | 1 | 4 |" in text
    assert "seed 2: not finite: inf; seed 3: failed: ValueError" in text
    assert "2 seeds: no interval below 3" in text
    assert "| loss | slow | 2 | 4 | not finite: inf | failed: ValueError: a" in text
    assert "| dark | 7 | insufficient support | none |" in text
    assert "<script" not in text


def test_an_amendment_after_results_is_called_what_it_is(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "plan.toml").write_text(PLAN.replace("low = 1.5", "low = 1.2"))
    lock.amend(copy, copy / "plan.toml", reason="the bound was a guess")
    text = reports.markdown(reports.tell(copy))
    assert "An amendment after trials had ended is no prediction of them." in text
    assert "| 8 | amended: the bound was a guess |" in text


def test_arms_are_compared_on_common_seeds(folder: Path) -> None:
    found = comparing.compare(TrialRecord(folder).latest(), "slow", "fast", "loss")
    assert found.paired.differences == {0: 1.0, 1: 2.0}
    assert (found.paired.only_first, found.paired.only_second) == ((), (2, 3))
    assert (found.isolated, found.differs) == (True, ("lr",))
    with pytest.raises(StatisticsError, match="the arm 'medium', wanted one of fast, slow"):
        comparing.compare(TrialRecord(folder).latest(), "medium", "fast", "loss")
    said = run(compare, str(folder), "slow", "fast", "loss")
    assert said.exit_code == 0
    assert "only fast has seed 2, 3" in said.output
    assert "interval at 0.95: 2 seeds: no interval below 3" in said.output
    assert "isolated: the arms differ in lr" in said.output


def test_the_commands_write_check_and_refuse(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run(report, str(folder), "-o", str(out)).exit_code == 0
    assert out.read_text().startswith("<!doctype html>")
    assert run(report, str(folder)).output.startswith("# two arms\n")
    first = run(verify, str(folder), "--seal")
    assert (first.exit_code, "is what was sealed" in first.output) == (0, True)
    seal = re.search(r"sealed: (\w{64})", first.output)
    assert seal is not None
    assert run(verify, str(folder), "--expect", seal[1]).exit_code == 0
    slices = folder / "slices.json"
    kept = slices.read_text()
    slices.write_text(kept.replace("insufficient support", "sufficient"))
    wrong = run(verify, str(folder))
    assert (wrong.exit_code, "slices.json: [0].support" in wrong.output) == (1, True)
    slices.write_text(kept)
    assert bundle.verify(folder) == []
    refused = run(card, str(folder))
    assert "card.toml" in str(refused.exception)


def test_evidence_loads_no_torch() -> None:
    program = (
        "import sys, pkgutil, importlib, gradledger.evidence as e\n"
        "[importlib.import_module(f'{e.__name__}.{m.name}') for m in pkgutil.iter_modules(e.__path__)]\n"
        "sys.exit('torch' in sys.modules or 'scipy' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_predictions_are_registered_before_anything_runs_and_amended_with_a_reason(tmp_path: Path) -> None:
    plan, out = tmp_path / "mine.toml", tmp_path / "run"
    plan.write_text(PLAN)
    said = run(predict, str(plan), "-o", str(out))
    assert said.exit_code == 0
    assert "H1 ratio of the arms at least 1.5" in said.output
    assert "version 1" in said.output
    plan.write_text(PLAN.replace("low = 1.5", "low = 1.2"))
    assert "edited since" in str(run(predict, str(plan), "-o", str(out)).exception)
    amended = run(predict, str(plan), "-o", str(out), "--amend", "the bound was a guess")
    assert (amended.exit_code, "version 2" in amended.output) == (0, True)
    assert lock.faults(out) == []


HASHED = """
name = "hashes"
rng_seeds = [0, 1, 2, 3]
[quantities.weights]
low = 0.0
unit = "fingerprint"
[arms.one]
lr = 1.0
[[hypotheses]]
id = "H1"
claim = "the weights have a hash above zero"
quantity = "weights"
arms = ["one"]
predicate = { kind = "range", low = 1.0 }
"""


def test_what_says_which_and_not_how_much_has_no_mean_and_no_interval(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(HASHED)
    version = lock.lock(tmp_path, tmp_path / "plan.toml")
    run_trials(
        lambda config, rng_seed: {"weights": float(2**50 + rng_seed // 2), "loss": float(rng_seed), "kind": "net"},
        trials_of(version.plan),
        tmp_path,
        plan=version.sha256,
    )
    (over,) = [one for one in reports.tell(tmp_path).blocks if one.title == "Over seeds"]
    rows = {row[0]: row for row in over.rows}
    assert set(rows) == {"weights", "loss"}
    assert rows["weights"][3:8] == ("-", "-", "-", "-", "none: a fingerprint, 2 different")
    assert " to " in rows["loss"][7]
