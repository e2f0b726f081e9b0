"""`gradledger checkpoint`: what it shows, and that it finds what is not what was written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from gradledger.cli._app import build
from gradledger.core.safetensors_header import read_header
from gradledger.train import RunState, checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two checkpoints of a small run."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state = RunState(model=model, optimizer=optimizer, about={"config": "c0ffee"})
    for step in (1, 2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state.counters["optimizer_step"] = step
        state.save(tmp_path / "run", step, facts={"best": 0.5 / step})
    return tmp_path / "run"


def said(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(build(), ["checkpoint", *map(str, words)])
    return done.exit_code, done.output


def test_inspect_shows_what_the_newest_holds(run: Path) -> None:
    code, text = said("inspect", run, "--json", run.parent / "told.json")
    assert code == 0
    assert text.startswith(f"2 checkpoints in {run}; the newest:\nstep-000000000002\n")
    assert "  model             2 tensors       32 B\n" in text
    assert "    weight  float32   [2, 3]\n" in text
    assert "  config:        c0ffee\n" in text
    assert "  after:         step-000000000001\n" in text
    assert "  counters:      optimizer_step 2\n" in text
    assert "  best:          0.25\n" in text
    told = json.loads((run.parent / "told.json").read_text())
    assert told["parts"]["model"]["weight"] == {"dtype": "float32", "shape": [2, 3], "bytes": 24}
    assert told["exit_code"] == 0


def test_verify_reads_every_byte(run: Path) -> None:
    assert said("verify", run) == (
        0,
        (
            "step-000000000002      whole\nstep-000000000001      whole\n"
            "2 of 2 are whole: every byte is what was written\n"
        ),
    )
    file = run / "step-000000000002" / "model.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    code, text = said("verify", run)
    assert code == 1
    assert "step-000000000002      DAMAGED: model.safetensors is not what was written (SHA-256 differs)\n" in text
    assert "1 of 2 are whole; a run goes on from step-000000000001\n" in text
    code, text = said("verify", run / "step-000000000002")
    assert code == 1
    assert "no run can go on from here" in text


def test_the_chain_is_followed(run: Path) -> None:
    checkpoint.save(run, 1, {"model": {"w": torch.ones(1)}}, {})
    code, text = said("verify", run)
    assert code == 1
    assert "step-000000000002      whole, but step-000000000001 beside it is not the one that it followed" in text


def test_what_is_left_of_a_killed_writer_is_told(run: Path) -> None:
    (run / "step-000000000003.tmp").mkdir()
    (run / "LATEST").write_text("step-000000000009\n")
    code, text = said("verify", run)
    assert code == 1
    assert "step-000000000003.tmp  was being written when its writer died" in text
    assert "LATEST names 'step-000000000009', which is not there" in text


def test_a_file_of_weights_is_told_as_such(run: Path, tmp_path: Path) -> None:
    code, text = said("inspect", run / "step-000000000002" / "model.safetensors")
    assert code == 0
    assert "weights alone, a run cannot go on from it" in text
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    code, text = said("verify", torn)
    assert code == 1
    assert "a header of 8 bytes in a file of 10" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc", "3 bytes, too few"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00[]", "no JSON object"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{,", "no JSON"),
        (b'\x10\x00\x00\x00\x00\x00\x00\x00{"a":{"x":1}}   ', "a is described by"),
        (
            b'\x38\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}  ' + b"0" * 8,
            "16 bytes at 0 for F32",
        ),
    ],
)
def test_headers_that_are_none(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_header(path)


def test_nothing_there_is_a_usage_error(tmp_path: Path) -> None:
    code, text = said("inspect", tmp_path)
    assert code == 2
    assert "a folder without `step-...` in it" in text
    assert "point to the --out folder" in text


def test_it_loads_no_torch(run: Path) -> None:
    code = (
        "import sys\nfrom gradledger.cli._app import build\n"
        "build()(['checkpoint', 'verify', sys.argv[1]], standalone_mode=False)\nassert 'torch' not in sys.modules"
    )
    done: Any = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
