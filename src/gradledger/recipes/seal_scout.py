"""Offset of a cap on its seal, in mm, from one camera crop: grouped data, a leak, a shortcut, and when to abstain.

    gradledger run seal_scout --jobs 2 --out runs/seal
    gradledger run seal_scout --data FOLDER --out runs/mine
    gradledger predict-image crop.png --bundle runs/seal

Crops come from a generator with declared physics (three lines, bursts of one cap, a lamp that drifts), or from a folder
of images with a table. The plan (plans/seal_scout.toml) is registered first. Its arms: a small convolutional net and a
dense one; both on whole bursts and on single frames; the light as it was recorded, and divided out; with and
without augmentation; shuffled labels; a run that is stopped and goes on. Trials that are finished are not run again.

The folder is sealed at the end: `gradledger verify`, `rescore`, `repredict` and `retrain` check it. It holds the data
and both splits, leaks.json, shortcut.json, abstain.json, slices.json, worst.json, latency.json, rejections.json, the
card (README.md), report.html and, with matplotlib, the pictures.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradledger.data import augment, transform
from gradledger.data.loader import Loader
from gradledger.data.schema import require_same_shape
from gradledger.evidence import lock
from gradledger.evidence.trial import Outcome, Trial
from gradledger.recipes import _folder, _lab, _main, _resumed, _seal_answer, _seal_data, _seal_evidence, _seal_measures
from gradledger.recipes._command_line import option
from gradledger.recipes._registry import Recipe
from gradledger.recipes._seal_nets import Kind, Light, Scaling, Scout, exposed, loss_of
from gradledger.train import RunState, seed
from gradledger.train.modes import evaluating

RECIPE = Recipe(
    presets={
        "full": "three seeds of every arm, 20 trials: about three minutes on two cores",
        "smoke": "one seed, one epoch, 40 bursts: a plumbing test, its verdicts mean nothing",
    },
    default_preset="full",
    extra="data",
)

# ---------------------------------------------------------------------------------------------------------------- Args


@dataclass(frozen=True)
class Args:
    """Everything that decides a run."""

    preset: str = "full"
    out: Path = option(Path("runs/seal_scout"), "folder of the run; a second call goes on with it")
    predict: Path | None = option(None, "a plan of your own, registered before the run", metavar="FILE", reader=Path)
    data: Path | None = option(None, "a folder of crops with crops.csv in place of the generator", reader=Path)
    target: str = option("offset_mm", "the label's column in that folder; its name ends in the unit")
    workers: int = option(1, "trials at a time, each in a process", aliases=("--jobs",), metavar="N")
    backend: Literal["processes", "ray"] = option("processes", "what runs them: this machine, or a Ray cluster")
    retry_failed: bool = option(False, "run trials again that failed; their failure stays on record")
    pictures: bool = option(True, "draw the pictures")


PRESETS: dict[str, dict[str, Any]] = {"full": {}, "smoke": {}}
SMALL = {"epochs = 24": "epochs = 1", "bursts = 600": "bursts = 40", "frames = 2": "frames = 3", "[0, 1, 2]": "[0]"}
BATCH, RATE, CLIP = 32, 3e-3, 1.0
MOVE = 1  # pixels: how far augmentation moves a scene; the offset is a distance within it, and stays
GRAIN = 0.01  # of augmentation, in grey levels over 255: the order of the camera's own noise

# ---------------------------------------------------------------------------------------------------------------- Data


class Crops:
    """One side of the data as a data set: (image (3, H, W) in [0, 1], offset (1,)), each augmented by its own draw.

    What is drawn is physically plausible: the belt stops elsewhere, the sensor is noisy. A mirror image is not, for the
    lamp hangs on one side; and a turn of more than a few degrees is no picture of this camera.
    """

    def __init__(self, images: NDArray[np.uint8], offset: NDArray[np.float32], *, changed: bool) -> None:
        self.images, self.offset = images, offset
        steps = ((augment.Shift(MOVE), 0.9), (augment.Noise(GRAIN, "image", bounds=(0.0, 1.0)), 0.5))
        self.augment = augment.Compose(steps if changed else ())

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, index: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """One sample; random numbers come from `rng` alone."""
        found = self.augment({"image": transform.bytes_to_unit(self.images[index])}, rng)
        return found["image"], self.offset[index]


def scaling(images: NDArray[np.uint8], offset: NDArray[np.float32], light: Light) -> Scaling:
    """Mean and standard deviation of what the net gets, of the training side and of nothing else."""
    seen = exposed(transform.bytes_to_unit(torch.from_numpy(images)), light)
    pixels, label = transform.fit(seen, axes=(0, 2, 3)), transform.fit(offset)
    return Scaling(pixels.mean, pixels.std, label.mean[0], max(label.std[0], 1e-6))


# ---------------------------------------------------------------------------------------------------------------- Loop


class Training:
    """Everything of one trial, built from (config, rng_seed) alone."""

    def __init__(self, config: Mapping[str, Any], rng_seed: int) -> None:
        self.data = _seal_data.load(*_seal_data.named(config))
        self.split = _seal_data.sides(*_seal_data.named(config), config["split"])
        recording, train = self.data.recording, self.split.indices("train")
        images, offset = recording.images[train], recording.offset[train]
        if config["labels"] == "shuffled":
            offset = offset[np.random.default_rng(seed.derived(rng_seed, "labels")).permutation(len(offset))]
        kind: Kind = config["net"]
        light: Light = config["light"]
        torch.manual_seed(seed.derived(rng_seed, "weights"))
        self.scout = Scout(kind, self.data.shape, scaling(images, offset, light), light)
        self.optimizer = torch.optim.Adam(self.scout.parameters(), lr=RATE)
        self.loader = Loader(
            Crops(images, offset, changed=config["augment"]),
            batch_size=BATCH,
            drop_last=True,
            rng_seed=seed.derived(rng_seed, "order"),
            randomness="generator",
        )
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=config["epochs"])
        self.state = RunState(
            scout=self.scout,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            order=self.loader,
            counters={"epoch": 0},
            about={"split": self.split.sha256},
        )
        self.losses: list[float] = []
        self.validation: list[float] = []

    def epoch(self, *, until: int | None = None) -> None:
        """The rest of the current epoch; `until` stops it after so many optimizer steps in all."""
        counters, total = self.state.counters, 0.0
        for image, offset in self.loader:
            self.optimizer.zero_grad(set_to_none=True)
            said = self.scout(image)
            require_same_shape(said[:, :1], offset)
            loss = loss_of(said, offset, self.scout.label[1])
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.scout.parameters(), CLIP)
            self.optimizer.step()
            counters["optimizer_step"] += 1
            total += loss.item()
            if counters["optimizer_step"] == until and self.loader.epoch == counters["epoch"]:
                return  # in the middle; after its last batch an epoch is ended first, or it would be played twice
        self.scheduler.step()
        counters["epoch"] += 1
        self.losses.append(total / len(self.loader))
        self.validation.append(self.error("val"))

    def error(self, side: str) -> float:
        """Mean absolute error of a side, crops as they are."""
        at = self.split.indices(side)
        images = transform.bytes_to_unit(torch.from_numpy(self.data.recording.images[at]))
        with evaluating(self.scout):
            away = self.scout(images)[:, :1] - torch.from_numpy(self.data.recording.offset[at])
        return float(away.abs().mean())


def experiment(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    """One trial of the plan. With `interrupt`, it is stopped at a step drawn from the seed, in the middle of an epoch,
    and a new process's worth of objects goes on from its checkpoint."""
    torch.set_num_threads(1)
    kept = ("losses", "validation")
    run = _resumed.trained(lambda: Training(config, rng_seed), config, rng_seed, series=kept)
    return _seal_measures.outcome(run.scout, run.data, run.split, config, run.losses, run.validation)


# ----------------------------------------------------------------------------------------------------------------- Run


def train(args: Args) -> dict[str, Any]:
    """Register, run, judge, save, seal. Returns what it writes to `results.json`."""
    args.out.mkdir(parents=True, exist_ok=True)
    version = lock.lock(args.out, plan(args))
    _seal_evidence.open_once(args.out, version)
    first = next(iter(version.plan.arms.values()))
    _seal_data.require_enough(_seal_data.load(*_seal_data.named(first)))
    ran = _lab.run_plan(
        experiment, version, args.out, workers=args.workers, backend=args.backend, retry_failed=args.retry_failed
    )
    told: dict[str, Any] = {
        "recipe": "seal_scout",
        "kind": "plumbing test" if args.preset == "smoke" else "experiment",
        "plan": version.sha256,
        "hypotheses": [one.record() for one in ran.judgements],
        "trials": _seal_evidence.trials(ran.attempts),
    }
    print(_seal_evidence.seed_table(told["trials"]))
    print(_lab.table(ran.judgements), flush=True)
    if ran.anew:
        words = {name: str(value) for name, value in vars(args).items()}
        _seal_evidence.save_environment(args.out, words, first)
    _seal_evidence.leave(args.out, told, ran, version.plan, pictures=args.pictures)
    print(f"-> {args.out / 'results.json'}", flush=True)
    return told


def plan(args: Args) -> Path:
    """The plan of a call: one's own, the shipped one, or that one with other data or a smaller size."""
    if args.predict is not None:
        return args.predict
    shipped = _lab.PLANS / "seal_scout.toml"
    text = shipped.read_text(encoding="utf-8")
    if args.preset == "smoke":
        for name, small in SMALL.items():
            text = text.replace(name, small)
    if args.data is not None:
        text = text.replace('data = "generated"', f"data = {str(args.data.resolve())!r}")
        text = text.replace('target = "offset_mm"', f'target = "{args.target}"')
    if text == shipped.read_text(encoding="utf-8"):
        return shipped
    path = args.out / "plan.asked.toml"
    path.write_text(text, encoding="utf-8")
    return path


def repredict(folder: Path, one: Trial, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What the saved weights of a trial say to the saved crops, here and now; of the trial whose weights are in
    `model.safetensors`, those of that file."""
    from safetensors.torch import load_file

    weights = _seal_measures.weights(arrays)
    model = _folder.read_json(folder / "results.json")["model"]
    if (model["arm"], model["rng_seed"]) == (one.arm, one.rng_seed):
        weights = load_file(folder / _seal_answer.MODEL)
    images = _seal_evidence.saved_images(folder)[arrays["at"]]
    scout = Scout(one.config["net"], images.shape[2:], Scaling((0.0,) * 3, (1.0,) * 3, 0.0, 1.0), one.config["light"])
    scout.load_state_dict(weights)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        said, score = _seal_answer.answers(scout, images)
    finally:
        torch.set_num_threads(threads)
    return {"said": said, "score": score}


def predict_image(folder: Path, raw: bytes) -> _seal_answer.Answer:
    """What the model of a sealed folder says to the bytes of one image file.

    Raises:
        CropError: the folder is not what was sealed. A crop that is refused is an answer without an offset.
    """
    return _seal_answer.answer(*_seal_answer.load(folder), raw)


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """The command line. Returns the exit code: 0 it ran (verdicts are its result), 2 it could not."""
    return _main.simple(Args, PRESETS, train, argv, recipe=RECIPE, description=__doc__ or "", prog=prog)


if __name__ == "__main__":
    sys.exit(main())
