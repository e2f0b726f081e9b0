"""Moving out for real: the same bits, memory that is free while it is away, nothing left behind, whatever happens."""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import problems as P
from gradledger import sweep
from gradledger.core.errors import SweepError
from gradledger.sweep import _offload
from gradledger.sweep._action import Action
from gradledger.sweep._memory import MemoryWatch
from gradledger.sweep._plan import Plan
from gradledger.sweep._simulate import simulate
from gradledger.sweep._state import equal_bits

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sweep_models as models

PROBLEMS = [p for p in P.PROBLEMS if p.compiled != "inductor"]
PLACES = ("disk", "host")


@pytest.fixture(autouse=True)
def _everything_moves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Small tensors too, into a folder of the test's own, in which nothing may be left; no open file either."""
    monkeypatch.setattr(_offload, "SMALL", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = _open_files(tmp_path)
    yield
    gc.collect()
    assert [f for f in tmp_path.iterdir() if not f.name.startswith("torchinductor")] == []  # torch makes that one
    assert _open_files(tmp_path) == before


def _open_files(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


# the same bits --------------------------------------------------------------------------------------------------------


def _free(chain: P.Chain) -> list[bool]:
    costs = sweep.plan(chain.blocks, example=(chain.x, chain.y), loss=chain.loss_fn, repeats=1).costs
    return [i not in costs.forced for i in range(len(chain.blocks))]


def _tapes(free: list[bool], place: str) -> str:
    """Every tape is moved out, the loss's too."""
    return " ".join(f"{i}@{place}" for i in range(len(free) + 1))


def _held(free: list[bool], place: str) -> str:
    """Every block is recomputed alone from an input that was away (where it may be; the data stays)."""
    words = [f"({i})" + (f"@{place}" if i else "") if may else f"{i}@{place}" for i, may in enumerate(free)]
    return f"{' '.join(words)} {len(free)}"


def _nested(free: list[bool], place: str) -> str:
    """Segments in segments with moves in all of them; what may not be run again is moved out."""
    words, run = [], []
    for i, may in enumerate([*free, False]):
        if may:
            run.append(i)
            continue
        if run:
            words.append(_segment(run, place))
            run = []
        words.append(f"{i}@{place}" if i < len(free) else str(i))
    return " ".join(words)


def _segment(blocks: list[int], place: str) -> str:
    out = f"@{place}" if blocks[0] else ""
    if len(blocks) < 3:
        return "(" + " ".join(f"{i}@{place}" for i in blocks) + ")" + out
    half = len(blocks) // 2
    rest = " ".join(f"{i}@{place}" if i % 2 else str(i) for i in blocks[half:])
    return f"({_segment(blocks[:half], place)} {rest}){out}"


SHAPES: dict[str, Callable[[list[bool], str], str]] = {"tapes": _tapes, "held": _held, "nested": _nested}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", PLACES)
def test_every_problem(problem: P.Problem, shape: str, place: str) -> None:
    def backward(chain: P.Chain) -> Any:
        free = [True] * len(chain.blocks) if shape == "tapes" else _free(chain)
        one = sweep.Sweep(chain.blocks, chain.loss_fn, plan=SHAPES[shape](free, place))
        one.backward(chain.x, chain.y)  # the first step watches the blocks, the second knows them
        return one.backward(chain.x, chain.y)

    def plain_twice(chain: P.Chain) -> Any:
        P._plain_backward(chain)
        return P._plain_backward(chain)

    assert P.differences(P.outcome(problem, backward), P.outcome(problem, plain_twice)) == []
