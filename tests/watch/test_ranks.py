"""Two processes that train one model: each is watched, and there is one report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gradledger.core.events import RankParameters
from gradledger.ledger import _gather, _runs
from gradledger.ledger._store import read

SCRIPT = """
import os
import sys
import torch
from torch import distributed, multiprocessing, nn


def train(rank, world, store):
    torch.set_num_threads(1)
    if store:
        distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
    else:
        distributed.init_process_group("gloo")
        rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(rank)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        if rank == 0 or step == 0:
            optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
        optimizer.step()
    # one write: two processes share the stream, and a print writes its line in pieces
    os.write(1, f"rank {rank} loss {loss.item():.6f}\\n".encode())
    distributed.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        multiprocessing.start_processes(train, args=(2, sys.argv[2]), nprocs=2, start_method=sys.argv[1])
    else:
        train(0, 2, "")
"""


def run(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "GRADLEDGER_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )


def codes(report: dict[str, Any]) -> dict[str, int]:
    return {f["code"]: f["line"] for f in report["findings"]}


def test_torchrun_gives_one_report_of_both_ranks(tmp_path: Path) -> None:
    """Audited itself, the launcher gives way: what runs is `torchrun --no-python ... gradledger audit ... train.py`."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    options = ("--format", "json", "--output", "report.json", "--fail-on", "never")
    done = run(tmp_path, "-m", "gradledger", "audit", *options, *launcher, "train.py")
    assert "the ranks are audited, not their launcher" in done.stderr
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(line[:6] for line in done.stdout.splitlines() if line.startswith("rank")) == ["rank 0", "rank 1"]
    found = codes(json.loads((tmp_path / "report.json").read_text()))
    assert found["GL-X01"] == SCRIPT.splitlines().index("        optimizer.step()") + 1
    # rank 1 alone never clears: its finding is in the report of rank 0
    assert "GL-G03" in found
    (folder,) = (tmp_path / "home" / "runs").iterdir()
    ranks = {e.rank for e in read(folder / "ledger.sqlite") if isinstance(e, RankParameters)}
    assert ranks == {0, 1}
    assert (folder / "rank1.sqlite").is_file()


def test_ranks_that_the_program_forks_print_what_they_print(tmp_path: Path) -> None:
    bare = run(tmp_path, "train.py", "fork", str(tmp_path / "store0"))
    options = ("--format", "json", "--output", "report.json", "--fail-on", "never", "--run", "ledgers")
    done = run(tmp_path, "-m", "gradledger", "audit", *options, "train.py", "fork", str(tmp_path / "store1"))
    assert done.returncode == bare.returncode == 0, done.stderr[-3000:]
    assert len(bare.stdout.splitlines()) == 2
    assert sorted(done.stdout.splitlines()) == sorted(bare.stdout.splitlines())
    assert {"GL-X01", "GL-G03"} <= codes(json.loads((tmp_path / "report.json").read_text())).keys()


def test_ranks_that_the_program_spawns_are_watched(tmp_path: Path) -> None:
    options = ("--format", "json", "--output", "report.json", "--fail-on", "never", "--run", "ledgers")
    done = run(tmp_path, "-m", "gradledger", "audit", *options, "train.py", "spawn", str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert {"GL-X01", "GL-G03"} <= codes(report).keys()
    # rank 1 alone never clears
    assert [f["evidence"]["rank"] for f in report["findings"] if f["code"] == "GL-G03"] == [1]
    assert sorted(p.name for p in (tmp_path / "ledgers").glob("rank*")) == ["rank0.sqlite", "rank1.sqlite"]
    # what is told of the run is what ran in the ranks; a rule that judged one of them has judged the run
    ran = [(o["rank"], o["steps"], o["backwards"], o["complete"]) for o in report["run"]["others"]]
    assert ran == [(0, 4, 4, True), (1, 4, 4, True)]
    assert {"GL-G03", "GL-G01"} <= set(report["checked"])
    assert not set(report["checked"]) & {one["code"] for one in report["not_checked"]}
    again = run(tmp_path, "-m", "gradledger", "audit", "--replay", "ledgers", "--fail-on", "never")
    assert "watched beside it: 2 ranks, 4 steps and 4 passes each" in " ".join(again.stderr.split())


def test_ranks_without_a_fault_are_not_called_nothing_to_judge(tmp_path: Path) -> None:
    drawn = SCRIPT.replace("optimizer = torch", "torch.manual_seed(9 + rank)\n    optimizer = torch")
    right = drawn.replace("if rank == 0 or step == 0:", "if True:").replace("manual_seed(rank)", "manual_seed(0)")
    (tmp_path / "right.py").write_text(right.replace("parameter.grad)", "parameter.grad.div_(2))"))
    done = run(tmp_path, "-m", "gradledger", "audit", "right.py", "spawn", str(tmp_path / "store"))
    told = " ".join(done.stderr.split())
    assert done.returncode == 0, told
    assert "no fault found in right.py" in told
    assert "0 optimizer steps, 0 backward passes, exit code 0; watched beside it: 2 ranks" in told
    assert "no optimizer was built" not in told


def test_the_place_of_a_process_among_others(monkeypatch: Any) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert _gather.of_environment() is None
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert _gather.of_environment() is None, "two words in the environment are no launcher"
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert _gather.of_environment() == (1, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _gather.of_environment() == (1, 2), "a second machine has ledgers of its own"
    monkeypatch.setenv("RANK", "none")
    assert _gather.of_environment() is None


def test_ranks_share_a_folder_and_leave_each_other_alone(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADLEDGER_HOME", str(tmp_path))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("WORLD_SIZE", "2")
    paths = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        paths.append(_runs.new_run("train.py"))
        paths[-1].write_text("kept")
    assert [p.name for p in paths] == ["ledger.sqlite", "rank1.sqlite"]
    assert paths[0].parent == paths[1].parent
    assert paths[0].is_file()


def test_a_rank_that_never_came_is_not_waited_for_long(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(_gather, "WAIT", 0.2)
    (tmp_path / "rank1.sqlite").write_text("torn")
    assert list(_gather.collect(tmp_path, tmp_path / "ledger.sqlite", 3)) == []
