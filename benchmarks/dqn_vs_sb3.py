"""The DQN recipe against Stable-Baselines3's DQN: environment steps a second and memory, in turns, on one game.

    python benchmarks/dqn_vs_sb3.py --cache FOLDER [--rounds 5] [--steps 2400] [--game pong] [--json OUT.json]

SB3 comes from PyPI into an environment of its own under FOLDER, made once and used again. Three processes stay alive:
the recipe in fp32, the recipe on a bf16 copy, SB3; only one works at a time. Each round everyone learns for the same
number of environment steps, in rotating order; the ratio is taken within a round and its median over rounds reported.

Equal for all: game, 84 x 84 x 4 frames with skip 4 and maximum of 2, game over as end, clipped rewards, no sticky
actions, network (1,687,206 parameters for 6 actions), batch, replay capacity, learning starts, updates per step, target
sync, epsilon 0.1, Adam at 1e-4, clip 10, lanes in step, one torch thread. Not equal, and part of what is compared: the
environment (ale-py's C++ vector environment against gymnasium wrappers), the replay's layout, memory format, fused
Adam, and the Huber loss times 2.

Two ratios stand side by side: wall seconds, and CPU seconds (user and system, of all threads), which other people's
programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _alternate as bench

HERE = Path(__file__).resolve().parent
SB3 = "2.9.2"
REQUIRED = (f"stable-baselines3=={SB3}", "torch==2.13.0", "ale-py==0.12.1", "gymnasium", "opencv-python-headless")


def sb3_python(cache: Path) -> Path:
    """The interpreter of SB3's environment; made when it is not there or was not finished."""
    home = cache / f"sb3-{SB3}"
    python, ready = home / "bin" / "python", home / "ready"
    if not ready.exists():
        bench.say(f"making {home} (minutes the first time)")
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        constraints = HERE.parent / "constraints.txt"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-c", constraints, *REQUIRED], check=True)
        ready.write_text("\n".join(REQUIRED), encoding="utf-8")
    return python


@dataclass
class Contestant:
    """A process that learns when told. `turns`: what it answered, round by round."""

    name: str
    process: subprocess.Popen[str]
    built: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, Any]] = field(default_factory=list)

    def hear(self) -> dict[str, Any]:
        """One line of answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}; what it said stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def learn(self, steps: int) -> dict[str, Any]:
        """Learn for so many environment steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.hear()

    def rates(self, clock: str) -> list[float]:
        """Environment steps a second in each round."""
        return [turn["steps"] / turn[clock] for turn in self.turns]


def start(name: str, python: Path, script: str, asked: dict[str, Any]) -> Contestant:
    """Start a contestant and hear what it built."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(asked["threads"]), "OMP_WAIT_POLICY": "PASSIVE"}
    process = subprocess.Popen(
        [str(python), str(HERE / script), json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    one = Contestant(name, process)
    one.built = one.hear()
    return one


def ratios(one: Contestant, other: Contestant, clock: str) -> bench.Ratio:
    """How many times as many steps a second, within each round."""
    pairs = sorted(a / b for a, b in zip(one.rates(clock), other.rates(clock), strict=True))
    low, high = (pairs[0], pairs[-1])
    if len(pairs) >= 4:
        low, _, high = statistics.quantiles(pairs, n=4)
    return bench.Ratio(statistics.median(pairs), low, high, max(one.rates(clock)) / max(other.rates(clock)))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", type=Path, required=True, help="folder for SB3's environment")
    parser.add_argument("--game", default="pong", help="ROM of ale-py")
    parser.add_argument("--steps", type=int, default=2_400, help="environment steps of one turn")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--update-every", type=int, default=4, help="steps per update; lanes must be a multiple")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--replay", type=int, default=50_000)
    parser.add_argument("--learning-starts", type=int, default=800)
    parser.add_argument("--target-sync", type=int, default=2_000)
    parser.add_argument("--engine", choices=("sweep", "autograd"), default="sweep")
    parser.add_argument("--optimize-memory", action="store_true", help="SB3's replay with optimize_memory_usage")
    parser.add_argument("--json", type=Path)


def main() -> None:
    given = bench.arguments(__doc__, rounds=5, quick=1, more=options)
    names = ("game", "lanes", "update_every", "batch", "replay", "learning_starts", "target_sync", "threads")
    asked = {name: getattr(given, name) for name in names}
    python = sb3_python(given.cache.resolve())
    everyone = []
    for precision in ("fp32", "bf16"):
        mine = {**asked, "engine": given.engine, "precision": precision}
        everyone.append(start(f"recipe {precision}", Path(sys.executable), "_dqn_worker.py", mine))
    everyone.append(start("SB3", python, "_sb3_worker.py", {**asked, "optimize_memory": given.optimize_memory}))
    parameters = {one.name: one.built["parameters"] for one in everyone}
    if len({*parameters.values()}) != 1:
        raise SystemExit(f"the networks differ: {parameters}")
    steps = 240 if given.quick else given.steps
    for one in everyone:  # random play, the first updates, and whatever is made once
        one.learn(given.learning_starts + 10 * given.lanes)
    for k in range(given.rounds):
        for one in everyone[k % 3 :] + everyone[: k % 3]:
            one.turns.append(one.learn(steps))
        rates = ", ".join(f"{one.name} {one.rates('cpu')[-1]:.1f}" for one in everyone)
        bench.say(f"  round {k + 1}: steps a CPU second: {rates}; load {os.getloadavg()[0]:.1f}")
    for one in everyone:
        one.process.stdin.close()  # type: ignore[union-attr]
        one.process.wait()
    report(everyone, given)


def report(everyone: list[Contestant], given: argparse.Namespace) -> None:
    """Rates, ratios, memory, goals; the ratio that counts is that of CPU seconds."""
    fp32, bf16, sb3 = everyone
    bench.say("")
    rows = []
    for one in everyone:
        wall, cpu = one.rates("wall"), one.rates("cpu")
        updates = sum(turn["updates"] for turn in one.turns) / sum(turn["steps"] for turn in one.turns)
        rows.append(
            (
                one.name,
                f"{statistics.median(wall):.1f}",
                f"{statistics.median(cpu):.1f}",
                f"{min(cpu):.1f}-{max(cpu):.1f}",
                f"{updates:.3f}",
                bench.mb(one.turns[-1]["peak_rss"]),
                bench.mb(one.built["replay_bytes"]),
            )
        )
    bench.table(rows, ("", "steps/s wall", "steps/s CPU", "range", "updates/step", "peak RSS MB", "replay MB"))
    bench.say("")
    goals = bench.Goals()
    for one, least in ((fp32, 1.5), (bf16, 2.0)):
        cpu, wall = ratios(one, sb3, "cpu"), ratios(one, sb3, "wall")
        bench.say(f"  {one.name} to SB3, steps a second: CPU {cpu}, wall {wall}")
        goals.at_least(f"{one.name}, steps a CPU second", cpu.median, least)
    kept, other = sb3.built["replay_bytes"], sb3.built["replay_bytes_other"]
    plain, small = (other, kept) if given.optimize_memory else (kept, other)
    goals.at_most("replay bytes, to SB3's", fp32.built["replay_bytes"] / plain, 0.25)
    bench.say(f"           to SB3's with optimize_memory_usage: {fp32.built['replay_bytes'] / small:.4f}x")
    rss = fp32.turns[-1]["peak_rss"] / sb3.turns[-1]["peak_rss"]
    bench.say(f"           peak memory of the process, replay partly filled: {rss:.3f}x")
    if given.json:
        told = {"commit": bench.commit("recipes", "rl", "train", "sweep"), "load": os.getloadavg()}
        told |= {"options": {name: str(value) for name, value in vars(given).items()}}
        told |= {"contestants": {one.name: {"built": one.built, "turns": one.turns} for one in everyone}}
        given.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    bench.finish(goals, given)


if __name__ == "__main__":
    main()
