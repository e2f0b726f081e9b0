"""Programs that start the training in processes of their own: what is audited is what they start, not they themselves.

`gradledger audit [options] -m torch.distributed.run [its options] train.py ...` becomes `python -m
torch.distributed.run [its options] --no-python -- python -m gradledger audit [options] train.py ...`, so that each
rank is watched and the first one reports.  Of other launchers it is said that nothing they start is watched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gradledger.ledger._runner import Target

_TORCH = ("torch.distributed.run", "torch.distributed.launch")
# What to write instead, by the module or the script of a launcher that is not taken apart here.
_OTHERS = {
    "accelerate": "accelerate launch --no_python gradledger audit train.py",
    "accelerate.commands.launch": "accelerate launch --no_python gradledger audit train.py",
    "deepspeed": "deepspeed --no_python gradledger audit train.py",
    "deepspeed.launcher.runner": "deepspeed --no_python gradledger audit train.py",
    "torchrun": "torchrun --no-python gradledger audit train.py",
    "torch.distributed.run": "torchrun --no-python gradledger audit train.py",
    "torch.distributed.launch": "torchrun --no-python gradledger audit train.py",
}


def command(target: Target, argv: Sequence[str]) -> list[str] | None:
    """The command that audits the ranks which a launcher of torch starts; None for every other program.

    Args:
        argv: the whole command line of `gradledger audit`.
    """
    if not _is_torch(target):
        return None
    from torch.distributed.run import get_args_parser

    try:
        read = get_args_parser().parse_args(list(target.argv))
    except SystemExit:  # it has said what is wrong, or shown its help: run as it is, it does so again
        return None
    script_at = len(target.argv) - 1 - len(read.training_script_args)
    if read.no_python or script_at < 0 or target.argv[script_at] != read.training_script:
        return None  # a command of the user's own, which may be anything
    its = [word for word in target.argv[:script_at] if word not in ("-m", "--module", "--")]
    ours = list(argv[: len(argv) - len(target.argv) - 1])
    if ours and ours[-1] in ("-m", "--"):
        ours.pop()
    program = ["-m"] * bool(read.module) + list(target.argv[script_at:])
    launcher = ["-m", target.name] if target.kind == "module" else [target.name]
    audit = [sys.executable, "-m", "gradledger", "audit", *ours, *program]
    # after the dashes the launcher looks for none of its options, nor for abbreviations of them
    return [sys.executable, *launcher, *its, "--no-python", "--", *audit]


def unwatched(target: Target) -> str:
    """What to say in the report of a launcher; "" for other programs."""
    instead = _OTHERS.get(_name(target))
    if instead is None:
        return ""
    return f"the processes that {_name(target)} started were not watched, only itself; to watch them: {instead}"


def _is_torch(target: Target) -> bool:
    return target.name in _TORCH if target.kind == "module" else _name(target) == "torchrun"


def _name(target: Target) -> str:
    return target.name if target.kind == "module" else os.path.basename(target.name)
