"""Kills, full disks and damaged checkpoints: does a DQN run that is resumed end with the uninterrupted run's bits?

    python benchmarks/dqn_kill.py                       smoke preset on Pong: 20 kills, a full disk, torn checkpoints
    python benchmarks/dqn_kill.py --env CartPole-v1 --kills 6       the same, in a minute
    python benchmarks/dqn_kill.py --options "--max-episode-steps 200" --json OUT.json

One run is left alone. Others get SIGKILL at seeded moments spread over the whole run, every third one inside the
writing of a checkpoint, and are resumed until they end (one that died before its first checkpoint starts anew). The
full disk is a file system of its own of some MiB (ext4 in a file, or tmpfs; without the right to mount, a limit on
file size stands in, and the output says so): once nearly full, so that checkpoints fail and the run goes on; once
full to the last byte. Torn checkpoints: every file of the newest one is cut short, emptied, deleted or has a byte
flipped. What is compared: final.safetensors and episodes.csv byte for byte, metrics.csv but for its seconds, and the
record's counters and evaluation.

Ends with 1 when anything differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import _alternate as bench

from gradledger.recipes import dqn_atari
from gradledger.train import CheckpointError, checkpoint

# ------------------------------------------------------------------------------------------------------------- A run


@dataclass
class Child:
    """A run under way. `where`: the last line it said; `code`: its exit code, minus the signal that ended it."""

    pid: int
    pipe: IO[str]
    where: str = ""
    code: int | None = None

    def until(self, reached: Callable[[str, int], bool]) -> bool:
        """Read announcements up to the one that is waited for; False when the run ended before."""
        for line in self.pipe:
            self.where = line.strip()
            word, step = self.where.split()
            if reached(word, int(step)):
                return True
        self._wait()
        return False

    def send(self, number: signal.Signals) -> None:
        """A signal, unless it is dead already."""
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> bool:
        """SIGKILL. True when it came before the run ended."""
        self.send(signal.SIGKILL)
        return self.finish() == -signal.SIGKILL

    def finish(self) -> int:
        """Let it go on to its end."""
        self.until(lambda word, step: False)
        self.pipe.close()
        assert self.code is not None
        return self.code

    def _wait(self) -> None:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@dataclass(frozen=True)
class Setting:
    """The options of every run, and the folder for what they print."""

    words: tuple[str, ...]
    logs: Path

    def start(self, out: Path, *, resume: bool = False, limit: int | None = None) -> Child:
        """Start a run into `out`, or resume the one in there; limit: bytes a file may have (None: no limit)."""
        words = ["--resume", "--out", str(out)] if resume else [*self.words, "--out", str(out)]
        read, write = os.pipe()
        sys.stdout.flush()
        pid = os.fork()  # from a process that has imported everything, run nothing and started no thread
        if pid == 0:
            os.close(read)
            code = 70
            try:
                with (self.logs / f"{out.name}.log").open("ab") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                if limit is not None:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                code = announced(write, words)
            except BaseException:
                traceback.print_exc()
                code = 1
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(write)
        return Child(pid, os.fdopen(read, "r", encoding="utf-8"))


def announced(pipe: int, words: list[str]) -> int:
    """The recipe, which says where it is: a line before each tick and around each checkpoint ("tick 1200",
    "save 1500", "saved 1500"). Nothing else is changed; the kill comes from outside."""
    tick, save = dqn_atari.Run.tick, checkpoint.save

    def say(word: str, step: int) -> None:
        os.write(pipe, f"{word} {step}\n".encode())

    def announced_tick(run: dqn_atari.Run) -> None:
        say("tick", run.counters.env_step)
        tick(run)

    def announced_save(folder: Path, step: int, *rest: Any, **named: Any) -> Path:
        say("save", step)
        try:
            return save(folder, step, *rest, **named)
        finally:
            say("saved", step)

    dqn_atari.Run.tick = announced_tick  # type: ignore[method-assign]
    checkpoint.save = announced_save
    return dqn_atari.main(words)


def facts(folder: Path) -> dict[str, Any]:
    """Everything a run leaves that does not depend on the clock."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]
    episodes = folder / "episodes.csv"  # not there while no episode has ended
    return {
        "final.safetensors": (folder / "final.safetensors").read_bytes(),
        "episodes.csv": episodes.read_bytes() if episodes.exists() else b"",
        "metrics.csv": rows,
        "counters": record["completed"],
        "evaluation": record["evaluation"],
    }


def differences(folder: Path, whole: dict[str, Any]) -> list[str]:
    """What is not as in the uninterrupted run."""
    if not (folder / "record.json").exists():
        return ["no record: the run did not end"]
    mine = facts(folder)
    return [name for name in whole if mine[name] != whole[name]]


def has_checkpoint(folder: Path) -> bool:
    """Whether there is anything to resume."""
    return any(path.suffix in ("", ".old") for path in (folder / "checkpoints").glob("step-*"))


# ------------------------------------------------------------------------------------------------------------- Kills


@dataclass
class Kills:
    """What was done and what came of it."""

    done: list[dict[str, Any]] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)


def kill_runs(setting: Setting, work: Path, whole: dict[str, Any], *, kills: int, chains: int, rng_seed: int) -> Kills:
    """`kills` kills dealt out over `chains` runs, each in order of its moments."""
    rng, told = random.Random(rng_seed), Kills()
    steps = whole["counters"]["env_step"]
    # one moment in each of `kills` equal parts of the run, so that they are spread over all of it
    moments = [(int(steps * (k + rng.random()) / kills), k % 3 == 2) for k in range(kills)]
    for chain in range(chains):
        out = work / f"killed-{chain}"
        again = False
        for moment, inside in sorted(moments[chain::chains]):
            child = setting.start(out, resume=again)
            word = "save" if inside else "tick"
            there = child.until(lambda said, step, word=word, moment=moment: said == word and step >= moment)
            delay = rng.random() * (0.25 if inside else 0.05)
            if there:
                time.sleep(delay)
            died = there and child.kill()
            left = sorted(p.name for p in (out / "checkpoints").glob("step-*") if p.suffix)
            told.done.append(
                {
                    "run": chain,
                    "wanted_step": moment,
                    "inside_a_checkpoint": inside,
                    "delay_ms": round(1000 * delay, 1),
                    "killed": died,
                    "last_said": child.where,
                    "half_written": left,
                    "had_a_checkpoint": has_checkpoint(out),
                }
            )
            bench.say(f"  run {chain}, kill at {child.where:12} {'' if died else '(had ended) '}{' '.join(left)}")
            if died and not has_checkpoint(out):
                shutil.rmtree(out)
                again = False
            else:
                again = True
            if not died:
                break
        code = 0 if (out / "record.json").exists() else setting.start(out, resume=again).finish()
        wrong = differences(out, whole)
        told.ends.append({"run": chain, "exit_code": code, "differs": wrong})
        bench.say(f"  run {chain} ended: {wrong or 'equal to the bit'}")
    return told


# --------------------------------------------------------------------------------------------------------- Full disks


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[str]:
    """A file system of `size` bytes at `folder`; yields its kind, "" where none can be mounted."""
    folder.mkdir(parents=True)
    image = folder.with_suffix(".img")
    ways = (
        ("ext4 in a file", ["mkfs.ext4", "-qF", "-m0", str(image)], ["mount", "-oloop", str(image), str(folder)]),
        ("tmpfs", [], ["mount", "-t", "tmpfs", "-o", f"size={size}", "small", str(folder)]),
    )  # fmt: skip
    kind = ""
    for name, make, mount in ways:
        with image.open("wb") as file:
            file.truncate(size)
        try:
            for command in (make, mount):
                if command:
                    subprocess.run(command, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            continue
        kind = name
        break
    try:
        yield kind
    finally:
        if kind:  # lazily: an interrupted benchmark may have left a run in there
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True, timeout=60)
        image.unlink(missing_ok=True)


def fill(folder: Path, leave: int) -> Path:
    """Take all of the disk but `leave` bytes."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        block = b"\1" * 65536
        while True:
            room = shutil.disk_usage(folder).free - leave
            try:
                if room <= 0 or not file.write(block[: min(room, len(block))]):
                    break
            except OSError:
                break
        os.fsync(file.fileno())
    return filler


def checkpoint_bytes(folder: Path) -> int:
    """Size of one checkpoint of a run."""
    newest = max((folder / "checkpoints").glob("step-*"))
    return sum(path.stat().st_size for path in newest.iterdir())


def full_disks(setting: Setting, work: Path, whole: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """A disk that is nearly full, and one that is full, from the second checkpoint to the third and to the end."""
    told = []
    for name, leave in (("nearly full", size // 2), ("full", 0)):
        with small_disk(work / f"disk-{name.replace(' ', '-')}", 6 * size + (8 << 20)) as kind:
            out = work / f"disk-{name.replace(' ', '-')}" / "run"
            if kind:
                child = setting.start(out)
                child.until(lambda word, step: word == "saved")
                child.send(signal.SIGSTOP)
                filler = fill(out.parent, leave)
                child.send(signal.SIGCONT)
                # nearly full: room again after one failed checkpoint; full: the run dies when it next writes a row
                if leave and child.until(lambda word, step: word == "saved"):
                    child.send(signal.SIGSTOP)
                    filler.unlink()
                    child.send(signal.SIGCONT)
                code = child.finish()
                filler.unlink(missing_ok=True)
            else:
                kind = f"limit of {size // 4} bytes a file"
                child = setting.start(out, limit=size // 4)
                code = child.finish()
            ended = code == 0 and (out / "record.json").exists()
            failed = json.loads((out / "record.json").read_text())["failed_checkpoints"] if ended else None
            resumed = not ended and has_checkpoint(out)
            if not ended:
                if not resumed:
                    shutil.rmtree(out)
                setting.start(out, resume=resumed).finish()
            wrong = differences(out, whole)
            told.append(
                {
                    "disk": name,
                    "on": kind,
                    "first_exit_code": code,
                    "failed_checkpoints": failed,
                    "resumed": resumed,
                    "differs": wrong,
                }
            )
            after = "the run went on" if ended else f"exit code {code}, {'resumed' if resumed else 'started anew'}"
            bench.say(f"  {name} ({kind}): {after}; {wrong or 'equal to the bit'}")
    return told


# -------------------------------------------------------------------------------------------------- Torn checkpoints


def damages(file: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Ways in which one file of a checkpoint is harmed."""
    size = file.stat().st_size
    for offset in sorted({0, 1, 7, size // 3, size // 2, size - 1} - {size}):
        yield f"cut to {offset} of {size} bytes", lambda path, offset=offset: os.truncate(path, offset)
    for at in sorted({0, size // 5, size // 2, size - 1}):
        yield f"bit flipped in byte {at}", lambda path, at=at: _flip(path, at)
    yield "bytes added", lambda path: path.open("ab").write(b"\0" * 16)
    yield "deleted", lambda path: path.unlink()


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def torn(setting: Setting, work: Path, whole: dict[str, Any], *, full_resumes: int, rng_seed: int) -> dict[str, Any]:
    """Every damage to every file of the newest checkpoint; loading has to take the one before. A few are resumed to
    the end; with both checkpoints harmed the run is refused."""
    out = work / "torn"
    child = setting.start(out)
    saves = iter(range(2))
    child.until(lambda word, step: word == "saved" and next(saves) == 1)
    child.kill()
    newest, before = sorted((out / "checkpoints").glob("step-*"), reverse=True)[:2]
    cases = [(file.name, name, harm) for file in sorted(newest.iterdir()) for name, harm in damages(file)]
    survived, wrong = 0, []
    for file, name, harm in cases:
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            copy = Path(scratch) / "checkpoints"
            shutil.copytree(out / "checkpoints", copy)
            harm(copy / newest.name / file)
            loaded = checkpoint.load(copy)
            good = loaded.path.name == before.name and [one.path.name for one in loaded.rejected] == [newest.name]
            survived += good
            if not good:
                wrong.append(f"{file} {name}")
    resumes = []
    rng = random.Random(rng_seed)
    for k, (file, name, harm) in enumerate(rng.sample(cases, full_resumes)):
        copy = work / f"torn-{k}"
        shutil.copytree(out, copy)
        harm(copy / "checkpoints" / newest.name / file)
        code = setting.start(copy, resume=True).finish()
        resumes.append({"file": file, "damage": name, "exit_code": code, "differs": differences(copy, whole)})
        bench.say(f"  {file} {name}: resumed; {resumes[-1]['differs'] or 'equal to the bit'}")
    for path in (newest, before):
        os.truncate(path / "manifest.json", 5)
    try:
        checkpoint.load(out / "checkpoints")
        refusal = "none"
    except CheckpointError as error:
        refusal = str(error)
    code = setting.start(out, resume=True).finish()
    return {
        "cases": len(cases),
        "taken_the_one_before": survived,
        "wrong": wrong,
        "resumed_to_the_end": resumes,
        "both_damaged": {"exit_code": code, "error": refusal},
    }


# --------------------------------------------------------------------------------------------------------------- Main


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="pong", help="game or gymnasium id (default: pong)")
    parser.add_argument("--options", default="", help="further options of the recipe, in one word")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--chains", type=int, default=2, help="runs that the kills are dealt out over")
    parser.add_argument("--checkpoint-every", type=int, default=300, help="steps; the preset's own 1,500 are two a run")
    parser.add_argument("--full-resumes", type=int, default=3, help="damaged checkpoints from which runs go to the end")
    parser.add_argument("--rng-seed", type=int, default=1)
    parser.add_argument("--parts", default="kills,disks,torn")
    parser.add_argument("--work", type=Path, help="folder for the runs (default: a temporary one)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bench.say(f"dqn_kill.py at {bench.commit('recipes', 'rl', 'train')}, {given.kills} kills, seed {given.rng_seed}")
    with tempfile.TemporaryDirectory() as scratch:
        work = (given.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        words = ("--preset", "smoke", "--env", given.env, "--checkpoint-every", str(given.checkpoint_every))
        setting = Setting((*words, *given.options.split()), work)
        began = time.perf_counter()
        code = setting.start(work / "whole").finish()
        if code:
            bench.say((work / "whole.log").read_text(encoding="utf-8")[-2000:])
            return 2
        whole = facts(work / "whole")
        bench.say(f"the run left alone: {whole['counters']}, {time.perf_counter() - began:.0f} s")
        found: dict[str, Any] = {"commit": bench.commit("recipes", "rl", "train"), "options": [*setting.words]}
        found |= {"counters": whole["counters"], "bytes_of_a_checkpoint": checkpoint_bytes(work / "whole")}
        good = True
        if "kills" in given.parts:
            kills = kill_runs(setting, work, whole, kills=given.kills, chains=given.chains, rng_seed=given.rng_seed)
            found["kills"], found["ends"] = kills.done, kills.ends
            count = sum(one["killed"] for one in kills.done)
            half = sum(bool(one["half_written"]) for one in kills.done)
            bench.say(f"{count} kills, {half} of them left a half-written checkpoint behind")
            good &= count == given.kills and not any(end["differs"] for end in kills.ends)
        if "disks" in given.parts:
            found["disks"] = full_disks(setting, work, whole, found["bytes_of_a_checkpoint"])
            good &= not any(one["differs"] for one in found["disks"])
        if "torn" in given.parts:
            found["torn"] = torn(setting, work, whole, full_resumes=given.full_resumes, rng_seed=given.rng_seed)
            one = found["torn"]
            bench.say(
                f"damaged checkpoints: {one['taken_the_one_before']} of {one['cases']} survived by the one before"
            )
            bench.say(
                f"both damaged: exit code {one['both_damaged']['exit_code']}, {one['both_damaged']['error'][:200]}"
            )
            good &= not one["wrong"] and not any(end["differs"] for end in one["resumed_to_the_end"])
            good &= one["both_damaged"]["exit_code"] == 2
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    bench.say("every run ended with the bits of the one left alone" if good else "SOMETHING DIFFERS, see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
