"""The queue that looks at a worker's generators: it hands on everything, and tells what was drawn."""

from __future__ import annotations

import json
import pickle
import queue
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from gradledger.ledger._draws import Asked, states


class Holds:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        self.inner = random.Random(2)


def test_states_change_with_what_is_drawn_and_with_nothing_else() -> None:
    before = states()
    assert states() == before
    random.random()
    assert {name for name, state in states().items() if before[name] != state} == {"random"}
    torch.rand(1)
    np.random.rand()
    assert {n for n, s in states().items() if before[n] != s} == {"random", "torch", "numpy.random"}


def test_it_hands_on_what_it_is_given_and_looks_twice(tmp_path: Path) -> None:
    inner: queue.Queue[int] = queue.Queue()
    for number in range(3):
        inner.put(number)
    asked = Asked(inner, (str(tmp_path), 4, 1))
    assert asked.get(timeout=1) == 0
    np.random.rand()
    assert asked.get() == 1
    random.random()
    assert asked.get() == 2
    with pytest.raises(queue.Empty):
        asked.get(timeout=0.01)
    assert asked.qsize() == 0, "all else is the queue's own"
    (path,) = tmp_path.glob("worker-*.json")
    told = json.loads(path.read_text())
    assert (told["loader"], told["pass"]) == (4, 1)
    assert [name for name, _, drawn in told["draws"] if drawn] == ["numpy.random"]


def test_it_can_be_sent_to_a_process_and_never_raises_for_our_reasons(tmp_path: Path) -> None:
    asked = pickle.loads(pickle.dumps(Asked([5], (str(tmp_path / "missing"), 1, 1))))
    asked._queue = queue.Queue()
    asked._queue.put(1)
    asked._queue.put(2)
    assert (asked.get(), asked.get()) == (1, 2)
    assert not hasattr(asked, "__len__")
