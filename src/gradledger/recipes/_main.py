"""From a command line to an exit code, the same for every recipe: one run, one that goes on, or one for each seed."""

from __future__ import annotations

import dataclasses
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gradledger.core.errors import GradledgerError, UsageError
from gradledger.evidence import lock
from gradledger.evidence.runner import Halted
from gradledger.recipes import _folder, _seeds
from gradledger.recipes._checks import make_folder, refused
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
        0; 1 where one of several seeds side by side failed; 2 for a mistake of the call or a folder that cannot be
        used, with the reason on stderr; 128 + the signal's number when a signal stopped it (130 Ctrl-C, 143 SIGTERM),
        with the command that goes on.
    """
    try:
        words = parse(kind, presets, argv, recipe=recipe, description=description, prog=prog)
    except GradledgerError as error:
        return _complain(error)
    try:
        return _start(name, words, train, FREE | set(free))
    except GradledgerError as error:
        return _complain(error)
    except KeyboardInterrupt as stopped:
        return _interrupted(name, words, stopped)


def simple(
    kind: type[Args],
    presets: Mapping[str, Mapping[str, Any]],
    train: Callable[[Any], Any],
    argv: Sequence[str] | None,
    *,
    recipe: Recipe,
    description: str,
    prog: str | None = None,
) -> int:
    """Read the words and run, for a recipe whose folder keeps its own records, so that running again goes on. Its plan
    says which seeds are run, so there is no ``--seeds``: given all the same, it is refused.

    Returns:
        0; 2 for a mistake of the call, with the reason on stderr; 128 + the signal's number when a signal stopped it,
        with the command that goes on.
    """
    try:
        args = parse(kind, presets, argv, recipe=recipe, description=description, prog=prog, series=False).args
        _check(args)
        train(args)
    except GradledgerError as error:
        return _complain(error)
    except KeyboardInterrupt as stopped:
        again = shlex.join([*(prog or sys.argv[0]).split(), *(sys.argv[1:] if argv is None else argv)])
        print(f"interrupted; to go on: {again}", file=sys.stderr)
        return 128 + _number(stopped)
    return 0


def _check(args: Any) -> None:
    """Refuse, before anything is registered, options that `train` could not go through with.

    Raises:
        UsageError: no worker; a folder to go on in that holds no plan; or one that cannot be made.
    """
    if getattr(args, "workers", 1) < 1:
        raise refused(f"--workers {args.workers}", "1 or more", "name how many trials run at a time")
    if getattr(args, "resume", False) and not (args.out / lock.LOCK).exists():
        raise refused(
            f"--resume, and no registered plan in {args.out}",
            f"the folder of a run: it holds {lock.LOCK}",
            "check the path, or leave --resume out to start one",
        )
    if not getattr(args, "break_", ""):
        make_folder(args.out)


def go_on(args: Any, given: Mapping[str, Any], free: Collection[str]) -> tuple[Any, checkpoint.Checkpoint | None]:
    """The arguments of the run that lies in `args.out`, and its checkpoint, None where it has none yet.

    Raises:
        UsageError: there is no run; or an option contradicts it and is not among those that are `free`.
        CheckpointError: there are checkpoints, and none is whole.
    """
    if not _folder.is_run(args.out):
        raise UsageError(
            got=f"--resume, and no run in {args.out}",
            wanted="the folder of a run: it holds checkpoints/ and config.json",
            where="options of the recipe",
            next_step="check the path (a series of seeds has its runs in seed-N), or leave --resume out to start one",
        )
    saved = None if _folder.begins_again(args.out) else checkpoint.load(args.out / _folder.CHECKPOINTS)
    then = saved.facts["args"] if saved is not None else _folder.read_config(args.out)["args"]
    return _merged(args, then, given, free), saved


def _merged(args: Any, then: Mapping[str, Any], given: Mapping[str, Any], free: Collection[str]) -> Any:
    """The arguments as they were, with those that were given anew."""
    wrong = [name for name, value in given.items() if name not in free and then.get(name) != _folder.simple(value)]
    if wrong:
        raise UsageError(
            got=", ".join(f"{name}={given[name]}" for name in wrong),
            wanted=", ".join(f"{name}={then.get(name)}" for name in wrong),
            where=f"--resume {args.out}",
            next_step="leave these options out, or start a new run in another folder",
        )
    kept = {name: given[name] for name in given.keys() & free}
    return dataclasses.replace(args, **{**then, **kept, "out": args.out, "resume": True})


@dataclass(frozen=True)
class OneOfSeveral:
    """The run of one seed of a series, as a function that another process can be handed."""

    train: Train
    args: Any
    given: Mapping[str, Any]
    free: frozenset[str]

    def run(self, rng_seed: int, out: Path) -> dict[str, Any]:
        """With --resume a finished one is read, an unfinished one goes on, a missing one starts."""
        mine, saved = dataclasses.replace(self.args, rng_seed=rng_seed, out=out), None
        if mine.resume and _folder.is_run(out):
            mine, saved = go_on(mine, self.given, self.free)
            done = _seeds.finished(out)
            if done and done["completed"]["env_step"] >= mine.total_steps:
                return done
        else:
            mine = dataclasses.replace(mine, resume=False)
        return self.train(mine, saved)

    def __call__(self, config: Mapping[str, Any], rng_seed: int) -> dict[str, Any]:
        """As a trial: scores. It may have been tried before, so that its folder holds a part of it."""
        again = dataclasses.replace(self, args=dataclasses.replace(self.args, resume=True))
        return _seeds.score_of(again.run(rng_seed, _seeds.folder_of(self.args.out, rng_seed)))


def _start(name: str, words: Words[Any], train: Train, free: Collection[str]) -> int:
    args, seeds = words.args, words.seeds
    series = _seeds.series(args.out) if args.resume else None
    if series is not None:
        # One that has not begun yet is to be like the others: the series keeps its settings, and its list of seeds.
        seeds, args = seeds or tuple(series["asked"]), _merged(args, series["args"], words.given, free)
    elif seeds and not args.resume:
        for one in seeds:  # all before the first: no run is to end at a folder that is taken
            _folder.check_new(_seeds.folder_of(args.out, one), name)
    several = OneOfSeveral(train, args, words.given, frozenset(free))
    settings = _folder.plain(args)
    if seeds and (words.jobs > 1 or words.backend != "processes"):
        config = {key: value for key, value in settings.items() if key not in FREE and key != "rng_seed"}
        told = _seeds.run_beside(
            name, seeds, args.out, several, settings=settings, config=config, jobs=words.jobs, backend=words.backend
        )
        return 1 if told["failed"] else 0
    if seeds:
        _seeds.run_seeds(name, seeds, args.out, several.run, settings=settings)
    elif args.resume:
        train(*go_on(args, words.given, free))
    else:
        train(args, None)
    return 0


def _complain(error: GradledgerError) -> int:
    print(f"gradledger: {error}", file=sys.stderr)
    return 2


def _interrupted(name: str, words: Words[Any], stopped: KeyboardInterrupt) -> int:
    saved = isinstance(stopped, Stopped)
    said = "stopped and saved" if saved else "interrupted"
    jobs = f" --jobs {words.jobs}" if words.jobs > 1 else ""
    print(f"{said}; to go on: gradledger run {name} --resume {words.args.out}{jobs}", file=sys.stderr)
    return 128 + _number(stopped)


def _number(stopped: KeyboardInterrupt) -> int:
    """Of the signal that stopped it."""
    return stopped.signal_number if isinstance(stopped, Stopped | Halted) else signal.SIGINT
