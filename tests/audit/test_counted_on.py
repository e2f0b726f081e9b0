"""Loops that begin at a number which a file holds, read off the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradledger.audit._counted_on import counts_on

ON = [
    "start = ck['epoch'] + 1\nfor e in range(start, 9): pass",
    "best, self.start = ck['acc'], ck.get('epoch', 0)\nfor e in tqdm(range(self.start, total)): pass",
    "step = int(ck['epoch'])\nwhile step < total: pass",
    "e0 = ck['state']['epoch']\nfor e in itertools.count(e0): pass",
]
OFF = [
    "print(ck['epoch'])\nfor e in range(9): pass",
    "last = ck['epoch']\nfor e in range(last): pass",
    "start = ck['step']\nfor e in range(start, 9): pass",
    "start = ck['epoch']\nwhile True: pass",
]


@pytest.mark.parametrize("text", ON)
def test_a_loop_that_counts_on(tmp_path: Path, text: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    assert counts_on(str(file), ["acc", "epoch"]) == ("epoch", 2)


@pytest.mark.parametrize("text", OFF)
def test_loops_that_do_not(tmp_path: Path, text: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    assert counts_on(str(file), ["epoch"]) is None
