"""From a command line to an exit code, the same for every recipe: one run, one that goes on, or one for each seed."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gradledger.core.errors import GradledgerError, UsageError
from gradledger.recipes import _folder, _seeds
from gradledger.recipes._command_line import Words, parse
from gradledger.recipes._registry import Recipe
from gradledger.recipes._stop import Stopped
from gradledger.train import checkpoint

Args = TypeVar("Args")
Train = Callable[[Any, checkpoint.Checkpoint | None], dict[str, Any]]

# What may be given anew beside --resume: it changes how long, how fast and what is shown, not what is computed.
FREE = frozenset({"out", "resume", "threads", "checkpoint_every", "pictures", "tensorboard"})


def main(
    kind: type[Args],
    presets: Mapping[str, Mapping[str, Any]],
    train: Train,
    argv: Sequence[str] | None,
    *,
    name: str,
    recipe: Recipe,
    description: str,
    free: Collection[str] = (),
    prog: str | None = None,
) -> int:
    """Read the words and do what they ask for.

    Args:
        kind: Args of the recipe. train: its function (args, checkpoint to go on from) -> record.
        free: more of what may be given anew beside --resume.

    Returns:
        0; 2 for a mistake of the call or a folder that cannot be used, with the reason on stderr; 128 + the signal's
        number when a signal stopped it (130 Ctrl-C, 143 SIGTERM), with the command that goes on.
    """
    try:
        words = parse(kind, presets, argv, recipe=recipe, description=description, prog=prog)
    except GradledgerError as error:
        return _complain(error)
    try:
        _start(name, words, train, FREE | set(free))
    except GradledgerError as error:
        return _complain(error)
    except KeyboardInterrupt as stopped:
        return _interrupted(name, words, stopped)
    return 0


def go_on(args: Any, given: Mapping[str, Any], free: Collection[str]) -> tuple[Any, checkpoint.Checkpoint | None]:
    """The arguments of the run that lies in `args.out`, and its checkpoint, None where it has none yet.

    Raises:
        UsageError: an option that was given contradicts the run, and is not among those that are `free`.
        CheckpointError: there are checkpoints, and none is whole; or there is no run at all.
    """
    out: Path = args.out
    saved = None if _folder.begins_again(out) else checkpoint.load(out / _folder.CHECKPOINTS)
    then = saved.facts["args"] if saved is not None else _folder.read_config(out)["args"]
    wrong = [name for name, value in given.items() if name not in free and then.get(name) != _folder.simple(value)]
    if wrong:
        raise UsageError(
            got=", ".join(f"{name}={given[name]}" for name in wrong),
            wanted=", ".join(f"{name}={then.get(name)}" for name in wrong),
            where=f"--resume {out}",
            next_step="leave these options out, or start a new run in another folder",
        )
    kept = {name: given[name] for name in given.keys() & free}
    return dataclasses.replace(args, **{**then, **kept, "out": out, "resume": True}), saved


def _start(name: str, words: Words[Any], train: Train, free: Collection[str]) -> None:
    args = words.args
    if words.seeds:
        if not args.resume:
            for one in words.seeds:  # all before the first: no run is to end at a folder that is taken
                _folder.check_new(_seeds.folder_of(args.out, one), name)
        _seeds.run_seeds(name, words.seeds, args.out, lambda one, out: _run_seed(words, train, free, one, out))
    elif args.resume:
        train(*go_on(args, words.given, free))
    else:
        train(args, None)


def _run_seed(words: Words[Any], train: Train, free: Collection[str], rng_seed: int, out: Path) -> dict[str, Any]:
    """One of several seeds; with --resume a finished one is read, an unfinished one goes on, a missing one starts."""
    args = dataclasses.replace(words.args, rng_seed=rng_seed, out=out)
    if not args.resume or not _folder.is_run(out):
        return train(dataclasses.replace(args, resume=False), None)
    args, saved = go_on(args, words.given, free)
    done = _seeds.finished(out)
    return done if done and done["completed"]["env_step"] >= args.total_steps else train(args, saved)


def _complain(error: GradledgerError) -> int:
    print(f"gradledger: {error}", file=sys.stderr)
    return 2


def _interrupted(name: str, words: Words[Any], stopped: KeyboardInterrupt) -> int:
    saved = isinstance(stopped, Stopped)
    number = stopped.signal_number if isinstance(stopped, Stopped) else signal.SIGINT
    seeds = f" --seeds {','.join(map(str, words.seeds))}" if words.seeds else ""
    print(
        f"{'stopped and saved' if saved else 'interrupted'}; to go on: "
        f"gradledger run {name}{seeds} --resume {words.args.out}",
        file=sys.stderr,
    )
    return 128 + number
