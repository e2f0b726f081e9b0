"""`gradledger data check|split|leaks|learnable|lerobot`: contracts, splits and learnability from a terminal.

Exit codes: 0 all is well; 1 the data do not hold what was asked (every reason is printed); 2 the call cannot be
understood, or a file cannot be read.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gradledger.cli._atomic import check_path, write_text
from gradledger.cli._data import files, grouped, many, order, pins, plain, shares, usage, words
from gradledger.core.errors import GradledgerError

SUMMARY = "Check data against a contract, split it without leaks, ask whether it can be learned."

GOOD, BAD, CANNOT = 0, 1, 2

AsJson = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Also write the result to FILE.")]
Document = dict[str, Any]


class Task(StrEnum):
    """What a target is."""

    classes = "classes"
    values = "values"


def check(
    path: Annotated[str, typer.Argument(metavar="FOLDER|FILE", help="npz, npy, csv, parquet or safetensors.")],
    schema: Annotated[str, typer.Option("--schema", metavar="S", help="The contract, a JSON file.")],
    now: Annotated[float | None, typer.Option(metavar="TIME", help="Clock for the largest age of a time.")] = None,
    as_json: AsJson = None,
) -> None:
    """Check files against a schema: every violation of every file, with what was got, what was wanted and where."""

    def work(document: Document) -> int:
        from gradledger.data import schema as schemas
        from gradledger.data import table

        contract = schemas.read(Path(schema))
        found_files = files(Path(path), table.FORMS)
        found: dict[str, list[str]] = {}
        for file in found_files:
            try:
                one = table.read(file)
                found[str(file)] = [str(v) for v in contract.check(one.arrays, declared=one.declared, now=now)]
            except GradledgerError as error:
                found[str(file)] = [str(error)]
        bad = {file: texts for file, texts in found.items() if texts}
        for name, texts in bad.items():
            _say(f"{name}: {many(len(texts), 'violation')}", *(f"  {text}" for text in grouped(texts)))
        good = len(found_files) - len(bad)
        _say(f"{many(len(found_files), 'file')} checked against {contract.name!r}, {good} without a violation")
        document.update(schema=contract.name, files=len(found_files), violations=bad)
        return BAD if bad else GOOD

    _run("check", as_json, work)


def split(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="One row a sample.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where split.json goes.")],
    id: Annotated[str, typer.Option(metavar="COLUMN", help="A name for each sample, each once.")] = "id",
    group: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Samples that share a value stay together.")
    ] = None,
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Classes: each side gets every one.")] = "",
    time: Annotated[str, typer.Option(metavar="COLUMN", help="Time of each sample, for --gap and --purge.")] = "",
    gap: Annotated[float, typer.Option(help="A silence longer than this ends a burst; bursts stay together.")] = 0.0,
    purge: Annotated[
        float, typer.Option(help="Drop samples of the first side nearer in time than this to another.")
    ] = 0.0,
    content: Annotated[str, typer.Option(metavar="COLUMNS", help="Samples equal in these stay together.")] = "",
    share: Annotated[
        list[str] | None, typer.Option(metavar="SIDE=SHARE", help="Such as train=0.8; they sum to 1.")
    ] = None,
    pin: Annotated[list[str] | None, typer.Option(metavar="COLUMN=VALUE:SIDE", help="Put these on one side.")] = None,
    tolerance: Annotated[float, typer.Option(help="How far a side may be from its share.")] = 0.05,
    rng_seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    as_json: AsJson = None,
) -> None:
    """Split a table so that nothing related is on two sides, and write down which sample is where and why."""

    def work(document: Document) -> int:
        from gradledger.data import groups, manifest
        from gradledger.data import split as splits
        from gradledger.data import table as tables

        target = check_path(output, "--output")
        assert target is not None
        rows = tables.read(Path(table))
        count = rows.rows()
        ids = [str(one) for one in rows.column(id, "--id").tolist()]
        if len(set(ids)) < count:
            twice = Counter(ids).most_common(1)[0][0]
            got = f"--id {id}, which has {twice!r} twice ({len(set(ids))} values in {count} rows)"
            wanted = "a name for each sample, each once"
            raise usage("split", got, wanted, "name another column, or add one that counts rows")
        keys = {name: plain(rows.column(name, "--group").tolist()) for name in group or []}
        times = rows.numbers(time, "--time").tolist() if time else None
        if gap > 0:
            if times is None:
                raise usage("split", "--gap without --time", "the column of times", "pass --time COLUMN")
            keys["burst"] = list(groups.bursts(times, gap))
        hashes = None
        if content:
            columns = {name: rows.column(name, "--content") for name in words(content)}
            hashes = [
                groups.content_hash({name: column[at] for name, column in columns.items()}) for at in range(count)
            ]
        if not keys and hashes is None:
            raise usage(
                "split",
                "no group",
                "what belongs together",
                f"--group COLUMN, --gap, --content, or --group {id} if nothing does",
            )
        tied = {**keys, "content": list(hashes)} if hashes is not None else keys
        made = splits.split(
            tied,
            shares=shares(share),
            labels=plain(rows.column(label, "--label").tolist()) if label else None,
            pinned=pins(pin, rows),
            times=times,
            purge=purge,
            tolerance=tolerance,
            rng_seed=rng_seed,
        )
        kept = manifest.record(made, ids, keys, hashes=hashes)
        kept.write(target)
        counts = kept.counts()
        for side in made.shares:
            members = len({made.groups[at] for at in made.indices(side)})
            _say(f"{side}: {many(counts[side], 'sample')} ({made.held[side]:.1%}) in {many(members, 'group')}")
        if counts[splits.PURGED]:
            _say(f"purged: {many(counts[splits.PURGED], 'sample')}")
        _say(f"written: {target}, SHA-256 {kept.sha256}")
        document.update(counts=counts, sha256=kept.sha256, output=str(target))
        return GOOD

    _run("split", as_json, work)


def leaks(
    split: Annotated[str, typer.Argument(metavar="SPLIT", help="A split.json.")],
    features: Annotated[str, typer.Option(metavar="FILE", help="The samples, to look for kinship.")] = "",
    columns: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="Which of them: a,b or p*; all numbers but id, target and keys if none."),
    ] = "",
    id: Annotated[str, typer.Option(metavar="COLUMN", help="The samples' names in that file.")] = "id",
    target: Annotated[str, typer.Option(metavar="COLUMN", help="Score a model with and without the groups.")] = "",
    task: Annotated[Task, typer.Option(help="What the target is.")] = Task.classes,
    as_json: AsJson = None,
) -> None:
    """Look for leaks: in the split itself, between its sides, and what a random split would pretend, as a number."""

    def work(document: Document) -> int:
        from gradledger.data import leaks as look
        from gradledger.data import manifest as manifests
        from gradledger.data import table as tables

        kept = manifests.read(Path(split))
        problems = kept.problems()
        for option, given in (("--target", target), ("--columns", columns)):
            if given and not features:
                raise usage("leaks", f"{option} without --features", "the file that has it", "pass --features FILE")
        if features:
            rows = tables.read(Path(features))
            if target:
                rows.column(target, "--target")
            problems += kept.problems_with([str(one) for one in rows.column(id, "--id").tolist()])
        if features and not problems:
            at = order(kept, rows, id)
            leave = {id, target, *kept.keys}
            values = rows.matrix(words(columns), leave=leave)[at]
            if not columns:
                used = [name for name, array in rows.arrays.items() if name not in leave and array.dtype.kind in "biuf"]
                _say(f"looked at: {', '.join(used[:6])}{f' and {len(used) - 6} more' if len(used) > 6 else ''}")
            problems += look.twins(kept, values)
            bursts = look.burst_test(values)
            _say(str(bursts))
            document["bursts"] = str(bursts)
            if bursts.found and len(set(kept.groups)) == len(kept.groups):
                problems.append("the samples come in bursts, and every sample is a group of its own: a random split")
            if target:
                goal = rows.column(target, "--target")[at]
                leak = look.group_control(values, goal, kept.groups, task=task.value)
                _say(str(leak))
                document.update(leak=leak.leak, random=leak.random, grouped=leak.grouped)
        for text in problems:
            _say(f"leak: {text}")
        if not problems:
            held = len(set(kept.groups))
            if features and bursts.found:
                _say(f"this split keeps {many(held, 'group')} whole; --target shows what a random one would pretend")
            counts = ", ".join(f"{side} {count}" for side, count in kept.counts().items())
            _say(f"no leak found: {counts}")
        document.update(problems=problems)
        return BAD if problems else GOOD

    _run("leaks", as_json, work)


def learnable(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="One row a sample.")],
    inputs: Annotated[str, typer.Option(metavar="COLUMNS", help="What the model is given: a,b or joint_*.")],
    targets: Annotated[str, typer.Option(metavar="COLUMNS", help="What it is to say: numbers, likewise.")] = "",
    classes: Annotated[str, typer.Option(metavar="COLUMN", help="What it is to say: a class.")] = "",
    angles: Annotated[str, typer.Option(metavar="COLUMNS", help="Targets in rad, compared on the circle.")] = "",
    group: Annotated[
        str, typer.Option(metavar="COLUMN", help="The recording of each row; pairs are then of two recordings.")
    ] = "",
    goal: Annotated[float | None, typer.Option(help="An MSE, or an error, that is to be reached.")] = None,
    as_json: AsJson = None,
) -> None:
    """Ask, before anything is trained, how well the target can follow from the input: the floor of the loss."""

    def work(document: Document) -> int:
        from gradledger.data import LearnabilityError, learnability
        from gradledger.data import table as tables

        if bool(targets) == bool(classes):
            got = "both --targets and --classes" if targets else "neither --targets nor --classes"
            raise usage("learnable", got, "one of them", "name the columns to be predicted")
        if goal is not None and not goal >= 0:
            raise usage("learnable", f"--goal {goal:g}", "an error of at least 0", "name the error to be reached")
        rows = tables.read(Path(table))
        rows.rows()
        asked = [classes] if classes else rows.matching(words(targets), "--targets")
        both = sorted(set(asked) & set(rows.matching(words(inputs), "--inputs")))
        if both:
            got = f"{', '.join(both)} among the inputs and to be predicted"
            raise usage("learnable", got, "inputs that the target is not part of", "take it out of --inputs")
        idle = [name for name in words(angles) if name not in (*asked, *(rows.titles(asked) if targets else ()))]
        if idle:
            wanted = f"names among the targets, {', '.join(asked)}"
            raise usage("learnable", f"--angles {', '.join(idle)}", wanted, "name those targets that are angles")
        given = rows.matrix(words(inputs))
        groups = plain(rows.column(group, "--group").tolist()) if group else None
        if targets:
            names, goals = rows.titles(words(targets)), rows.matrix(words(targets))
            turning = [name for name in names if name in words(angles) or name.partition("[")[0] in words(angles)]
            floor = learnability.noise_floor(given, goals, names=names, angles=turning, groups=groups)
            _say(str(floor))
            document.update(side_by_side=floor.side_by_side, ratio=floor.ratio, mse=floor.mse)
            document.update(floor=dict(zip(floor.names, floor.floor, strict=True)))
            bottom, fine, metric = floor.mse, floor.learnable, "MSE"
        else:
            conflicts = learnability.label_conflicts(given, rows.column(classes, "--classes"), groups=groups)
            _say(str(conflicts))
            document.update(side_by_side=conflicts.side_by_side, share=conflicts.share)
            document.update(close=conflicts.close, error=conflicts.error)
            bottom, fine, metric = conflicts.error, conflicts.learnable, "error"
        if goal is not None:
            try:
                learnability.require_reachable(goal, bottom, metric=metric)
            except LearnabilityError as error:
                _say(str(error))
                fine = False
        document.update(learnable=fine)
        return GOOD if fine else BAD

    _run("learnable", as_json, work)


def lerobot_check(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A LeRobotDataset v3.0.")],
    videos: Annotated[bool, typer.Option(help="Decode every video and picture too.")] = True,
    as_json: AsJson = None,
) -> None:
    """Check a LeRobotDataset v3 folder: every problem, one a line."""

    def work(document: Document) -> int:
        from gradledger.data.lerobot import check as look

        if not Path(folder).is_dir():
            got = f"{folder}, which is {'a file' if Path(folder).exists() else 'not there'}"
            raise usage("lerobot check", got, "the folder of a LeRobotDataset v3.0", "name the folder that holds meta/")
        problems = look(Path(folder), videos=videos)
        _say(*problems, f"{folder}: {many(len(problems), 'problem')}")
        document.update(problems=problems)
        return BAD if problems else GOOD

    _run("lerobot check", as_json, work)


def lerobot_convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A table of frames, or a folder of version 2.1.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The folder to write; it must not exist.")],
    fps: Annotated[int | None, typer.Option(help="Frames a second of a table.")] = None,
    episode: Annotated[str, typer.Option(metavar="COLUMN", help="Which recording a frame is of.")] = "episode",
    task: Annotated[str, typer.Option(metavar="TEXT", help="What was done, the same in all.")] = "",
    task_column: Annotated[str, typer.Option(metavar="COLUMN", help="What was done, frame by frame.")] = "",
    videos: Annotated[str, typer.Option(metavar="COLUMNS", help="Pictures of a table to store as video (lossy).")] = "",
    images: Annotated[str, typer.Option(metavar="COLUMNS", help="Pictures of a table to store exactly (PNG).")] = "",
    robot_type: Annotated[str | None, typer.Option(metavar="TEXT", help="Name of the robot.")] = None,
    as_json: AsJson = None,
) -> None:
    """Write a LeRobotDataset v3 from a table of frames or from a folder of version 2.1."""

    def work(document: Document) -> int:
        from gradledger.data.lerobot import convert

        info = convert(
            Path(source),
            Path(target),
            fps=fps,
            episode=episode,
            task=task,
            task_column=task_column,
            robot_type=robot_type,
            videos=words(videos),
            images=words(images),
        )
        _say(f"{target}: {many(info.total_episodes, 'episode')}, {many(info.total_frames, 'frame')}")
        document.update(info.to_json())
        return GOOD

    _run("lerobot convert", as_json, work)


COMMANDS = {
    "check": check,
    "split": split,
    "leaks": leaks,
    "learnable": learnable,
    "lerobot": ("LeRobotDataset v3 folders.", {"check": lerobot_check, "convert": lerobot_convert}),
}


# from words to arguments -------------------------------------------------------------------------------------------


def _run(verb: str, as_json: str | None, work: Callable[[Document], int]) -> NoReturn:
    """Do the work, write the document; ends with the exit code."""
    document: Document = {"verb": f"data {verb}"}
    try:
        path = check_path(as_json, "--json")
        code = work(document)
    except GradledgerError as error:
        print(f"gradledger: {error}", file=sys.stderr)
        raise typer.Exit(CANNOT) from None
    document["exit_code"] = code
    if path is not None:
        write_text(path, json.dumps(document, indent=1) + "\n")
    raise typer.Exit(code)


def _say(*lines: str) -> None:
    for line in lines:
        typer.echo(line)
