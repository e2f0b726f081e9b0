"""Experiments that the tests run, also in other processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradledger.evidence.trial import Outcome, tell


def fit(config: Mapping[str, Any], rng_seed: int) -> Outcome:
    """A line fitted to noise by steps of gradient descent."""
    rng = np.random.default_rng(rng_seed)
    x = rng.normal(size=40)
    y = 2.0 * x + 0.1 * rng.normal(size=40)
    w, curve = 0.0, []
    for step in range(config["steps"]):
        residual = w * x - y
        curve.append(float(np.mean(residual**2)))
        w -= config["lr"] * 2.0 * float(np.mean(residual * x))
        tell(step + 1, config["steps"], loss=curve[-1])
    return Outcome(
        {"loss": curve[-1], "curve": curve, "w": w, "grad": None},
        {"prediction": w * x, "target": y, "group": np.arange(40) // 4},
    )


def frail(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
    """Each seed ends in its own way."""
    match rng_seed:
        case 1:
            raise ValueError("the loss is not finite\nat step 3")
        case 2:
            os.kill(os.getpid(), signal.SIGKILL)
        case 3:
            raise SystemExit(4)
        case 4:
            return {"loss": np.zeros(3)}
        case 5:
            return {}
    return {"loss": float(rng_seed)}


def once_broken(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
    """Fails until a file is there."""
    if not Path(config["mended"]).exists():
        raise RuntimeError("not mended")
    return {"loss": 1.0}


def helped(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
    """Has a process of its own do the work, as a loader with workers does."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=theirs.send, args=(rng_seed * 2.0,), daemon=True)
    worker.start()
    loss = mine.recv()
    worker.join()
    return {"loss": loss}


def slow(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
    """Says that it has begun, goes on from what it saved, saves when it is stopped; seed 9 does not let itself be."""
    folder = Path(config["folder"])
    saved = folder / f"saved-{rng_seed}"
    began = int(saved.read_text()) if saved.exists() else 0
    (folder / f"pid-{rng_seed}").write_text(str(os.getpid()))
    print(f"seed {rng_seed} from {began}", flush=True)
    step = began
    try:
        for step in range(began, config["steps"]):
            tell(step + 1, config["steps"], loss=1.0 / (step + 1))
            time.sleep(config["wait"])
    except KeyboardInterrupt:
        if rng_seed == 9:
            time.sleep(60)
        saved.write_text(str(step))
        raise
    return {"loss": 1.0 / config["steps"], "began": began}


def seed_of_a_series(config: Mapping[str, Any], rng_seed: int) -> Mapping[str, Any]:
    """Leaves the record that a run of this seed leaves; seed 2 fails until a file is there."""
    out = Path(config["out"])
    print("plays", flush=True)
    if rng_seed == 2 and not (out / "mended").exists():
        raise ValueError("the emulator said no")
    folder = out / f"seed-{rng_seed}"
    folder.mkdir()
    record = {
        "kind": "training run",
        "returns_of_the_last_episodes": [1.0, 3.0],
        "evaluation": {"mean": float(rng_seed), "standard_deviation": 1.5},
        "completed": {"env_step": config["steps"]},
        "seconds": {"update": 1.0},
    }
    (folder / "record.json").write_text(json.dumps(record))
    return {"evaluation": float(rng_seed)}


# Two arms of `fit`, three seeds, one claim.
LINE_PLAN = """
name = "line"
rng_seeds = [0, 1, 2]
[arms.fast]
steps = 8
lr = 0.2
[arms.slow]
steps = 8
lr = 0.05
[[hypotheses]]
id = "H1"
claim = "the faster arm ends lower"
quantity = "loss"
arms = ["slow", "fast"]
predicate = { kind = "ratio", low = 2.0 }
"""
