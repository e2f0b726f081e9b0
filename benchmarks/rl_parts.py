"""What the parts of a DQN run cost: a step of the environment, a drawn batch, a checkpoint, a restore.

    python benchmarks/rl_parts.py [--game pong] [--seconds 5] [--json FILE]

CPU time of the whole process beside wall time: on a busy machine only the first can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from gradledger.rl import AtariSimulator, AtariSpec, FrameStack, Lanes, LaneSpec, Replay, ReplaySpec
from gradledger.train import checkpoint


def timed(what: Callable[[], Any], *, seconds: float) -> dict[str, float]:
    """Call `what` for `seconds`: milliseconds of CPU and of wall time a call, and the number of calls."""
    what()
    calls, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds or not calls:
        what()
        calls += 1
    spent, used = time.perf_counter() - wall, time.process_time() - cpu
    return {"cpu_ms": 1e3 * used / calls, "wall_ms": 1e3 * spent / calls, "calls": calls}


def one_step(game: str, count: int, seconds: float, rng: np.random.Generator) -> dict[str, float]:
    """A step of all lanes, divided by their number."""
    lanes = Lanes(AtariSimulator(AtariSpec(game, lanes=count)), LaneSpec())
    lanes.reset()
    tick = timed(lambda: lanes.step(rng.integers(0, lanes.simulator.actions, count)), seconds=seconds)
    lanes.close()
    return {key: value / count if key.endswith("ms") else value for key, value in tick.items()}


def full_replay(n_step: int, rng: np.random.Generator) -> Replay:
    """50,000 frames of noise, an end now and then, and more rows than the ring has."""
    replay = Replay(ReplaySpec(50_000, 8, (84, 84), n_step=n_step))
    no = np.zeros(8, dtype=bool)
    for _ in range(replay.spec.rows + 100):
        frames = rng.integers(0, 256, (8, 84, 84), dtype=np.uint8)
        ends = rng.random(8) < 0.001
        replay.add(frames, no, no, ends, no, life_lost=no, valid=~no, starts=no)
    return replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="pong")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}

    for count in (1, 4, 8, 16):
        found[f"one step of one lane, of {count}"] = one_step(args.game, count, args.seconds, rng)

    lanes = Lanes(AtariSimulator(AtariSpec(args.game, lanes=8)), LaneSpec())
    seen = FrameStack(lanes.reset(), stack=4)
    everyone = np.ones(8, dtype=bool)
    found["a reset with a seed, a lane (of 8)"] = {
        key: value / 8 if key.endswith("ms") else value
        for key, value in timed(lambda: lanes.simulator.reset(everyone, rng.integers(0, 2**31, 8)), seconds=2).items()
    }

    one, replay = full_replay(1, rng), full_replay(3, rng)
    found["a batch of 32 drawn, n = 1"] = timed(lambda: one.sample(32, rng), seconds=args.seconds)
    found["a batch of 32 drawn, n = 3"] = timed(lambda: replay.sample(32, rng), seconds=args.seconds)
    found["bytes of the full replay"] = replay.nbytes
    no = np.zeros(8, dtype=bool)
    actions = lanes.simulator.actions
    frames = lanes.reset()
    found["one row added"] = timed(
        lambda: replay.add(frames, no, no, no, no, life_lost=no, valid=~no, starts=no), seconds=1
    )
    found["stacks of 8 lanes pushed"] = timed(lambda: seen.push(frames, no), seconds=1)

    with tempfile.TemporaryDirectory() as folder:
        tensors, facts = replay.state()
        found["a checkpoint of the replay written"] = timed(
            lambda: checkpoint.save(Path(folder), 1, {"replay": tensors}, facts), seconds=0
        )
        found["a checkpoint of the replay read"] = timed(lambda: checkpoint.load(Path(folder)), seconds=0)

    for _ in range(1000):
        lanes.step(rng.integers(0, actions, 8))
    state = lanes.state()
    twin = Lanes(AtariSimulator(AtariSpec(args.game, lanes=8)), LaneSpec())
    found["lanes restored after 1,000 steps of 8 lanes"] = timed(lambda: twin.load_state(*state), seconds=0)

    for name, figures in found.items():
        shown = (
            f"{figures['cpu_ms']:9.3f} ms CPU {figures['wall_ms']:9.3f} ms wall" if isinstance(figures, dict) else ""
        )
        print(f"{name:50s} {shown or figures}")
    if args.json:
        about = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        about |= {"game": args.game, "settings": lanes.settings, "load": os.getloadavg()}
        args.json.write_text(json.dumps({"about": about, "found": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
