"""Several seeds of one setting, one run after the other or side by side, and the table that tells how they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradledger.evidence import live
from gradledger.evidence.runner import Backend
from gradledger.evidence.trial import Experiment, Trial
from gradledger.recipes import _folder
from gradledger.recipes._statistics import Spread, spread

TABLE = "seeds.json"
# What is compared over seeds, by its name in `score_of`; the table on the screen shows these columns.
MEASURES = {
    "evaluation": "mean return of the evaluation",
    "return_20": "mean return of the last 20 training episodes",
    "return_100": "mean return of the last 100 training episodes",
}


def folder_of(out: Path, rng_seed: int) -> Path:
    """Where the run of one seed lies."""
    return out / f"seed-{rng_seed}"


def series(out: Path) -> dict[str, Any] | None:
    """The document of a series that was started in this folder, or None.

    Raises:
        FolderError: there is one, and it is no JSON.
    """
    return _folder.read_json(out / TABLE) if (out / TABLE).exists() else None


def run_seeds(
    recipe: str,
    seeds: Sequence[int],
    out: Path,
    run: Callable[[int, Path], Mapping[str, Any]],
    *,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Run each seed; `seeds.json` is there from the start and grows with each, so that a series can go on.

    Args:
        run: (rng_seed, folder) -> the run's record. A seed that is done already may return the record it left.
        settings: the arguments of all runs but seed and folder.
    """
    scores: dict[int, dict[str, Any]] = {}
    told = table(recipe, seeds, scores, settings)
    out.mkdir(parents=True, exist_ok=True)
    _folder.write_json(out / TABLE, told)
    for place, rng_seed in enumerate(seeds, start=1):
        print(f"seed {rng_seed} ({place} of {len(seeds)}) -> {folder_of(out, rng_seed)}", flush=True)
        scores[rng_seed] = score_of(run(rng_seed, folder_of(out, rng_seed)))
        told = table(recipe, seeds, scores, settings)
        _folder.write_json(out / TABLE, told)
    print("\n".join(lines(told)))
    print(f"-> {out / TABLE}")
    return told


def run_beside(
    recipe: str,
    seeds: Sequence[int],
    out: Path,
    run: Experiment,
    *,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    jobs: int,
    backend: Backend,
) -> dict[str, Any]:
    """Run the seeds that have not finished, `jobs` at a time, shown while they run; `trials.jsonl` has every attempt,
    `seed-N.log` what the run of a seed said. A seed that failed is in the table with its error.

    Args:
        run: (settings, rng_seed) -> scores, importable by another process; it goes on where its folder ends.
        settings: the arguments of all runs but seed and folder. config: those of them that make a run another run.
    """
    out.mkdir(parents=True, exist_ok=True)
    _folder.write_json(out / TABLE, table(recipe, seeds, {}, settings))
    attempts = live.run_shown(
        run,
        [Trial(recipe, config, rng_seed) for rng_seed in seeds],
        out,
        workers=jobs,
        backend=backend,
        retry_failed=True,
        output=lambda one: out / f"seed-{one.rng_seed}.log",
        scalars=False,  # each run writes its own
    )
    scores: dict[int, dict[str, Any]] = {}
    failed = []
    for one in attempts:
        rng_seed = one.trial.rng_seed
        record = finished(folder_of(out, rng_seed))
        if one.status == "finished" and record is not None:
            scores[rng_seed] = score_of(record)
        else:
            why = one.error or f"no record in {folder_of(out, rng_seed)}"
            failed.append({"rng_seed": rng_seed, "status": one.status, "attempts": one.number, "error": why})
    told = table(recipe, seeds, scores, settings) | {"failed": failed}
    _folder.write_json(out / TABLE, told)
    print("\n".join(lines(told)))
    print(f"-> {out / TABLE}", flush=True)
    return told


def finished(folder: Path) -> dict[str, Any] | None:
    """The record of a run that came to its end, or None."""
    path = folder / _folder.RECORD
    return _folder.read_json(path) if path.exists() else None


def score_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """One line of the table out of a run's record."""
    returns = record["returns_of_the_last_episodes"]
    return {
        "evaluation": record["evaluation"]["mean"],
        "evaluation_standard_deviation": record["evaluation"]["standard_deviation"],
        "return_20": sum(returns[-20:]) / len(returns[-20:]) if returns else None,
        "return_100": sum(returns) / len(returns) if returns else None,
        "env_step": record["completed"]["env_step"],
        "seconds": round(sum(record["seconds"].values()), 1),
        "kind": record["kind"],
    }


def table(
    recipe: str, seeds: Sequence[int], scores: Mapping[int, Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The document: every seed, and each measure over all seeds that have it. No seed is left out of a mean."""
    return {
        "recipe": recipe,
        "args": {name: value for name, value in settings.items() if name not in ("rng_seed", "out", "resume")},
        "asked": list(seeds),
        "seeds": [{"rng_seed": rng_seed, **score} for rng_seed, score in scores.items()],
        "over_seeds": {
            name: spread(values).record()
            for name in MEASURES
            if (values := [score[name] for score in scores.values() if score[name] is not None])
        },
        "interval": "Student's t interval of the mean over seeds, 95 %",
    }


def lines(document: Mapping[str, Any]) -> list[str]:
    """The table for a screen of 80 columns."""
    shown = [f"{'seed':>9}  {'evaluation':>16}  {'last 20':>8}  {'last 100':>8}  {'env steps':>10}  {'seconds':>9}"]
    for row in document["seeds"]:
        scored = f"{row['evaluation']:.2f} ± {row['evaluation_standard_deviation']:.2f}"
        cells = (_cell(row["return_20"]), _cell(row["return_100"]))
        shown.append(
            f"{row['rng_seed']:>9}  {scored:>16}  {cells[0]:>8}  {cells[1]:>8}  {row['env_step']:>10,}  "
            f"{row['seconds']:>9,.1f}"
        )
    shown += [f"{row['rng_seed']:>9}  {row['status']}: {row['error']}" for row in document.get("failed", [])]
    spreads = {name: Spread(**facts) for name, facts in document["over_seeds"].items()}
    for label, get in _SUMMARY.items():
        each = {name: _cell(get(spreads[name]) if name in spreads else None) for name in MEASURES}
        shown.append(f"{label:>9}  {each['evaluation']:>16}  {each['return_20']:>8}  {each['return_100']:>8}")
    return shown


_SUMMARY: dict[str, Callable[[Spread], float | None]] = {
    "mean": lambda one: one.mean,
    "sd": lambda one: one.standard_deviation,
    "95 % from": lambda one: one.interval_95[0] if one.interval_95 else None,
    "to": lambda one: one.interval_95[1] if one.interval_95 else None,
    "median": lambda one: one.median,
}


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
