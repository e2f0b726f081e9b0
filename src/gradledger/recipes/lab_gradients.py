"""Lab: what fills a gradient, what adds up in it, and what a target network must not receive.

    gradledger run lab_gradients --out runs/lab_gradients
    gradledger run lab_gradients --predict my_plan.toml --out runs/mine
    gradledger run lab_gradients --break no_clear

The plan is registered before anything runs; each hypothesis then gets a verdict, and the folder refuses to run with an
edited plan. With --predict your own plan is registered (take plans/lab_gradients.toml as a pattern: arms stay, claims
are yours). First comes the gradient audit of one iteration: which tensors carry a gradient, and what stopped it in the
others. Last each fault that was planted on purpose is run under `gradledger audit`, and shown with the symptom
that was predicted, the one that came, and the line that the audit names. About half a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradledger.recipes import _lab, _lab_flow, _lab_gradients, _main
from gradledger.recipes._command_line import option
from gradledger.recipes._lab import Break
from gradledger.recipes._registry import Recipe

RECIPE = Recipe(presets={"all": "every hypothesis, then every fault on purpose"}, default_preset="all")

# --------------------------------------------------------------------------------------------------------------- Faults

BREAKS = {
    "not_a_scalar": Break(
        "gradients_not_a_scalar", "RuntimeError: a gradient is made only for scalar outputs", loud=True, code=None
    ),
    "no_clear": Break(
        "gradients_no_clear",
        "no error; the final loss is another one: 0.8660 where a clear gives 1.3056",
        False,
        "GL-G01",
    ),
    "target_not_detached": Break(
        "gradients_target_not_detached",
        "no error; the target network has a gradient and moves by 0.423201 in 50 steps",
        False,
        "GL-T01",
    ),
}

# ---------------------------------------------------------------------------------------------------------------- Args


@dataclass(frozen=True)
class Args:
    """Everything that decides a run."""

    preset: str = "all"
    out: Path = option(Path("runs/lab_gradients"), "folder of the run")
    resume: bool = option(False, "go on with the trials that are not finished", or_value_of="out")
    predict: Path | None = option(None, "a plan of your own, registered before the run", metavar="FILE", reader=Path)
    break_: str = option("", f"run one fault on purpose alone: {', '.join(BREAKS)}", metavar="NAME")
    workers: int = option(1, "trials at a time, each in a process", aliases=("--jobs",), metavar="N")
    backend: Literal["processes", "ray"] = option("processes", "what runs them: this machine, or a Ray cluster")
    retry_failed: bool = option(False, "run trials again that failed; their failure stays on record")

# --------------------------------------------------------------------------------------------------------- Experiments


def experiment(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
    """One arm of the plan. The seeds are those of the lab's text; `rng_seed` names the trial."""
    match config["experiment"]:
        case "on_paper":
            return _lab_gradients.on_paper(config)
        case "scalar":
            return _lab_gradients.scalar()
        case "storages":
            return _lab_gradients.storages()
        case "fifty_steps":
            return {"final_loss": _lab_gradients.final_loss(clear=config["clear"])}
        case "not_a_scalar":
            return {"refused": "scalar outputs" in _lab_gradients.not_a_scalar()}
        case "first_batch":
            told = _lab_gradients.first_batch()
            return {"weight_grad_norm": told["h1.norm"], "closed_form_distance": told["h1.closed_form_distance"]}
        case "two_batches":
            return {"weight_grad_norm": _lab_gradients.two_batches(clear=config["clear"])}
        case "q_learning":
            drift, graded = _lab_gradients.q_learning(detached=config["detached"], frozen=config["frozen"])
            return {"target_drift": drift, "target_grad": "a tensor" if graded else None}
        case "second_backward":
            return {"ratio": _lab_gradients.second_backward()}
    raise ValueError(f"no experiment {config['experiment']!r}")


# ----------------------------------------------------------------------------------------------------------------- Run


def train(args: Args) -> dict[str, Any]:
    """The whole lab. Returns what it writes to `results.json`."""
    audit = [] if args.break_ else _lab_flow.gradient_audit()
    print("\n".join(_lab_flow.lines(audit)) if audit else "", flush=True)
    return _lab.run(
        "lab_gradients",
        experiment,
        BREAKS,
        out=args.out,
        predict=args.predict,
        only_break=args.break_,
        workers=args.workers,
        backend=args.backend,
        retry_failed=args.retry_failed,
        tables={"gradient_audit": audit} if audit else None,
    )


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """The command line. Returns the exit code: 0 it ran (verdicts are its result), 2 it could not."""
    return _main.simple(Args, {"all": {}}, train, argv, recipe=RECIPE, description=__doc__ or "", prog=prog)


if __name__ == "__main__":
    sys.exit(main())
