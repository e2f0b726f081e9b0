"""What every recipe refuses before it starts: numbers out of range, devices that are not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gradledger.core.errors import UsageError


def check_numbers(args: Any, *, counts: Sequence[str], positive: Sequence[str], shares: Sequence[str]) -> None:
    """Check fields of an Args by name.

    Args:
        counts: at least 1 (a word such as "auto" passes). positive: above 0. shares: from 0 to 1, or None.

    Raises:
        UsageError: names every field that is out of range, with its value.
    """
    values = dataclasses.asdict(args)
    wrong = [f"{name}={values[name]}" for name in counts if not isinstance(values[name], str) and values[name] < 1]
    wrong += [f"{name}={values[name]}" for name in positive if not values[name] > 0]
    if wrong:
        raise refused(", ".join(wrong), "numbers above 0", "correct these options, see --help")
    given = [name for name in shares if values[name] is not None]
    outside = [f"{name}={values[name]}" for name in given if not 0.0 <= values[name] <= 1.0]
    if outside:
        raise refused(", ".join(outside), "numbers from 0 to 1", "correct these options, see --help")


def check_device(device: str) -> None:
    """Refuse what torch does not know or does not find here.

    Raises:
        UsageError: says which.
    """
    try:
        of = torch.device(device)
    except RuntimeError as error:
        raise refused(f"device={device}", "a torch device", str(error).partition("\n")[0]) from None
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if of.type in there and (of.index or 0) >= there[of.type]:
        raise refused(
            f"device={device}, and torch finds {there[of.type]} of that kind",
            "a device of this machine",
            "--device cpu, or a build of torch for the device",
        )


def make_folder(out: Path) -> None:
    """The folder of a run.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        there = "which is a file" if out.is_file() else f"and {str(cause.strerror).lower()}"
        raise refused(f"--out {out}, {there}", "a folder, made where it is missing", "name another folder") from None


def refused(got: str, wanted: str, next_step: str) -> UsageError:
    """The error for an option."""
    return UsageError(got=got, wanted=wanted, where="options of the recipe", next_step=next_step)
