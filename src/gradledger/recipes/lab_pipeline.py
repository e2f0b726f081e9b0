"""Lab: what decides silently in a pipeline: order, the clear, late layers, a run's state, what can be learned at all.

    gradledger run lab_pipeline --out runs/lab_pipeline
    gradledger run lab_pipeline --predict my_plan.toml --out runs/mine
    gradledger run lab_pipeline --break early_optimizer

Inverse kinematics of a 3-link planar arm, 8,000 pairs, a net of 128-128. The plan is registered before anything runs;
each hypothesis then gets a verdict. Then each fault that was planted on purpose is run under `gradledger audit`, and
shown with the symptom that was predicted, the one that came, and the line that the audit names. About two minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradledger.evidence import trial
from gradledger.recipes import _lab, _lab_pipeline, _lab_state, _main
from gradledger.recipes._command_line import option
from gradledger.recipes._lab import Break
from gradledger.recipes._registry import Recipe

RECIPE = Recipe(
    presets={"all": "every hypothesis, then every fault on purpose"}, default_preset="all", extra="data"
)

# --------------------------------------------------------------------------------------------------------------- Faults

BREAKS = {
    "clear_after_backward": Break(
        "pipeline_clear_after_backward",
        "no error; the loss of every epoch is the same to the last digit",
        False,
        "GL-G02",
    ),
    "early_optimizer": Break(
        "pipeline_early_optimizer", "no error; the new head has a gradient and moves by 0.000000", False, "GL-M04"
    ),
    "sorted": Break("pipeline_sorted", "no error; the loss falls, and stays several times too high", False, "GL-D01"),
    "plain_attribute": Break(
        "pipeline_plain_attribute",
        "no error, all keys match; the reloaded net centres with zeros, and its error is many times larger",
        False,
        "GL-M02",
    ),
    "list_of_modules": Break(
        "pipeline_list_of_modules",
        "no error; the optimizer has two parameters, and the hidden layers move by 0.000000",
        False,
        "GL-M03",
    ),
    "augmented_view": Break(
        "pipeline_augmented_view",
        "no error; after four passes the stored poses are off by 0.05 * sqrt(4) = 0.100",
        False,
        "GL-D02",
    ),
    "worker_streams": Break(
        "pipeline_worker_streams",
        "no error; two workers and two passes draw one stream: 5 batches of 64, so 320 different draws in 1,280",
        False,
        "GL-D03",
    ),
    "padding": Break(
        "pipeline_padding",
        "no error; the loss is small on padding and shows about 0.6 of the error, the share of real steps",
        False,
        "GL-D04",
    ),
    "last_short_batch": Break(
        "pipeline_last_short_batch",
        "no error and no fault: 157 steps, the last on 16 pairs, which weigh 10000 / (16 * 157) = 3.98 in it",
        False,
        None,
    ),
}

# ---------------------------------------------------------------------------------------------------------------- Args


@dataclass(frozen=True)
class Args:
    """Everything that decides a run."""

    preset: str = "all"
    out: Path = option(Path("runs/lab_pipeline"), "folder of the run")
    resume: bool = option(False, "go on with the trials that are not finished", or_value_of="out")
    predict: Path | None = option(None, "a plan of your own, registered before the run", metavar="FILE", reader=Path)
    break_: str = option("", f"run one fault on purpose alone: {', '.join(BREAKS)}", metavar="NAME")
    workers: int = option(1, "trials at a time, each in a process", aliases=("--jobs",), metavar="N")
    backend: Literal["processes", "ray"] = option("processes", "what runs them: this machine, or a Ray cluster")
    retry_failed: bool = option(False, "run trials again that failed; their failure stays on record")

# --------------------------------------------------------------------------------------------------------- Experiments


def experiment(config: Mapping[str, Any], rng_seed: int) -> dict[str, Any]:
    """One arm of the plan; `rng_seed` draws the pairs, the net is always that of seed 0."""
    data = _lab_pipeline.make_data(rng_seed)
    match config["experiment"]:
        case "order":
            told = {name.removeprefix("order."): same for name, same in _lab_pipeline.orders(data).items()}
            return told | _lab_state.worker_streams(data)
        case "resumed":
            return _lab_state.resumed(data, config["state"])
        case "learnability":
            return _lab_state.learnability(data, config["arm"])
        case "cosine_per_batch":
            return _lab_state.cosine_per_batch()
    if config["experiment"] == "early_optimizer":
        told = _lab_pipeline.early_optimizer(data)
        held = [name for name in ("head", "body") if told[f"h4.{name}_in_optimizer"]]
        return {"head_grad_norm": told["h4.head_grad_norm"], "head": "head", "body": "body", "in_optimizer": held}
    epochs = config.get("epochs", _lab_pipeline.EPOCHS)
    done = _lab_pipeline.train(
        data,
        shuffle=config["shuffle"],
        by_first_joint=config["sorted"],
        epochs=epochs,
        clear=config.get("clear", "before backward"),
        on_epoch=lambda epoch, loss: trial.tell(epoch + 1, epochs, loss=loss),
    )
    return {
        "validation": done.validation,
        "share_of_baseline": done.validation / data.baseline,
        "validation_over_train": done.validation / done.train,
        "losses": list(done.losses),
        "gradient_at_step": "a tensor" if any(done.gradients_at_step) else None,
    }


# ----------------------------------------------------------------------------------------------------------------- Run


def train(args: Args) -> dict[str, Any]:
    """The whole lab. Returns what it writes to `results.json`."""
    return _lab.run(
        "lab_pipeline",
        experiment,
        BREAKS,
        out=args.out,
        predict=args.predict,
        only_break=args.break_,
        workers=args.workers,
        backend=args.backend,
        retry_failed=args.retry_failed,
    )


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """The command line. Returns the exit code: 0 it ran (verdicts are its result), 2 it could not."""
    return _main.simple(Args, {"all": {}}, train, argv, recipe=RECIPE, description=__doc__ or "", prog=prog)


if __name__ == "__main__":
    sys.exit(main())
