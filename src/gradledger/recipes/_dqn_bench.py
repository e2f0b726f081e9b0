"""What each part of the DQN recipe costs, measured one at a time: the record behind `gradledger bench dqn`.

    python -m gradledger.recipes._dqn_bench SETTING.json RECORD.json      one setting, in a process of its own

Each combination of engine and precision runs in a process of its own, since only then peak memory and start-up are
its own. A part is warmed, then timed call by call, wall and CPU seconds (of all threads), the device's queue emptied
on both sides of the clock. Medians and quartiles are reported, never the best.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from gradledger.core.errors import GradledgerError, UsageError
from gradledger.recipes import _denormal, _dqn_state, _machine
from gradledger.recipes._checks import check_device
from gradledger.recipes._dqn_score import score
from gradledger.recipes.dqn_atari import Args, Run
from gradledger.rl.explore import random_actions

FORMAT = "gradledger-bench-dqn/1"
# In the order in which they are shown; the first two happen once a process.
PARTS = {
    "start": "imports of the process",
    "setup": "environment, networks, optimizer, replay",
    "first update": "the first one, with all that is made once",
    "environment": "one step of all lanes",
    "acting": "greedy actions for all lanes",
    "replay": "one row added",
    "batch": "data preparation: a batch drawn, stacked, laid out",
    "forward": "the batch through the network, no graph",
    "update": "targets, backward, clip, Adam, on a batch that is ready",
    "tick": "one step of all lanes with the updates that are due",
    "evaluation": "one step of all lanes of the evaluation",
}


@dataclass(frozen=True)
class Setting:
    """What is measured and how often.

    args: of the recipe, beside engine and precision. fill: environment steps of random play that the replay holds
    before anything is drawn from it. warm: calls of each part that are not counted. repeats: calls that are.
    """

    args: dict[str, Any] = field(default_factory=dict)
    engines: tuple[str, ...] = ("sweep", "autograd")
    precisions: tuple[str, ...] = ("fp32", "bf16")
    fill: int = 2_000
    warm: int = 5
    repeats: int = 40

    def check(self) -> None:
        """Refuse what cannot be measured, by name."""
        wrong = [f"{name}={getattr(self, name)}" for name in ("fill", "repeats") if getattr(self, name) < 1]
        wrong += [f"warm={self.warm}"] if self.warm < 0 else []
        wrong += [f"engines={','.join(self.engines)}"] if not {*self.engines} <= {"sweep", "autograd"} else []
        wrong += [f"precisions={','.join(self.precisions)}"] if not {*self.precisions} <= {"fp32", "bf16"} else []
        wrong += ["nothing to measure"] if not self.engines or not self.precisions else []
        if wrong:
            raise UsageError(
                got=", ".join(wrong),
                wanted="fill and repeats of at least 1, warm of at least 0, engines among sweep and autograd, "
                "precisions among fp32 and bf16",
                where="gradledger bench dqn",
                next_step="correct these options",
            )


@dataclass(frozen=True)
class Timing:
    """Seconds of one part: median and quartiles of the wall clock, and the median of CPU seconds of all threads."""

    repeats: int
    median: float
    quartiles: tuple[float, float]
    cpu_median: float


def summary(wall: Sequence[float], cpu: Sequence[float]) -> Timing:
    """Of at least one call."""
    low, high = (wall[0], wall[0])
    if len(wall) > 1:
        low, _, high = statistics.quantiles(wall, n=4, method="inclusive")
    return Timing(len(wall), statistics.median(wall), (low, high), statistics.median(cpu))


# ------------------------------------------------------------------------------------------------------- One setting


def measure(setting: Setting, engine: str, precision: str, *, started: float | None = None) -> dict[str, Any]:
    """Measure one engine at one precision in this process.

    Args:
        started: seconds since this process began, when its imports were done; None leaves the part out.

    Returns:
        The record: what was resolved, the timings by part (seconds), memory, and what was really done.
    """
    setting.check()
    with tempfile.TemporaryDirectory() as scratch, _denormal.flushing(Args().flush_denormal):
        kind: dict[str, Any] = {"engine": engine, "precision": precision, "out": Path(scratch) / "run"}
        args = Args(**{**_quiet(setting), **kind})
        check_device(args.device)
        args.out.mkdir()
        _machine.forget_peak()
        if torch.device(args.device).type == "cuda":
            torch.cuda.reset_peak_memory_stats(args.device)
        stopwatch, timings = _Stopwatch(args.device), dict[str, Timing]()
        if started is not None:
            timings["start"] = summary([started], [time.process_time()])
        run, *spent = stopwatch.once(lambda: Run(args))
        timings["setup"] = summary([spent[0]], [spent[1]])
        timings |= _timings(run, setting, stopwatch)
        evaluated, wall, cpu = stopwatch.once(lambda: score(run))
        # all lanes play on until the last has its episodes
        lanes = max(count for count in range(1, 11) if args.eval_episodes % count == 0)
        quota = args.eval_episodes // lanes
        ticks = max(sum(evaluated.lengths[k : k + quota]) + quota - 1 for k in range(0, args.eval_episodes, quota))
        timings["evaluation"] = summary([wall / ticks], [cpu / ticks])
        record = _record(run, setting, timings)
        run.lanes.close()
    return record


def _quiet(setting: Setting) -> dict[str, Any]:
    """The arguments: no pictures and logs, which belong to no part; short evaluation; learning from the fill on."""
    known = {one.name for one in dataclasses.fields(Args)}
    quiet = {"pictures": False, "tensorboard": False, "checkpoint_every": 10**9, "log_every": 10**9}
    quiet |= {"eval_episodes": 2, "max_episode_steps": 1_000, "learning_starts": setting.fill}
    return {**{name: value for name, value in quiet.items() if name in known}, **setting.args}


def _timings(run: Run, setting: Setting, stopwatch: _Stopwatch) -> dict[str, Timing]:
    args, rng = run.args, np.random.default_rng(0)
    actions = run.lanes.simulator.actions
    while run.counters.env_step < max(setting.fill, args.learning_starts):
        _play(run, rng)
    found: dict[str, Timing] = {}

    def many(part: str, work: Callable[[], object]) -> None:
        for _ in range(setting.warm):
            work()
        each = [stopwatch.once(work)[1:] for _ in range(setting.repeats)]
        found[part] = summary([wall for wall, _ in each], [cpu for _, cpu in each])

    def drawn() -> Any:
        batch = run.replay.sample(args.batch, run.rng["replay"]).to(args.device)
        return batch, run.inputs(batch.state), run.inputs(batch.next_state)

    batch, states, _ = drawn()
    _, wall, cpu = stopwatch.once(lambda: run.learn(batch))
    found["first update"] = summary([wall], [cpu])
    with torch.no_grad():
        many("forward", lambda: run.compute(states))
    many("update", lambda: run.learn(batch))
    many("batch", drawn)
    many("acting", lambda: run.greedy(run.seen.array))
    many("environment", lambda: run.lanes.step(random_actions(args.lanes, actions, rng)))
    frames, no = run.lanes.frames, np.zeros(args.lanes, dtype=np.bool_)
    zeros = np.zeros(args.lanes, dtype=np.int64)
    # padding: never drawn
    many("replay", lambda: run.replay.add(frames, zeros, zeros, no, no, life_lost=no, valid=no, starts=no))
    # the updates so far were not those of a schedule: the next tick is to be one like all others
    done = (run.counters.env_step - args.learning_starts) // args.update_every + 1
    run.counters.optimizer_step = max(done, 0)
    many("tick", run.tick)
    return found


def _play(run: Run, rng: np.random.Generator) -> None:
    """One step of random play into the replay."""
    frames, starts = run.lanes.frames, run.lanes.starts
    actions = random_actions(run.args.lanes, run.lanes.simulator.actions, rng)
    step = run.lanes.step(actions)
    _dqn_state.remember(run, frames, starts, actions, step)
    run.counters.env_step += int(step.valid.sum())


class _Stopwatch:
    """Wall and CPU seconds of a call, the device's queue emptied before and after."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    def once(self, work: Callable[[], Any]) -> tuple[Any, float, float]:
        """(what `work` returned, wall seconds, CPU seconds of all threads of this process)."""
        self._empty()
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        self._empty()
        return result, time.perf_counter() - wall, time.process_time() - cpu

    def _empty(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()


def _record(run: Run, setting: Setting, timings: dict[str, Timing]) -> dict[str, Any]:
    args = run.args
    shape = [args.batch, *([run.stack] if run.stack > 1 else []), *run.replay.spec.observation_shape]
    # What a tick is made of, measured apart; the lanes play while updates run, so a tick may take less.
    shares = {"environment": 1.0, "acting": 1.0, "replay": 1.0}
    shares |= dict.fromkeys(("batch", "update"), args.lanes / args.update_every)
    return {
        "engine": args.engine,
        "precision": args.precision,
        "args": {name: str(value) if isinstance(value, Path) else value for name, value in asdict(args).items()},
        "dtypes": {
            "compute": str(run.dtype),
            "values": "torch.float32",
            "master": "torch.float32",
            "optimizer": "torch.float32",
            "replay": str(run.replay.spec.dtype),
        },
        "input_shape": shape,
        "parameters": sum(parameter.numel() for parameter in run.online.parameters()),
        "rng_seed": args.rng_seed,
        "compiled": False,
        "versions": _machine.versions(("ale-py", "gymnasium")),
        "hardware": _machine.hardware(args.device),
        "load": os.getloadavg(),
        "environment": run.lanes.settings,
        "timings_seconds": {part: asdict(timings[part]) for part in PARTS if part in timings},
        "tick_from_parts_seconds": {
            "median": sum(share * timings[part].median for part, share in shares.items()),
            "cpu_median": sum(share * timings[part].cpu_median for part, share in shares.items()),
        },
        "env_steps_per_second": args.lanes / timings["tick"].median,
        "memory": {
            "process_peak_bytes": _machine.peak_bytes(),
            "framework_peak_bytes": _machine.device_peak_bytes(args.device),  # None: torch counts no peak on the CPU
            "replay_bytes": run.replay.nbytes,
        },
        "completed": run.counters.state(),
        "configured": {"warm": setting.warm, "repeats": setting.repeats, "total_steps": args.total_steps},
    }


# ----------------------------------------------------------------------------------------------------- All of them


def compare(setting: Setting) -> Iterator[dict[str, Any]]:
    """Measure each engine at each precision, one process after the other, and yield the records.

    Raises:
        BenchError: a process ended without a record; the text has what it said.
    """
    setting.check()
    for precision in setting.precisions:
        for engine in setting.engines:
            yield _apart(setting, engine, precision)


def _apart(setting: Setting, engine: str, precision: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        asked, told = Path(scratch) / "setting.json", Path(scratch) / "record.json"
        asked.write_text(json.dumps({**asdict(setting), "engine": engine, "precision": precision}), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, str(asked), str(told)], capture_output=True, text=True, check=False
        )
        if done.returncode == 2 and told.exists():  # the options, and not the measurement
            refused = json.loads(told.read_text(encoding="utf-8"))["refused"]
            raise UsageError(**{**refused, "where": "gradledger bench dqn"})
        if done.returncode or not told.exists():
            lines = done.stderr.strip().splitlines() or ["(nothing)"]
            raise BenchError(
                got=f"exit code {done.returncode} and: {lines[-1]}",
                wanted="a record",
                where=f"bench dqn, engine {engine}, precision {precision}",
                next_step="try the same options with `gradledger run dqn_atari --preset smoke`",
            )
        record: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
        return record


class BenchError(GradledgerError):
    """A setting could not be measured."""

    slug = "bench"


def document(records: Sequence[dict[str, Any]], setting: Setting) -> dict[str, Any]:
    """What is written: the settings, and the records in the order in which they were measured."""
    return {"format": FORMAT, "setting": asdict(setting), "parts": PARTS, "records": list(records)}


def table(records: Sequence[dict[str, Any]]) -> str:
    """Medians and quartiles by part, at most 80 columns."""
    first = records[0]
    args, setting = first["args"], first["configured"]
    game = f"{args['env']}: {args['lanes']} lanes, batch {args['batch']}, n = {args['n_step']}"
    machine = f"{first['hardware']['torch_threads']} thread(s) on {first['hardware']['device']}"
    lines = [
        f"{game}, an update every {args['update_every']} steps",
        f"{machine}, torch {first['versions']['torch']}, load {first['load'][0]:.1f}, {setting['repeats']} calls each",
    ]
    for part, what in PARTS.items():
        rows = [(one, one["timings_seconds"][part]) for one in records if part in one["timings_seconds"]]
        if not rows:
            continue
        lines += ["", f"{part}: {what}"]
        lines.append(f"  {'engine':<9}{'precision':<10}{'median ms':>12}{'quartiles':>24}{'CPU ms':>12}")
        for one, timing in rows:
            low, high = timing["quartiles"]
            spread = f"{1000 * low:.3f} - {1000 * high:.3f}" if timing["repeats"] > 1 else "once"
            lines.append(
                f"  {one['engine']:<9}{one['precision']:<10}{1000 * timing['median']:>12.3f}{spread:>24}"
                f"{1000 * timing['cpu_median']:>12.3f}"
            )
    lines += ["", f"  {'engine':<9}{'precision':<10}{'env steps/s':>12}{'process peak MB':>18}{'replay MB':>12}"]
    for one in records:
        memory = one["memory"]
        lines.append(
            f"  {one['engine']:<9}{one['precision']:<10}{one['env_steps_per_second']:>12.1f}"
            f"{memory['process_peak_bytes'] / 1e6:>18.1f}{memory['replay_bytes'] / 1e6:>12.1f}"
        )
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------- A process


def main(argv: Sequence[str]) -> int:
    """Measure the setting of one file into another."""
    started = _process_seconds()
    asked, told = map(Path, argv)
    given = json.loads(asked.read_text(encoding="utf-8"))
    engine, precision = given.pop("engine"), given.pop("precision")
    setting = Setting(**{**given, "engines": tuple(given["engines"]), "precisions": tuple(given["precisions"])})
    try:
        record = measure(setting, engine, precision, started=started)
    except GradledgerError as error:
        refused = {"got": error.got, "wanted": error.wanted, "where": error.where, "next_step": error.next_step}
        told.write_text(json.dumps({"refused": refused}), encoding="utf-8")
        return 2
    told.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return 0


def _process_seconds() -> float | None:
    """Wall seconds since this process began; None where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
