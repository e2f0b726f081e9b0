"""`gradledger bench dqn`: what each part of a recipe costs, measured apart, with everything that decides the figures.

Exit codes: 0 measured; 2 the options cannot be understood, or a setting could not be run, and why.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gradledger.cli._atomic import check_path, write_text

SUMMARY = "Time the parts of a recipe apart: start-up, data, forward, update, environment, evaluation."


class Engine(StrEnum):
    """Which backward fills the gradients."""

    sweep = "sweep"
    autograd = "autograd"
    both = "both"


class Precision(StrEnum):
    """Of the network that runs; master weights and optimizer stay in float32."""

    fp32 = "fp32"
    bf16 = "bf16"
    both = "both"


def dqn(
    game: Annotated[str, typer.Option("--game", "--env", metavar="NAME", help="ROM, or a gymnasium id.")] = "pong",
    engine: Annotated[Engine, typer.Option(help="Which backward.")] = Engine.both,
    precision: Annotated[Precision, typer.Option(help="Of the network that runs.")] = Precision.both,
    repeats: Annotated[int, typer.Option(metavar="N", help="Timed calls of each part.")] = 40,
    warm: Annotated[int, typer.Option(metavar="N", help="Calls before them that are not counted.")] = 5,
    fill: Annotated[int, typer.Option(metavar="N", help="Steps of random play in the replay.")] = 2_000,
    batch: Annotated[int, typer.Option(metavar="B", help="Transitions in an update.")] = 32,
    n_step: Annotated[int, typer.Option(metavar="N", help="Longest window of a return.")] = 1,
    double: Annotated[bool, typer.Option("--double", help="Double DQN.")] = False,
    update_every: Annotated[int, typer.Option(metavar="N", help="Steps per update.")] = 4,
    lanes: Annotated[int, typer.Option(metavar="E", help="Environments in step.")] = 8,
    replay: Annotated[int, typer.Option(metavar="N", help="Capacity of the replay, in frames.")] = 50_000,
    threads: Annotated[int, typer.Option(metavar="N", help="Torch threads.")] = 1,
    device: Annotated[str, typer.Option(metavar="NAME", help="Torch device.")] = "cpu",
    rng_seed: Annotated[int, typer.Option(metavar="N", help="Weights, environments, batches.")] = 1,
    out: Annotated[str | None, typer.Option(metavar="PATH", help="Write the record: a file, or a run folder.")] = None,
) -> None:
    """Measure the DQN recipe's parts, each engine at each precision in a process of its own."""
    # not before the verb is known: it loads torch
    from gradledger.recipes import _dqn_bench as bench
    from gradledger.recipes import _games

    path = check_path(str(Path(out) / "bench.json") if out is not None and Path(out).is_dir() else out, "--out")
    args: dict[str, Any] = {
        "env": _games.resolve(game),
        "batch": batch,
        "n_step": n_step,
        "double": double,
        "lanes": lanes,
    }
    args |= {"update_every": update_every, "replay": replay, "threads": threads, "device": device}
    setting = bench.Setting(
        args={**args, "rng_seed": rng_seed},
        engines=("sweep", "autograd") if engine is Engine.both else (engine.value,),
        precisions=("fp32", "bf16") if precision is Precision.both else (precision.value,),
        fill=fill,
        warm=warm,
        repeats=repeats,
    )
    records = []
    for record in bench.compare(setting):
        records.append(record)
        if path is not None:  # what was measured stays, also when a later setting fails
            write_text(path, json.dumps(bench.document(records, setting), indent=1) + "\n")
    typer.echo(bench.table(records))


COMMANDS = {"dqn": dqn}
