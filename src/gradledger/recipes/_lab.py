"""What the labs share: a registered plan, its trials, verdicts, and the faults that are planted on purpose."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradledger.core.errors import UsageError
from gradledger.core.records import write_text
from gradledger.evidence import environment, judge, live, lock, report, runner
from gradledger.evidence.judge import Judgement
from gradledger.evidence.record import Attempt, TrialRecord
from gradledger.evidence.trial import Experiment
from gradledger.recipes import _folder

PLANS, BREAKS = Path(__file__).parent / "plans", Path(__file__).parent / "breaks"


@dataclass(frozen=True)
class Break:
    """A fault on purpose. program: file under breaks/, with `# fault` behind the line, or `# no fault` where it looks
    like one and is none. predicted: the symptom, before it was run. loud: it raises. code: of the rule that must find
    it; None where torch itself says it, and where there is nothing to be found: there the audit must be silent."""

    program: str
    predicted: str
    loud: bool
    code: str | None

    @property
    def path(self) -> Path:
        """Of the program."""
        return BREAKS / f"{self.program}.py"

    @property
    def line(self) -> int:
        """Where the fault is."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return next(number for number, text in enumerate(lines, 1) if text.endswith(("# fault", "# no fault")))


@dataclass(frozen=True)
class Broken:
    """What came of a Break. actual: the last line that the program said. found: codes and lines, worst first."""

    fault: str
    predicted: str
    actual: str
    loud: bool
    found: tuple[tuple[str, int], ...]
    as_expected: bool

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "fault": self.fault,
            "predicted": self.predicted,
            "actual": self.actual,
            "loud": self.loud,
            "found": [list(one) for one in self.found],
            "as_expected": self.as_expected,
        }


def run_break(name: str, one: Break) -> Broken:
    """Run a faulty program under `gradledger audit`, as anyone would, and read the report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["audit", "--fail-on", "never", "--format", "json", "--output", str(report), str(one.path)]
        done = subprocess.run(
            [sys.executable, "-m", "gradledger", *words], capture_output=True, text=True, timeout=600, cwd=folder
        )
        findings = json.loads(report.read_text(encoding="utf-8"))["findings"] if report.exists() else []
    said = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    loud = done.returncode != 0
    found = tuple((finding["code"], finding["line"]) for finding in findings)
    expected = (one.code, one.line) in found if one.code is not None else loud or not found
    right = loud == one.loud and expected
    return Broken(name, one.predicted, said[-1] if said else "", loud, found, right)


@dataclass(frozen=True)
class Ran:
    """What came of a registered plan. attempts: what counts of each trial. anew: some of them ran in this call, or the
    call in which they ran was ended before it could say where."""

    attempts: Sequence[Attempt]
    judgements: Sequence[Judgement]
    anew: bool

    @property
    def finished(self) -> list[Attempt]:
        """The trials that came to their end with quantities."""
        return [one for one in self.attempts if one.status == "finished" and one.quantities is not None]

    @property
    def measured(self) -> dict[tuple[str, int], Mapping[str, Any]]:
        """Quantities by arm and seed."""
        return {(one.trial.arm, one.trial.rng_seed): one.quantities or {} for one in self.finished}


def run_plan(
    experiment: Experiment,
    version: lock.Version,
    out: Path,
    *,
    workers: int,
    backend: runner.Backend = "processes",
    retry_failed: bool = False,
) -> Ran:
    """Run the trials of a registered plan that have not finished in this folder, shown while they run, and judge all.

    Arguments and errors are those of `runner.run_trials`.
    """
    record = TrialRecord(out)
    before = len(record.attempts())
    attempts = live.run_shown(
        experiment,
        runner.trials_of(version.plan),
        out,
        plan=version.sha256,
        workers=workers,
        backend=backend,
        retry_failed=retry_failed,
    )
    anew = len(record.attempts()) > before or not (out / "environment.json").exists()
    ran = Ran(attempts, (), anew)
    return dataclasses.replace(ran, judgements=judge.judge(version.plan, ran.measured))


def run(
    name: str,
    experiment: Experiment,
    breaks: Mapping[str, Break],
    *,
    out: Path,
    predict: Path | None = None,
    only_break: str = "",
    workers: int = 1,
    backend: runner.Backend = "processes",
    retry_failed: bool = False,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Register the plan, run what it asks for, judge, break; print both tables; write `results.json`,
    `environment.json` and `report.html`.

    Args:
        predict: a plan of one's own, over the same arms; default: the lab's.
        only_break: run this fault alone, no trial.
        workers, backend, retry_failed: see `runner.run_trials`.
        tables: more for `results.json`, by name, as rows.

    Raises:
        UsageError: there is no such fault, or the folder belongs to something else.
        PlanError: the plan was edited after its first run, or cannot come out both ways.
    """
    if only_break and only_break not in breaks:
        raise UsageError(
            got=f"--break {only_break}",
            wanted=f"one of: {', '.join(breaks)}",
            where=f"gradledger run {name}",
            next_step="choose one; without --break all are run",
        )
    chosen = {key: one for key, one in breaks.items() if only_break in ("", key)}
    told: dict[str, Any] = {"recipe": name}
    if not only_break:
        out.mkdir(parents=True, exist_ok=True)
        version = lock.lock(out, predict or PLANS / f"{name}.toml")
        print(f"plan {version.sha256[:12]}, version {version.number}, registered {version.at}", flush=True)
        ran = run_plan(experiment, version, out, workers=workers, backend=backend, retry_failed=retry_failed)
        failed = {one.trial.arm: one.error for one in ran.attempts if one.status != "finished"}
        told |= {
            "plan": version.sha256,
            "hypotheses": [one.record() for one in ran.judgements],
            "measured": {arm: dict(quantities) for (arm, _), quantities in ran.measured.items()},
            "failed": failed,
        }
        if ran.anew:
            save_environment(out, seeds={"trials": version.plan.rng_seeds[0]} if version.plan.rng_seeds else {})
        print(table(ran.judgements), flush=True)
        for arm, error in failed.items():
            print(f"failed: {arm}: {error}", flush=True)
    broken = []
    for key, one in chosen.items():
        broken.append(run_break(key, one))
        print(shown(broken[-1], one), flush=True)
    told["breaks"] = [one.record() for one in broken]
    told |= {name: [dict(row) for row in rows] for name, rows in (tables or {}).items()}
    if not only_break:
        _folder.write_json(out / "results.json", told)
        write_text(out / "report.html", report.page(report.tell(out)))
        print(f"-> {out / 'results.json'}", flush=True)
    return told


def save_environment(out: Path, *, seeds: Mapping[str, int], **more: Any) -> None:
    """One document a call that ran trials: environment.json, environment.2.json and so on."""
    taken = sum(1 for _ in out.glob("environment*.json"))
    name = f"environment.{taken + 1}.json" if taken else "environment.json"
    flags = {"version": torch.__version__, "threads": torch.get_num_threads()}
    flags["deterministic_algorithms"] = torch.are_deterministic_algorithms_enabled()
    told = environment.environment(code=Path(__file__).parent, seeds=seeds, torch=flags, **more)
    _folder.write_json(out / name, told)


def table(judgements: Sequence[Judgement]) -> str:
    """Hypothesis, predicted, measured, verdict; three lines each, in the width of the screen."""
    width = min(shutil.get_terminal_size().columns, 120)
    lines = [""]
    for one in judgements:
        alone = "" if one.isolated is not False else f"   NOT ISOLATED: the arms differ in {', '.join(one.differs)}"
        lines += textwrap.wrap(f"{one.id:<4} {one.claim}", width, subsequent_indent=" " * 5)
        values = "; ".join(", ".join(_short(value) for value in values) for values in one.measured.values())
        lines += textwrap.wrap(f"predicted {one.predicted}", width, initial_indent=" " * 5, subsequent_indent=" " * 7)
        lines += textwrap.wrap(f"measured  {values}", width, initial_indent=" " * 5, subsequent_indent=" " * 7)
        why = f" ({one.why})" if one.why and one.verdict != "supported" else ""
        lines += textwrap.wrap(
            f"{one.verdict.upper()}{why}{alone}", width, initial_indent=" " * 5, subsequent_indent=" " * 7
        )
    counts = {verdict: sum(one.verdict == verdict for one in judgements) for verdict in ("supported", "refuted")}
    rest = len(judgements) - sum(counts.values())
    lines.append(f"{counts['supported']} supported, {counts['refuted']} refuted, {rest} inconclusive")
    return "\n".join(lines)


def shown(broken: Broken, one: Break) -> str:
    """A fault on purpose, in a few lines."""
    width = min(shutil.get_terminal_size().columns, 120)
    found = ", ".join(f"{code} at line {line}" for code, line in broken.found) or "nothing"
    wanted = f"{one.code} at line {one.line}" if one.code is not None else "torch's error" if one.loud else "nothing"
    rows = [
        f"break {broken.fault} ({'loud' if broken.loud else 'silent'}): breaks/{one.path.name}, line {one.line}",
        f"predicted {broken.predicted}",
        f"actual    {broken.actual}",
        f"audit     {found}" + ("" if broken.as_expected else f"   NOT AS EXPECTED: {wanted}"),
    ]
    lines = [""]
    for number, row in enumerate(rows):
        first = "" if number == 0 else " " * 5
        lines += textwrap.wrap(row, width, initial_indent=first, subsequent_indent=" " * 7)
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_short(one) for one in list(value)[:5]) + (", ...]" if len(value) > 5 else "]")
    return str(value)
