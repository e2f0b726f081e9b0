"""Launchers: what is run instead so that the ranks are watched, and what is said where they cannot be."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from gradledger.ledger import _launchers
from gradledger.ledger._runner import Target

AUDIT = [sys.executable, "-m", "gradledger", "audit"]
RUN = ("-m", "torch.distributed.run")


@pytest.mark.parametrize(
    ("ours", "its", "program"),
    [
        ([], ["--standalone", "--nproc-per-node", "2"], ["train.py", "--lr", "3e-4", "--", "-m"]),
        (["--run", "kept", "--format=json"], ["--nproc-per-node=2"], ["train.py"]),
        ([], ["--nnodes", "1"], ["-m", "package.train", "--nproc-per-node", "x"]),
    ],
)
def test_ranks_are_audited_with_our_options(ours: list[str], its: list[str], program: list[str]) -> None:
    target = Target("module", RUN[1], (*its, *program))
    found = _launchers.command(target, [*ours, *RUN, *its, *program])
    assert found == [sys.executable, *RUN, *its, "--no-python", "--", *AUDIT, *ours, *program]
    read: Any = get_args_parser().parse_args(found[3:])  # as the launcher will read it
    command = [read.training_script, *read.training_script_args]
    assert [word for word in command if word != "--"] == [w for w in (*AUDIT, *ours, *program) if w != "--"]
    assert read.no_python
    assert not read.module


def test_a_script_of_the_name_is_a_launcher_too() -> None:
    target = Target("script", "/usr/bin/torchrun", ("train.py",))
    found = _launchers.command(target, ["/usr/bin/torchrun", "train.py"])
    assert found == [sys.executable, "/usr/bin/torchrun", "--no-python", "--", *AUDIT, "train.py"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Target("script", "train.py", ("torchrun",)), ""),
        (Target("module", "torch.distributed.run", ("--no-python", "./train.sh")), "torchrun --no-python gradledger"),
        (Target("module", "accelerate.commands.launch", ("train.py",)), "accelerate launch --no_python gradledger"),
    ],
)
def test_what_is_not_taken_apart_runs_as_it_is_and_is_told(target: Target, said: str) -> None:
    assert _launchers.command(target, [*RUN, *target.argv]) is None
    assert said in _launchers.unwatched(target)
    assert bool(said) == bool(_launchers.unwatched(target))
