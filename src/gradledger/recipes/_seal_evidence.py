"""What seal_scout leaves beside its trials: data and splits, slices, worst cases, latency, refusals, card, seal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file

from gradledger.core.files import usual_mode
from gradledger.core.records import write_text
from gradledger.evidence import baselines as scale
from gradledger.evidence import bundle, compare, lock, model_card, slices
from gradledger.evidence import report as reports
from gradledger.evidence.hypothesis import Plan
from gradledger.evidence.record import Attempt, TrialRecord
from gradledger.recipes import (
    _folder,
    _lab,
    _paths,
    _seal_answer,
    _seal_baselines,
    _seal_data,
    _seal_faults,
    _seal_image,
    _seal_malformed,
    _seal_measures,
    _seal_nets,
    _seal_physics,
    _seal_pictures,
)
from gradledger.recipes._seal_answer import Rules
from gradledger.recipes._seal_data import Data
from gradledger.recipes._seal_nets import Scaling, Scout

CARDS = Path(__file__).parent / "cards"
MAIN, DENSE = "conv", "mlp"  # the arm whose first seed is the model of the folder; the one it is held against
DATA, SPLITS = "data.npz", {"burst": "split.json", "frame": "split_frame.json"}
CALLS, WORST = 1_000, 8
STREAMS = ("weights", "order", "labels", "stop")
SHOWN = ("mae", "train", "worst", "light_moves", "answered", "risk", "interval_coverage")


def open_once(out: Path, version: lock.Version) -> None:
    """Every trial ends with the test side: say so before the first."""
    if not any(one.plan == version.sha256 for one in bundle.openings(out)):
        bundle.open_labels(out)


def trials(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Every trial, failed ones too."""
    return [
        {"arm": one.trial.arm, "rng_seed": one.trial.rng_seed, "status": one.status, "error": one.error}
        | {name: value for name, value in (one.quantities or {}).items() if not isinstance(value, list)}
        for one in attempts
    ]


def seed_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every trial in a line."""
    lines = ["", f"{'arm':<12} {'seed':>4}  " + "  ".join(f"{name:>17}" for name in SHOWN)]
    for one in rows:
        told = [one.get(name) for name in SHOWN]
        figures = "  ".join(f"{'-' if value is None else format(value, '.4f'):>17}" for value in told)
        if one["status"] != "finished":
            figures = f"{one['status']}: {one['error']}"
        lines.append(f"{one['arm']:<12} {one['rng_seed']:>4}  {figures}")
    return "\n".join(lines)


def save_environment(out: Path, words: Mapping[str, str], config: Mapping[str, Any]) -> None:
    """What the trials of this call ran with."""
    data = _seal_data.load(*_seal_data.named(config))
    made = _seal_data.sides(*_seal_data.named(config), "burst")
    _lab.save_environment(
        out,
        seeds={"data": _seal_data.DATA_SEED, "split": _seal_data.SPLIT_SEED},
        derived_seeds={name: f"train.seed.derived(rng_seed of the trial, {name!r})" for name in STREAMS},
        config=dict(words),
        data={"sha256": _seal_data.digest(data), "split": made.sha256, "source": data.source, **made.counts()},
        threads_of_a_trial=1,
    )


def leave(out: Path, told: dict[str, Any], ran: _lab.Ran, plan: Plan, *, pictures: bool) -> None:
    """Complete `told`, write it and the documents beside it, and seal; a second call on a sealed folder in which
    nothing ran leaves it as it was."""
    mine = [one for one in ran.finished if one.trial.arm == MAIN]
    if not mine:
        _folder.write_json(out / "results.json", told)
        return
    model, record = mine[0], TrialRecord(out)
    config, found = model.trial.config, model.quantities or {}
    data = _seal_data.load(*_seal_data.named(config))
    kept = {one.trial.id: record.predictions(one.trial.id) for one in ran.finished}
    own = kept[model.trial.id]
    rules = Rules(found["limit"], found["half_width"], config["alpha"], data.unit, _pitch(data))
    told["model"] = {"arm": MAIN, "rng_seed": model.trial.rng_seed}
    told["model"] |= {name: value for name, value in found.items() if not isinstance(value, list)}
    told["baselines"] = baselines(config)
    told["scale"] = [placed(config, found["mae"])]
    told["over_seeds"] = over_seeds(record)
    if ran.anew or not (out / DATA).exists():
        _save_data(out, data, config)
        contract = _seal_data.schema(data)
        facts = {"kind": config["net"], "size": list(data.shape), "light": config["light"]}
        _seal_answer.save(out, rules, contract, facts)
        with usual_mode(out / _seal_answer.MODEL):
            save_file(_seal_measures.weights(own), out / _seal_answer.MODEL, metadata={"recipe": "seal_scout"})
        scout = scout_of(own, config, data)
        path = timed(scout, data, own["at"], rules)
        _folder.write_json(out / "latency.json", path)
        _folder.write_json(out / "nets.json", nets(scout, path["stages"]["model"], ran.finished, kept, data))
        _folder.write_json(out / "rejections.json", refusals(scout, data, own["at"], rules))
    _folder.write_json(out / "leaks.json", _seal_faults.leaks(data, config, ran.finished, kept))
    _folder.write_json(out / "shortcut.json", _seal_faults.shortcut(data, config, ran.finished, kept))
    _folder.write_json(out / "abstain.json", _seal_faults.abstained(data, config, mine, kept))
    _folder.write_json(out / "slices.json", by_slice(data, config, own))
    _folder.write_json(out / "worst.json", worst_cases(data, config, own))
    if pictures:
        told["pictures"] = _seal_pictures.draw(out, data, own, ran.finished, kept)
    _folder.write_json(out / "results.json", told)
    card(out, "seal_scout.toml" if data.source == _seal_data.GENERATED else "seal_folder.toml")
    write_text(out / "report.html", reports.page(reports.tell(out)))
    if ran.anew or not (out / bundle.BUNDLE).exists():
        print(f"sealed: {bundle.seal(out)}", flush=True)


def scout_of(arrays: Mapping[str, Any], config: Mapping[str, Any], data: Data) -> Scout:
    """The net of a trial, from its arrays."""
    scout = Scout(config["net"], data.shape, Scaling((0.0,) * 3, (1.0,) * 3, 0.0, 1.0), config["light"])
    scout.load_state_dict(_seal_measures.weights(arrays))
    return scout


def saved_images(folder: Path) -> NDArray[np.uint8]:
    """The crops of a folder, (N, 3, H, W), in the order to which `at` of a trial points.

    Raises:
        CropError: they are not there.
    """
    try:
        with np.load(folder / DATA, allow_pickle=False) as saved:
            images: NDArray[np.uint8] = saved["images"]
    except (OSError, ValueError, KeyError) as error:
        raise _seal_image.refused(f"{type(error).__name__}: {error}", "the saved crops", str(folder / DATA)) from error
    return images


def baselines(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Error on the test side of either split of rules that need no net."""
    how = {name: _seal_baselines.table(*_seal_data.named(config), name) for name in SPLITS}
    return [
        {**one.record(), "on_frames": _seal_baselines.value(how["frame"], one.name)} for one in how["burst"]
    ]


def placed(config: Mapping[str, Any], mae: float) -> dict[str, Any]:
    """The model's error among the rules."""
    rules = _seal_baselines.table(*_seal_data.named(config), config["split"])
    return scale.place("mae", mae, rules).record()


def over_seeds(record: TrialRecord) -> list[dict[str, Any]]:
    """Error of every arm over its seeds."""
    return [
        {"arm": one.arm, "quantity": one.quantity, **asdict(one.summary)}
        for one in compare.columns(record.latest())
        if one.quantity in ("mae", "relit", "light_moves") and one.summary is not None
    ]


def by_slice(data: Data, config: Mapping[str, Any], own: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`slices.json`: mean absolute error by line, by condition, and by whether the light agrees with the label."""
    at, away = own["at"], np.abs(own["said"] - own["target"])[:, 0].astype(np.float64)
    made = _seal_data.sides(*_seal_data.named(config), config["split"])
    caps = [made.groups[one] for one in at]
    rows = []
    for names in (data.recording.line, data.recording.condition, _seal_faults.agreement(data)):
        rows += [one.record() for one in slices.by_slice(away, _seal_data.rows(names, at), caps)]
    about = (
        f"Mean absolute error in {data.unit} on the test side, three ways of cutting it. Groups are caps: a burst with "
        "its copies. p: one-sided, that the slice is worse than the rest of its cut; p holm: corrected within the cut."
    )
    return {"about": about, "rows": rows}


def worst_cases(data: Data, config: Mapping[str, Any], own: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`worst.json`: one crop of each of the caps that the model is farthest off; `worst.png` shows them."""
    recording, at = data.recording, own["at"]
    away = np.abs(own["said"] - own["target"])[:, 0].astype(np.float64)
    chosen = _seal_measures.worst_of_caps(data, config, own)[:WORST]
    picked = slices.worst(away[chosen], [recording.ids[at[i]] for i in chosen], ["test"] * len(chosen), k=len(chosen))
    rows = []
    for one in picked:
        i = chosen[one.at]
        place = int(at[i])
        said = {"rank": one.rank, "id": one.id, "at": place, "error": one.value, "line": recording.line[place]}
        said |= {"condition": recording.condition[place], "label": float(own["target"][i, 0])}
        rows.append(said | {"said": float(own["said"][i, 0]), "score": float(own["score"][i])})
    about = f"The worst crop of each of the worst caps of the test side; label, said, error and score in {data.unit}."
    return {"about": about, "rows": rows}


def timed(scout: Scout, data: Data, at: NDArray[np.int64], rules: Rules) -> dict[str, Any]:
    """`latency.json`: from the bytes of one PNG file to an answer, call by call, one thread."""
    files = [_seal_image.encode(data.recording.images[one], pitch=rules.pitch) for one in at]
    path = _seal_answer.stages(scout, _seal_data.schema(data), rules)
    return _paths.timed(path, files, calls=CALLS, what="the bytes of a held-out PNG file to an answer")


def nets(
    scout: Scout,
    stage: Mapping[str, Any],
    finished: Sequence[Attempt],
    kept: Mapping[str, Mapping[str, NDArray[Any]]],
    data: Data,
) -> dict[str, Any]:
    """`nets.json`: parameters, receptive field and latency of the two nets. stage: of the model's own path, timed."""
    found = [(MAIN, scout, _seal_nets.receptive_field(), stage)]
    one = next((one for one in finished if one.trial.arm == DENSE), None)
    if one is not None:
        other = scout_of(kept[one.trial.id], one.trial.config, data)
        held = [data.recording.images[at][None] for at in kept[one.trial.id]["at"]]
        whole = _paths.measured([("model", lambda batch: _seal_answer.answers(other, batch))], held, calls=CALLS).whole
        found.append((DENSE, other, max(data.shape), whole.record()))
    rows = []
    for arm, net, field, told in found:
        row = {"arm": arm, "parameters": _seal_nets.parameters(net), "receptive_field_px": field}
        rows.append(row | {f"{name}_ms": q["value_ms"] for name, q in told["quantiles"].items()})
    return {"about": "The net alone, one crop and its moves, one thread, single calls.", "rows": rows}


def refusals(scout: Scout, data: Data, at: NDArray[np.int64], rules: Rules) -> dict[str, Any]:
    """`rejections.json`: what each malformed crop is answered."""
    contract = _seal_data.schema(data)

    def answer(raw: bytes) -> None:
        _seal_answer.checked(_seal_answer.open_bytes(raw, pitch=rules.pitch), contract)

    malformed = _seal_malformed.malformed(data.recording.images[int(at[0])], rules.pitch)
    return _paths.refusals(malformed, answer, _seal_image.CropError, what="crops")


def card(out: Path, words: str) -> None:
    """Compile the card, from the recipe's words where the folder has none of its own."""
    source = out / model_card.SOURCE
    if not source.exists():
        write_text(source, (CARDS / words).read_text(encoding="utf-8"))
    model_card.write(out)


def _pitch(data: Data) -> float | None:
    return _seal_physics.PITCH if data.source == _seal_data.GENERATED else None


def _save_data(out: Path, data: Data, config: Mapping[str, Any]) -> None:
    """Crops, labels and what is known of them, and both splits."""
    told: dict[str, Any] = {name: np.asarray(value) for name, value in asdict(data.recording).items()}
    np.savez_compressed(out / DATA, **told)
    for how, name in SPLITS.items():
        _seal_data.sides(*_seal_data.named(config), how).write(out / name)
