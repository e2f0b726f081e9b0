"""Checkpoints under kills, full disks, flipped bytes and foreign files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradledger.core.checkpoints import FORMAT, read_manifest
from gradledger.train import _hashed, checkpoint
from gradledger.train.checkpoint import CheckpointError, load, save


def parts(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "model": {"weight": torch.full((64, 32), value), "count": torch.tensor(3)},
        "replay": {"frames": torch.full((300,), int(value), dtype=torch.uint8)},
    }


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    given = parts(7.0)
    given["model"]["half"] = torch.arange(4, dtype=torch.bfloat16)
    path = save(tmp_path, 12, given, {"counters": {"env_step": 5}, "text": "ü"})
    back = load(tmp_path)
    assert (back.path, back.step, back.rejected) == (path, 12, ())
    assert back.facts == {"counters": {"env_step": 5}, "text": "ü"}
    assert back.parts.keys() == given.keys()
    for part, tensors in given.items():
        assert back.parts[part].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert back.parts[part][name].dtype == tensor.dtype
            assert torch.equal(back.parts[part][name], tensor)


def test_views_and_shared_storages_are_saved_as_what_they_show(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    given = {"m": {"whole": base, "again": base, "column": base[:, 1], "turned": base.t()}}
    save(tmp_path, 0, given, {})
    back = load(tmp_path).parts["m"]
    assert all(torch.equal(back[name], tensor) for name, tensor in given["m"].items())


FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
EVERY_DTYPE: list[torch.dtype] = [getattr(torch, name) for name in (*FLOATS, *INTEGERS)]


def test_the_hash_out_of_memory_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = torch.randint(0, 2, (48,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    tensors = {f'{k}"\n\x01ü/{dtype}': bits.clone().view(dtype) for k, dtype in enumerate(EVERY_DTYPE)}
    tensors |= {f"A{dtype}": torch.ones((), dtype=dtype) for dtype in EVERY_DTYPE}
    tensors |= {"none": torch.zeros(0, 4), "turned": torch.arange(6.0).reshape(2, 3).t(), "𝄞": torch.ones(1)}

    def read_back(path: Path) -> str:
        assert path.suffix != ".safetensors", "safetensors wrote another head than the one foretold"
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr("gradledger.train._hashed.file_digest", read_back)
    path = save(tmp_path, 1, {"model": tensors, "nothing": {}}, {})
    for name, told in read_manifest(path)["files"].items():
        assert told["sha256"] == hashlib.sha256((path / name).read_bytes()).hexdigest()
    back = load(tmp_path).parts["model"]
    assert all(torch.equal(back[name].view(torch.uint8), tensor.contiguous().view(torch.uint8))
               for name, tensor in tensors.items() if tensor.dim())  # fmt: skip


def test_a_head_that_was_not_foretold_means_the_file_is_read(tmp_path: Path) -> None:
    odd = torch.ones(3, dtype=torch.complex64).conj()
    path = save(tmp_path, 1, {"odd": {"x": odd.resolve_conj(), "e8": torch.ones(4).to(torch.float8_e8m0fnu)}}, {})
    file = path / "odd.safetensors"
    assert read_manifest(path)["files"][file.name]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_tensor_that_changes_while_it_is_saved_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = save(tmp_path, 1, parts(1.0), {})
    given = parts(2.0)
    write = checkpoint.fsync

    def another_thread(path: Path) -> None:
        given["model"]["weight"].add_(1)
        write(path)

    monkeypatch.setattr(checkpoint, "fsync", another_thread)
    with pytest.raises(CheckpointError, match="another thread wrote while they were being saved: weight"):
        save(tmp_path, 2, given, {})
    monkeypatch.undo()
    assert load(tmp_path).path == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", kept.name]


def test_the_newest_counts_and_old_ones_go(tmp_path: Path) -> None:
    for step in (1, 20, 3):
        save(tmp_path, step, parts(step), {}, keep=2)
    assert load(tmp_path).step == 20
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000000003", "step-000000000020"]


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 1, parts(1), {})
    save(tmp_path, 1, parts(2), {})
    assert load(tmp_path).parts["model"]["weight"][0, 0] == 2
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000000001"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def foreign(path: Path) -> None:
    other = path.parent.parent / "other"
    save(other, 1, parts(9), {})
    shutil.copy(other / "step-000000000001" / path.name, path)


DAMAGE = {
    "a flipped byte of weights": ("model.safetensors", flip, "SHA-256 differs"),
    "a truncated replay": ("replay.safetensors", truncate, r"replay\.safetensors has \d+ bytes, not \d+"),
    "weights of another checkpoint": ("model.safetensors", foreign, "SHA-256 differs"),
    "a missing file": ("facts.json", Path.unlink, r"files \['facts\.json'\] are missing"),
    "no manifest": ("manifest.json", Path.unlink, r"manifest\.json is missing"),
    "an empty manifest": ("manifest.json", lambda path: path.write_text(""), "unreadable"),
    "a manifest of another kind": ("manifest.json", lambda path: path.write_text("[]"), "not of format"),
    "a manifest without files": (
        "manifest.json",
        lambda path: path.write_text(json.dumps({"format": FORMAT, "step": 2})),
        "its own SHA-256 differs",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_the_last_good_one_taken(name: str, tmp_path: Path) -> None:
    file, damage, reason = DAMAGE[name]
    save(tmp_path, 1, parts(1), {})
    damage(save(tmp_path, 2, parts(2), {}) / file)
    back = load(tmp_path)
    assert back.step == 1
    assert back.parts["model"]["weight"][0, 0] == 1
    assert [one.path.name for one in back.rejected] == ["step-000000000002"]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(back.rejected[0].reason)
    shutil.rmtree(tmp_path / "step-000000000001")
    with pytest.raises(CheckpointError, match=reason):
        load(tmp_path)


def test_a_renamed_checkpoint_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1, parts(1), {}).rename(tmp_path / "step-000000000009")
    with pytest.raises(CheckpointError, match="the manifest is of step 1"):
        load(tmp_path)


def test_nothing_to_load_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint at all"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint at all"):
        load(tmp_path / "absent")


def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for facts in ({"loss": float("nan")}, {"tensor": torch.ones(1)}):
        with pytest.raises(CheckpointError, match="facts that JSON cannot hold"):
            save(tmp_path / "run", 1, parts(1), facts)
    with pytest.raises(CheckpointError, match=r"parts=\['\.\./x'\]"):
        save(tmp_path / "run", 1, {"../x": {}}, {})
    assert not (tmp_path / "run").exists()


WRITERS = [
    ("the file of weights", _hashed, "save_file"),
    ("facts and manifest", Path, "write_text"),
    ("fsync", os, "fsync"),
    ("rename", Path, "rename"),
    ("mkdir", Path, "mkdir"),
]


@pytest.mark.parametrize(("what", "owner", "name"), WRITERS, ids=[what for what, _, _ in WRITERS])
@pytest.mark.parametrize("replaces", [False, True], ids=["a new step", "the same step"])
def test_a_disk_that_fills_at_any_write_costs_nothing_that_was_there(
    what: str, owner: Any, name: str, replaces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(owner, name)
    for number in range(20):
        folder = tmp_path / str(number)
        save(folder, 1, parts(1), {})
        left = number

        def failing(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        step = 1 if replaces else 2
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            refused = None
            try:
                save(folder, step, parts(2), {})
            except CheckpointError as error:
                refused = str(error)
        if refused is None:
            assert number > 0, f"{what} was never called"
            return
        assert "No space left on device" in refused
        back = load(folder)
        assert (back.step, float(back.parts["model"]["weight"][0, 0])) in [(1, 1.0), (step, 2.0)]
        assert back.rejected == ()
        save(folder, 3, parts(3), {})  # and the run goes on
        assert load(folder).step == 3
        assert not [path for path in folder.iterdir() if path.suffix]
    pytest.fail("saving never succeeded")


def test_a_file_system_that_really_refuses_is_reported(tmp_path: Path) -> None:
    """A limit on the size of files makes the kernel refuse the write itself."""
    program = f"""
import resource, signal, torch
from pathlib import Path
from gradledger.train.checkpoint import CheckpointError, load, save
folder = Path({str(tmp_path)!r})
save(folder, 1, {{"model": {{"w": torch.ones(10)}}}}, {{}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    save(folder, 2, {{"model": {{"w": torch.ones(100_000)}}}}, {{}})
except CheckpointError as error:
    print(error)
print(load(folder).step, sorted(path.name for path in folder.iterdir()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert "the last checkpoint is step-000000000001" in done.stdout
    assert done.stdout.endswith("1 ['LATEST', 'step-000000000001']\n")


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut cannot be played here; the order of the calls that make it harmless can be read."""
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def watched_fsync(handle: int) -> None:
        calls.append(("fsync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        fsync(handle)

    def watched_rename(path: Path, target: Path) -> Path:
        calls.append(("rename", path.name))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "rename", watched_rename)
    save(tmp_path / "run", 1, parts(1), {})
    building = "step-000000000001.tmp"
    # in any order: threads wait for them
    assert sorted(calls[:6]) == [
        ("fsync", name)
        for name in ("LATEST.tmp", "facts.json", "manifest.json", "model.safetensors", "replay.safetensors", building)
    ]
    assert calls[6:] == [("rename", building), ("fsync", "run")]


def test_without_safetensors_the_extra_is_named() -> None:
    program = "import sys; sys.modules['safetensors'] = None; import gradledger.train"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Next: pip install 'gradledger[data]'" in done.stderr


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        made = save(tmp_path, 1, parts(1), {})
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in made.iterdir()} == {"0o640"}


def test_the_manifest_tells_shapes_hashes_and_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, 1, parts(1), {})
    save(tmp_path, 2, parts(2), {}, about={"config": "ab12"})
    assert (tmp_path / "LATEST").read_text() == "step-000000000002\n"
    told = read_manifest(tmp_path / "step-000000000002")
    assert told["about"] == load(tmp_path).about == {"config": "ab12"}
    first = (tmp_path / "step-000000000001" / "manifest.json").read_bytes()
    assert told["parent"] == {"name": "step-000000000001", "sha256": hashlib.sha256(first).hexdigest()}
    weight = parts(1)["model"]["weight"]
    assert told["files"]["model.safetensors"]["tensors"]["weight"] == ["int64", list(weight.shape)]


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """Forty writers in turn, each killed somewhere in its second or third save, then a load."""
    program = f"""
import os, random, signal, time, torch
from pathlib import Path
from gradledger.train.checkpoint import load, save
folder = Path({str(tmp_path)!r})
torch.set_num_threads(1)  # a fork after a parallel loop inherits a pool without its threads, and waits for good
last = 0

def write(pipe):
    step = last
    while True:
        step += 1
        # every third one replaces the step before it
        save(folder, step - (step % 3 == 0), {{"model": {{"w": torch.full((200_000,), float(step))}}}},
             {{"step": step}})
        os.write(pipe, b"%d\\n" % step)

random.seed(1)
for trial in range(40):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write(writer)
    os.close(writer)
    with os.fdopen(reader) as said:
        first = int(said.readline())
        time.sleep(random.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        promised = max([first, *(int(line) for line in said if line.endswith(chr(10)))])
    back = load(folder)
    assert back.facts["step"] >= promised > last, (trial, back.facts, promised, last)
    assert (back.parts["model"]["w"] == float(back.facts["step"])).all()
    assert back.rejected == (), back.rejected
    last = back.facts["step"]
print("forty")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "forty\n", done.stderr
