"""Two processes (gloo) that save and load together: to the bit, or refused on both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gradledger.cli.commands import checkpoint as verb
from gradledger.core.safetensors_header import read_header
from gradledger.train import ResumeError, RunState
from gradledger.train.ranks import RanksError

WORKER = Path(__file__).with_name("rank_worker.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ranks")
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", WORKER, made],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return made


def both(folder: Path, scenario: str) -> list[Any]:
    """What each rank saw."""
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    for rank in (0, 1):
        broken = [one["broke"] for one in said[rank].values() if isinstance(one, dict) and "broke" in one]
        assert not broken, f"rank {rank}: {broken[0]}"
    return [one[scenario] for one in said]


def test_each_rank_goes_on_to_the_bit(folder: Path) -> None:
    first, second = both(folder, "goes_on")
    for one in (first, second):
        assert (one["step"], len(one["losses"])) == (6, 8)
        assert one["after"] == one["losses"][6:]  # dropout, noise of four streams, the rank's own shard
        assert one["weights"][0] == one["weights"][1]
    assert first["losses"] != second["losses"]
    assert first["weights"][0] != second["weights"][0]  # the running statistics of normalisation
    assert first["fact"] == second["fact"] == first["losses"][5]


def test_what_is_equal_is_written_once(folder: Path) -> None:
    first, second = both(folder, "files")
    assert first == second
    assert {name for name in first if name.startswith("rank-")} == {
        "rank-00001-net.safetensors",
        "rank-00001-ema.safetensors",
        "rank-00001-random.safetensors",
    }
    made = folder / "run" / "step-000000000006"
    own = {entry.name for entry in read_header(made / "rank-00001-net.safetensors")}
    assert own == {"1.running_mean", "1.running_var"}
    assert {entry.name for entry in read_header(made / "rank-00001-random.safetensors")} == {"python", "numpy", "torch"}


def test_the_verbs_read_it(folder: Path) -> None:
    assert verb._verify(folder / "run").code == 0
    shown = "\n".join(verb._inspect(folder / "run", all_tensors=False).lines)
    assert "rank-00001-random" in shown
    assert "optimizer_step 6" in shown


def test_a_file_of_one_rank_that_is_gone_is_seen_by_all(folder: Path) -> None:
    for said in both(folder, "a_rank_without_its_file"):
        assert "rank-00001-random.safetensors'] are missing" in said


@pytest.mark.parametrize("scenario", ["a_rank_that_cannot_write", "the_first_cannot_write"])
def test_a_full_disk_on_one_rank_fails_on_all_and_costs_nothing(folder: Path, scenario: str) -> None:
    for said, *rest in both(folder, scenario):
        assert said.startswith("CheckpointError")
        assert "No space left on device" in said
        if scenario == "a_rank_that_cannot_write":
            assert "rank 1, OSError" in said
            assert rest == [1, "step-000000000003"]
        else:
            assert "got step=-2" in rest[0]
            assert rest[1:] == [["LATEST", "step-000000000001"], 1]


def test_what_does_not_fit_on_one_rank_moves_nothing_on_any(folder: Path) -> None:
    for said, unmoved in both(folder, "another_network_on_one_rank"):
        assert "rank 0: net: weight (1, 4) is missing" in said
        assert "rank 1: net: weight (2, 4) is missing" in said
        assert unmoved
    for said, value, unmoved in both(folder, "a_state_that_one_rank_refuses"):
        assert "rank 1: ValueError: not on this rank" in said
        assert value == 1  # put back on the rank that had taken it
        assert unmoved
    for said in both(folder, "other_things_on_one_rank"):
        assert "rank 1: models extra only here or only on rank 0" in said


def test_the_random_states_of_one_rank_are_not_those_of_another(folder: Path) -> None:
    first, second = both(folder, "for_itself")
    assert first[0] == ""  # rank 0 may go on with its own
    assert "the random states of rank 0 alone and this is rank 1: pass ranks=True" in second[0]
    for _, together, lost in (first, second):
        assert "saved by rank 0 for itself and this run has ranks=True" in together
        assert "the global random states" in lost


def test_a_call_on_one_rank_only_is_an_error_and_no_endless_wait(folder: Path) -> None:
    said = both(folder, "one_rank_alone")[0]
    assert said.startswith("RanksError: [ranks] train.RunState with ranks=True: got rank 0 alone after 3 s")
    assert "not under `if rank == 0`" in said


def test_a_rank_that_dies_while_saving_costs_nothing(folder: Path) -> None:
    said, left = json.loads((folder / "0.json").read_text())["a_rank_that_dies"]
    assert said.startswith("RanksError")
    assert "look for a rank that has died" in said
    assert left == {"step-000000000001": None}
    assert "a_rank_that_dies" not in json.loads((folder / "1.json").read_text())


def test_one_process_is_not_two(folder: Path, tmp_path: Path) -> None:
    state = RunState(net=nn.Linear(4, 1))
    with pytest.raises(ResumeError, match="saved by all ranks together"):
        state.load(folder / "run")
    with pytest.raises(ResumeError, match="it holds the states of 2 ranks and here are 1"):
        state.load(folder / "itself")
    with pytest.raises(RanksError, match="init_process_group before RunState"):
        RunState(net=nn.Linear(4, 1), ranks=True)


def test_parameters_in_pieces_are_refused(folder: Path) -> None:
    for said in both(folder, "in_pieces"):
        assert "net.weight and 1 more in pieces over the ranks (DTensor)" in said
        assert "torch.distributed.checkpoint" in said
