"""Sinks: batches, kill -9, fork, threads, and the bounds on memory and file of a very long run."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from gradledger.core.errors import LedgerError
from gradledger.core.events import (
    Backward,
    Clear,
    Copied,
    Dropped,
    Event,
    Fill,
    GradFlagSet,
    Group,
    Life,
    ModeSet,
    ModuleMade,
    OptimizerMade,
    RunEnded,
    Step,
    TensorRegistered,
)
from gradledger.core.site import Frame, Site
from gradledger.ledger import _thin
from gradledger.ledger._sink import MemorySink, SqliteSink
from gradledger.ledger._store import read, read_meta, read_tallies
from gradledger.ledger._thin import LONG, SHARE, Thinner

TENSORS = tuple(range(1, 9))
KEEP = 20


@pytest.fixture(autouse=True)
def fewer_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to drop early, so that the runs below stay short."""
    monkeypatch.setattr(_thin, "KEEP", KEEP)


def at_most(seen: int) -> int:
    """Segments kept of `seen` alike: the first KEEP, then one whenever a twentieth is waiting, each with the one
    before."""
    return KEEP + 2 * (1 + math.ceil(math.log(seen / KEEP) / math.log(SHARE / (SHARE - 1))))


def site(line: int) -> Site:
    return Site("train.py", line, "fit", 3, False, (Frame("train.py", 90, "main"), Frame("train.py", 99, "<module>")))


class Run:
    """Makes the events of a run: clear, backward, step."""

    def __init__(self) -> None:
        self.seq = 0
        self.iteration = 0

    def numbers(self, line: int) -> dict[str, object]:
        self.seq += 1
        return {"seq": self.seq, "iteration": self.iteration, "site": site(line)}

    def made(self) -> list[Event]:
        registered: list[Event] = [
            TensorRegistered(
                **self.numbers(1), tensor=t, module=1, name=f"w{t}", role="parameter", shape=(3,), requires_grad=True
            )  # type: ignore[arg-type]
            for t in TENSORS
        ]
        return [*registered, OptimizerMade(**self.numbers(2), optimizer=1, cls="SGD", groups=(Group(TENSORS, 0.1),))]  # type: ignore[arg-type]

    def step(self, filled: tuple[int, ...] = TENSORS, *extra: Event, line: int = 12) -> list[Event]:
        b = self.iteration + 1
        lives = (Life(filled, "filled", (Fill(b, 0),)),)
        events: list[Event] = [
            Clear(
                **self.numbers(10),
                how="zero_grad",
                optimizer=1,
                module=None,
                tensors=filled,
                dropped=(Dropped(b - 1, filled, 1, False),),
            ),  # type: ignore[arg-type]
            Backward(**self.numbers(11), backward=b, method="backward", leaves=filled, value=1.0 / b),  # type: ignore[arg-type]
            Step(**self.numbers(line), optimizer=1, index=self.iteration, lives=lives),  # type: ignore[arg-type]
        ]
        self.iteration += 1
        return events


def kept(events: list[Event], **options: int) -> tuple[list[Event], Thinner]:
    """What is kept of events, handed over in batches of 100."""
    thinner = Thinner(**options)
    stored: dict[int, Event] = {}

    def store() -> None:
        batch = thinner.take()
        for first, last in batch.deleted:
            for seq in [s for s in stored if first <= s <= last]:
                del stored[seq]
        stored.update((e.seq, e) for e in batch.events)

    for i, event in enumerate(events):
        thinner.put(event)
        if i % 100 == 99:
            store()
    thinner.finish()
    store()
    return [stored[seq] for seq in sorted(stored)], thinner


# ------------------------------------------------------------------------------------------------ thinning


def test_a_short_run_is_kept_whole() -> None:
    run = Run()
    events = run.made()
    for _ in range(KEEP):
        events += run.step()
    assert kept(events)[0] == events


def test_a_kept_iteration_is_kept_from_step_to_step() -> None:
    run = Run()
    events = run.made()
    for _ in range(3000):
        events += run.step()
    rest, _ = kept(events)
    assert len(rest) < len(TENSORS) + 1 + 3 * at_most(3000)
    assert sum(e.weight for e in rest if isinstance(e, Step)) == pytest.approx(3000, rel=1 / SHARE)
    by_iteration: dict[int, list[str]] = {}
    for event in rest[len(TENSORS) + 1 :]:
        by_iteration.setdefault(event.iteration, []).append(event.KIND)
    assert all(kinds == ["clear", "backward", "step"] for kinds in by_iteration.values()), by_iteration
    assert list(by_iteration)[:KEEP] == list(range(KEEP))
    steps = [e for e in rest if isinstance(e, Step)]
    known = {e.backward for e in rest if isinstance(e, Backward)}
    assert all(fill.backward in known for s in steps for life in s.lives for fill in life.fills)


def test_a_fault_that_starts_late_is_kept() -> None:
    run = Run()
    events = run.made()
    for i in range(2000):
        events += run.step(TENSORS if i < 1500 else TENSORS[:-1])
    rest, _ = kept(events)
    late = [e for e in rest if isinstance(e, Step) and 1500 <= e.index < 1500 + KEEP]
    assert len(late) == KEEP


def test_the_iteration_before_a_kept_one_is_kept_too() -> None:
    run = Run()
    events = run.made()
    for i in range(2000):
        events += run.step(line=12 if i != 1777 else 13)
    rest, _ = kept(events)
    assert {1776, 1777} <= {e.index for e in rest if isinstance(e, Step)}


def test_a_parameter_used_once_is_seen_to_be_used() -> None:
    run = Run()
    events = run.made()
    for i in range(3000):
        events += run.step((*TENSORS[:6], TENSORS[7] if i == 2345 else TENSORS[6]))
    rest, _ = kept(events)
    assert TENSORS[7] in {t for e in rest if isinstance(e, Backward) for t in e.leaves}


def test_mode_and_flags_are_right_before_each_kept_iteration() -> None:
    run = Run()
    events = run.made()
    truth: dict[int, tuple[bool, bool]] = {}
    training = frozen = False
    for i in range(6000):
        # modes change in iterations of their own, at rates that make some of them rare and others common
        if i % 3 == 0:
            training = i % 6 == 0
            events.append(ModeSet(**run.numbers(20), module=1, training=training, changed=1))  # type: ignore[arg-type]
        if i % 7 == 0:
            frozen = i % 14 == 0
            events.append(GradFlagSet(**run.numbers(21), tensors=TENSORS[:2], value=frozen, changed=2))  # type: ignore[arg-type]
        events += run.step(line=12 + i % 2)
        truth[i] = (training, frozen)
    rest, thinner = kept(events)
    assert thinner.kept < len(events) / 4
    seen = [False, False]
    for event in rest:
        if isinstance(event, ModeSet):
            seen[0] = event.training
        elif isinstance(event, GradFlagSet):
            seen[1] = event.value
        elif isinstance(event, Step):
            assert tuple(seen) == truth[event.index], event.index


def test_what_exists_is_kept_out_of_dropped_iterations() -> None:
    run = Run()
    events = run.made()
    for i in range(600):
        extra = ModuleMade(**run.numbers(30), module=100 + i, cls="torch.nn.ReLU", builtin=True)  # type: ignore[arg-type]
        events += [extra, *run.step()]
    rest, _ = kept(events)
    assert sum(isinstance(e, ModuleMade) for e in rest) == 600


def test_copies_each_iteration_are_thinned_in_the_end() -> None:
    run = Run()
    events = run.made()
    for _ in range(3000):
        copy = Copied(**run.numbers(40), how="lerp_", source=1, target=2, pairs=((1, 2),), tau=0.01)  # type: ignore[arg-type]
        events += [copy, *run.step()]
    rest, _ = kept(events)
    assert 256 <= sum(isinstance(e, Copied) for e in rest) < 400


def test_another_optimizer_at_the_same_line_is_something_new() -> None:
    run = Run()
    events = run.made()
    for i in range(2000):
        clear, backward, step = run.step()
        assert isinstance(step, Step)
        events += [
            clear,
            backward,
            Step(
                seq=step.seq,
                iteration=step.iteration,
                site=step.site,
                optimizer=1 + i // 1000,
                index=i % 1000,
                lives=step.lives,
            ),
        ]
    rest, _ = kept(events)
    assert sum(isinstance(e, Step) and e.optimizer == 2 for e in rest) >= KEEP


def test_a_program_without_steps_is_thinned_too() -> None:
    run = Run()
    events = run.made()
    for _ in range(20_000):
        clear, backward, _step = run.step()
        run.iteration = 0  # nothing ever steps
        events += [
            Backward(seq=backward.seq, site=backward.site, backward=backward.seq, method="backward", leaves=TENSORS),
            Clear(seq=clear.seq + 2, site=clear.site, how="none", optimizer=None, module=None, tensors=(), dropped=()),
        ]
    rest, _ = kept(events)
    assert len(rest) < LONG + 500


def test_all_iterations_different_reach_the_limit_and_say_so() -> None:
    run = Run()
    events = run.made()
    for i in range(5000):
        events += run.step(line=1000 + i)
    events.append(RunEnded(**run.numbers(1), steps=5000))  # type: ignore[arg-type]
    rest, thinner = kept(events, cap=3000)
    assert len(rest) < 3400
    assert isinstance(rest[-1], RunEnded)
    assert "limit of 3000 events was reached" in thinner.note()


def test_tallies_count_what_happened(tmp_path: Path) -> None:
    run = Run()
    sink = SqliteSink(tmp_path / "run.db")
    for event in run.made():
        sink.put(event)
    for _ in range(1000):
        for event in run.step():
            sink.put(event)
    sink.close()
    (tally,) = [t for t in read_tallies(tmp_path / "run.db") if t.seen > 900]
    assert tally.what == (("clear", "train.py", 10), ("backward", "train.py", 11), ("step", "train.py", 12))
    steps = [e for e in read(tmp_path / "run.db") if isinstance(e, Step)]
    assert tally.seen == 999  # the very first one also made the model
    assert (tally.first, tally.last) == (1, 999)
    assert tally.kept <= len(steps) < at_most(1000)
    assert sum(s.weight for s in steps) == pytest.approx(1000, rel=1 / SHARE)
    assert "of 3009 events kept" in read_meta(tmp_path / "run.db")["note"]


# ------------------------------------------------------------------------------------------------ the file


def test_memory_sink_keeps_everything() -> None:
    sink = MemorySink()
    events = Run().made()
    for event in events:
        sink.put(event)
    sink.close()
    assert sink.events == events
    assert sink.closed


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious.db").write_text("mine")
    with pytest.raises(LedgerError, match="a file that exists already"):
        SqliteSink(tmp_path / "precious.db")
    assert (tmp_path / "precious.db").read_text() == "mine"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="check that its folder exists"):
        SqliteSink(tmp_path / "no" / "run.db")


def test_512_events_are_on_disk_at_once(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "run.db")
    run = Run()
    for i in range(171):  # 513 events
        for event in run.step(line=i):
            sink.put(event)
    assert len(list(read(tmp_path / "run.db"))) >= 512
    sink.close()


def test_a_second_later_everything_is_on_disk(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "run.db")
    for event in Run().step():
        sink.put(event)
    assert list(read(tmp_path / "run.db")) == []
    time.sleep(1.5)
    assert len(list(read(tmp_path / "run.db"))) == 3
    sink.close()


def test_the_flushing_thread_is_not_among_the_programs_threads(tmp_path: Path) -> None:
    before = threading.enumerate()
    sink = SqliteSink(tmp_path / "run.db")
    for event in Run().step():
        sink.put(event)
    time.sleep(1.2)
    assert threading.enumerate() == before
    sink.close()


def test_put_from_many_threads(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "run.db")

    def work(start: int) -> None:
        for i in range(500):
            sink.put(ModuleMade(seq=start + i, site=site(i), module=start + i, cls="m.Net", builtin=False))

    threads = [threading.Thread(target=work, args=(k * 1000 + 1,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sink.close()
    assert len(list(read(tmp_path / "run.db"))) == 3000


def script(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    folder = os.path.dirname(__file__)
    code = f"import os, signal, sys, time\nsys.path.insert(0, {folder!r})\nfrom test_sink import *\n"
    return subprocess.run(
        [sys.executable, "-c", code + textwrap.dedent(body)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )


def test_a_killed_run_still_has_its_facts(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        """
        sink = SqliteSink("run.db"); run = Run()
        for event in run.made() + run.step() + run.step(): sink.put(event)
        time.sleep(1.6)
        for event in run.step(): sink.put(event)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    events = list(read(tmp_path / "run.db"))
    assert len(events) == len(TENSORS) + 1 + 6
    assert isinstance(events[-1], Step)


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    done = script(
        tmp_path,
        """
        sink = SqliteSink("run.db"); run = Run()
        for event in run.step(): sink.put(event)
        pid = os.fork()
        if pid == 0:
            for event in run.step(): sink.put(event)
            sink.close()
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        for event in run.step(): sink.put(event)
        sink.close()
        print(len(list(read("run.db"))))
        """,
    )
    assert done.stdout.split() == ["6"], done.stderr


def test_a_disk_that_refuses_is_told_once(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "run.db")
    assert sink._connection is not None
    sink._connection.execute("PRAGMA max_page_count=20")
    run = Run()
    told = []
    for i in range(3000):
        for event in run.step(line=i):
            try:
                sink.put(event)
            except LedgerError as error:
                told.append(str(error))
    sink.close()
    assert len(told) == 1
    assert "the facts up to here are kept" in told[0]


def test_a_third_of_a_million_events_stay_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = script(
        tmp_path,
        """
        import resource
        sink = SqliteSink("run.db"); run = Run()
        for event in run.made(): sink.put(event)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        spent = count = 0
        while count < 333_000:
            batch = [e for _ in range(100) for e in run.step()]
            start = time.process_time()
            for event in batch: sink.put(event)
            spent += time.process_time() - start
            count += len(batch)
        sink.close()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(count, 1e6 * spent / count, grown)
        """,
    )
    count, microseconds, grown = (float(x) for x in done.stdout.split())
    size = os.path.getsize(tmp_path / "run.db") / 2**20
    with capsys.disabled():
        print(f"\n{count:.0f} events: {microseconds:.2f} us each, {grown:.1f} MiB more memory, {size:.2f} MiB file")
    assert grown < 20
    assert size < 1
    assert sum(t.seen for t in read_tallies(tmp_path / "run.db")) >= count / 3 - 2


def test_who_listens_hears_what_a_reader_reads(tmp_path: Path) -> None:
    heard: list[Event] = []
    run = Run()
    sink = SqliteSink(tmp_path / "run.db", heard=heard.append)
    for event in run.made():
        sink.put(event)
    for _ in range(300):
        for event in run.step():
            sink.put(event)
    sink.close()
    assert [e.seq for e in heard] == [e.seq for e in read(tmp_path / "run.db")]
    assert len(heard) < 300


def test_who_listens_hears_on_when_the_file_fails(tmp_path: Path) -> None:
    heard: list[Event] = []
    run = Run()
    sink = SqliteSink(tmp_path / "run.db", heard=heard.append)
    for event in run.made():
        sink.put(event)
    sink.flush()
    sink._broken = sqlite3.OperationalError("disk full")
    with pytest.raises(LedgerError, match="disk full"):
        sink.put(run.step()[0])
    for _ in range(5):
        for event in run.step():
            sink.put(event)
    sink.close()
    assert sum(isinstance(e, Step) for e in heard) == 5
    assert sink.problem == "disk full"
