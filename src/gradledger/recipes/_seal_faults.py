"""The planted leak and the planted shortcut in figures, and what abstention does: leaks, shortcut and abstain.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data import leaks as leak_tests
from gradledger.evidence import abstain, slices, stats
from gradledger.evidence.record import Attempt
from gradledger.recipes import _seal_baselines, _seal_data
from gradledger.recipes._seal_data import Data

Kept = Mapping[str, Mapping[str, NDArray[Any]]]
LEVEL, REPLICATES = 0.95, 2000
# arm on whole bursts, the same on single frames
LEAKS = (("mlp", "mlp_frame"), ("conv", "conv_frame"))
BEFORE, AFTER = "recorded", "conv"
AGREES, DISAGREES = "light agrees with the label", "light disagrees"
BRIGHTER, DARKER = "brighter than its label says", "darker than its label says"


@dataclass(frozen=True)
class Gap:
    """Error on whole bursts minus error on single frames, with its interval for new seeds and new caps."""

    model: str
    grouped: float
    random: float
    leak: float
    low: float | None
    high: float | None
    seeds: int
    caps: int


def leaks(data: Data, config: Mapping[str, Any], finished: Sequence[Attempt], kept: Kept) -> dict[str, Any]:
    """`leaks.json`: near twins under three ways of splitting, kinship along the record, what a random split adds."""
    named = _seal_data.named(config)
    made = {how: _seal_data.sides(*named, how) for how in ("burst", "named", "frame")}
    small = _seal_data.thumbnails(data.recording.images)
    bursts = leak_tests.burst_test(small, standardise=False)
    control = leak_tests.group_control(
        small, data.recording.offset[:, 0], made["burst"].groups, task="values", standardise=False
    )
    gaps = [asdict(one) for one in gaps_of(data, config, finished, kept)]
    return {
        "about": (
            f"Mean absolute error in {data.unit} of the same arm on a test side of whole caps and on one of single "
            f"frames; leak: their difference; interval at {LEVEL} by bootstrap over seeds and caps, both drawn."
        ),
        "rows": gaps,
        "copies": len(_seal_data.copies(data)),
        "twins": [{"split": how, "found": len(told), "said": told} for how, told in _twins(data, made).items()],
        "bursts": {"found": bursts.found, "said": str(bursts)},
        "nearest_neighbours": {"found": control.found, "said": str(control)},
    }


def _twins(data: Data, made: Mapping[str, Any]) -> dict[str, list[str]]:
    return {how: _seal_data.leaks_of(data, one) for how, one in made.items()}


def gaps_of(data: Data, config: Mapping[str, Any], finished: Sequence[Attempt], kept: Kept) -> list[Gap]:
    """One for each pair of LEAKS that was run."""
    cap = np.array(_seal_data.sides(*_seal_data.named(config), "burst").groups)
    found = []
    for grouped, random in LEAKS:
        both = [_sums(arm, finished, kept, cap) for arm in (grouped, random)]
        if all(len(sums) for sums, _ in both):
            found.append(_gap(grouped, *both))
    return found


def _sums(
    arm: str, finished: Sequence[Attempt], kept: Kept, cap: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(S, K) sums of the absolute error by seed and cap, (K,) rows of each cap on the test side."""
    mine = [kept[one.trial.id] for one in finished if one.trial.arm == arm]
    sums, counts = [], np.zeros(int(cap.max()) + 1)
    for arrays in mine:
        of, away = cap[arrays["at"]], np.abs(arrays["said"] - arrays["target"])[:, 0].astype(np.float64)
        sums.append(np.bincount(of, weights=away, minlength=len(counts)))
        counts = np.bincount(of, minlength=len(counts)).astype(np.float64)
    return np.array(sums), counts


def _gap(
    model: str,
    grouped: tuple[NDArray[np.float64], NDArray[np.float64]],
    random: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> Gap:
    rng = np.random.default_rng(0)
    seeds, caps = len(grouped[0]), len(grouped[1])
    of_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=REPLICATES) / seeds
    of_caps = rng.multinomial(caps, np.full(caps, 1 / caps), size=REPLICATES)
    drawn = [
        np.einsum("rs,sk,rk->r", of_seeds, sums, of_caps, optimize=True) / np.maximum(of_caps @ counts, 1)
        for sums, counts in (grouped, random)
    ]
    tail = (1 - LEVEL) / 2
    low, high = (float(one) for one in np.quantile(drawn[0] - drawn[1], [tail, 1 - tail]))
    means = [float(sums.sum() / (len(sums) * counts.sum())) for sums, counts in (grouped, random)]
    enough = seeds >= stats.FEWEST_SEEDS
    there = int(((grouped[1] > 0) | (random[1] > 0)).sum())
    leak = means[0] - means[1]
    return Gap(model, means[0], means[1], leak, low if enough else None, high if enough else None, seeds, there)


def agreement(data: Data) -> tuple[str, ...]:
    """Of each crop, whether its light says what the label says: both above, or both below the middle of their line."""
    recording = data.recording
    line, level = np.array(recording.line), _level(data)
    same = np.zeros(len(line), dtype=bool)
    for name in sorted(set(recording.line)):
        mine = line == name
        label = recording.offset[mine, 0]
        same[mine] = (level[mine] > np.median(level[mine])) == (label > np.median(label))
    return tuple(AGREES if one else DISAGREES for one in same.tolist())


def excess(data: Data) -> tuple[str, ...]:
    """Of each crop, whether it is brighter than a line through labels and levels of its production line says. A net
    that reads the light errs upwards on the one half and downwards on the other; one that is merely drawn to the middle
    of the labels does not, for what is left over has nothing to do with the label."""
    line, level, label = np.array(data.recording.line), _level(data), data.recording.offset[:, 0].astype(np.float64)
    over = np.zeros(len(line), dtype=bool)
    for name in sorted(set(data.recording.line)):
        mine = line == name
        spread = np.cov(label[mine], level[mine])
        told = (label[mine] - label[mine].mean()) * (spread[0, 1] / max(spread[0, 0], 1e-12))
        over[mine] = level[mine] - level[mine].mean() > told
    return tuple(BRIGHTER if one else DARKER for one in over.tolist())


def _level(data: Data) -> NDArray[np.float64]:
    return np.asarray(np.log(np.maximum(data.recording.images.astype(np.float64).mean(axis=(1, 2, 3)), 1e-3)))


def shortcut(data: Data, config: Mapping[str, Any], finished: Sequence[Attempt], kept: Kept) -> dict[str, Any]:
    """`shortcut.json`: what metadata alone tell, the slices in which the light lies, and the counterfactual, before and
    after the light was divided out."""
    names, rows = (agreement(data), excess(data)), []
    groups = _seal_data.sides(*_seal_data.named(config), "burst").groups
    told: dict[str, dict[int, Mapping[str, Any]]] = {BEFORE: {}, AFTER: {}}
    for one in finished:
        if one.trial.arm in told:
            told[one.trial.arm][one.trial.rng_seed] = one.quantities or {}
            rows.append(_row(one, kept[one.trial.id], names, groups))
    changes = []
    for name in ("light_moves", "relit", "mae"):
        before, after = ({seed: q[name] for seed, q in told[arm].items()} for arm in (BEFORE, AFTER))
        if before.keys() & after.keys():
            summary = stats.paired(before, after).summary
            changes.append({"quantity": name, "before": _mean(before), "after": _mean(after), **asdict(summary)})
    probe = _seal_baselines.table(*_seal_data.named(config), "burst")
    return {
        "about": (
            f"{data.unit}. moves: mean change of an answer when the lamp alone goes from a quarter less to a third "
            "more light; relit: error when each crop has the light of another of its line. Slices: error where light "
            "and label agree and where they do not, p: one-sided, that the second is worse; mean of said minus label "
            "where a crop is brighter than its label says, and where it is darker, p of signed: one-sided, that the "
            "first is higher, as it is when a net reads the light."
        ),
        "probe": [one.record() for one in probe if "metadata" in one.name or one.name == _seal_baselines.MEAN],
        "rows": rows,
        "changes": changes,
    }


def _row(
    one: Attempt, arrays: Mapping[str, NDArray[Any]], names: Sequence[Sequence[str]], groups: Sequence[int]
) -> dict[str, Any]:
    quantities, at = one.quantities or {}, arrays["at"]
    signed = (arrays["said"] - arrays["target"])[:, 0].astype(np.float64)
    parts = {
        part.name: part
        for values, cut in zip((np.abs(signed), signed), names, strict=True)
        for part in slices.by_slice(values, _seal_data.rows(cut, at), [groups[int(i)] for i in at])
    }
    lies, bright, dark = (parts.get(name) for name in (DISAGREES, BRIGHTER, DARKER))
    return {
        "arm": one.trial.arm,
        "rng_seed": one.trial.rng_seed,
        "mae": quantities["mae"],
        "agrees": parts[AGREES].mean if AGREES in parts else None,
        "disagrees": lies.mean if lies else None,
        "p": lies.p if lies else None,
        "brighter": bright.mean if bright else None,
        "darker": dark.mean if dark else None,
        "p_of_signed": bright.p if bright else None,
        "moves": quantities["light_moves"],
        "slope": quantities["light_slope"],
        "relit": quantities["relit"],
    }


def _mean(values: Mapping[int, float]) -> float:
    return float(np.mean(list(values.values())))


def abstained(data: Data, config: Mapping[str, Any], mine: Sequence[Attempt], kept: Kept) -> dict[str, Any]:
    """`abstain.json`: of every seed the threshold, what it answers on held-out caps and at what risk, and how often the
    interval holds there; of the first seed the same by condition."""
    rows = []
    for one in mine:
        told, arrays = one.quantities or {}, kept[one.trial.id]
        answered = arrays["score"] <= (told["limit"] if told["limit"] is not None else -1.0)
        inside = np.abs(arrays["said"] - arrays["target"])[:, 0] <= (told["half_width"] or np.inf)
        names = ("limit", "answered", "risk", "half_width", "interval_coverage", "mae")
        row = {"rng_seed": one.trial.rng_seed, **{name: told[name] for name in names}}
        rows.append(row | {"coverage_of_answered": float(inside[answered].mean()) if answered.any() else None})
    first, arrays = mine[0].quantities or {}, kept[mine[0].trial.id]
    limit = abstain.Threshold(first["limit"], config["risk"], None, 0.0, LEVEL, 0)
    away = np.abs(arrays["said"] - arrays["target"])[:, 0].astype(np.float64)
    parts = abstain.evaluate_by_slice(
        limit, arrays["score"], away, _seal_data.rows(data.recording.condition, arrays["at"])
    )
    return {
        "about": (
            f"Threshold on the expected error, chosen on calibration caps so that the mean error of what is answered "
            f"stays below {config['risk']} {data.unit} (upper bound at {LEVEL}); interval for "
            f"{1 - config['alpha']:.0%} of the crops of new caps. Both looked at once on the test side."
        ),
        "registered": {"risk": config["risk"], "alpha": config["alpha"]},
        "rows": rows,
        "conditions": [{"name": name, **part.record()} for name, part in parts.items()],
    }
