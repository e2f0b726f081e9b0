"""Audit a piece of running code: the one place that wires the ledger to the audit.

    >>> from gradledger.watch import watch
    >>> with watch() as w:
    ...     train()                      # doctest: +SKIP
    >>> for finding in w.findings:
    ...     print(finding.key, finding.site.line, finding.message)

The rules see the facts while the block runs, so nothing is kept for later but what they need; with `store` the facts
are also written to a file that can be judged again.  Iterations that repeat are passed on by sample (see the ledger's
`_thin`), to the rules and to the file alike, so that both judge the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gradledger.audit.engine import Judge, Listener
from gradledger.audit.report import Report
from gradledger.audit.rule import Finding
from gradledger.audit.world import World
from gradledger.core.errors import UsageError
from gradledger.core.events import RunEnded, RunStarted
from gradledger.core.site import NOWHERE, Frame

if TYPE_CHECKING:
    from gradledger.ledger._recorder import Recorder
    from gradledger.ledger._session import Session
    from gradledger.ledger._sink import PlainSink, SqliteSink, ThinSink


@dataclass(frozen=True, slots=True)
class End:
    """How the watched code ended."""

    exit_code: int = 0
    exception: str = ""
    message: str = ""
    frames: tuple[Frame, ...] = ()


class Watch:
    """What happened while a block ran, and what is wrong with it.

    `program`, `argv`: told in the report; `select`, `ignore`: rules by code, name or series letter; `store`: path of
    a new ledger file (None: nothing is written); `listeners`: called with each fact that the rules see, and the world
    that has just taken it; `full`: iterations to be watched in full besides the sampled ones, and then every fact is
    passed on, however alike its iteration is to others (nothing is stored); `oracle`: explain consumed gradients by
    gradients computed again on copies, in the first iterations and in two out of every so many (0: off); `place`:
    (rank, ranks) when a launcher has started several such processes: rank 0 takes in what the others find, and reports.
    """

    def __init__(
        self,
        *,
        program: str = "",
        argv: Sequence[str] = (),
        select: Sequence[str] = (),
        ignore: Sequence[str] = (),
        store: Path | None = None,
        listeners: Sequence[Listener] = (),
        full: range | None = None,
        oracle: int = 0,
        place: tuple[int, int] | None = None,
    ) -> None:
        if isinstance(oracle, bool) or not isinstance(oracle, int) or oracle < 0:
            raise UsageError(
                got=f"oracle={oracle!r}",
                wanted="a whole number: every how many iterations (0: off)",
                where="gradledger.watch.watch",
                next_step="oracle=10 looks at the first iterations and at two out of every ten",
            )
        self._oracle = oracle
        self._place = place
        self._program, self._argv = program, tuple(argv)
        self._judge = Judge(select=select, ignore=ignore, listeners=listeners)
        self.store = store
        self._full = full
        self._sink: SqliteSink | ThinSink | PlainSink | None = None
        self._session: Session | None = None
        self._store_problem = ""
        self._joined: Watch | None = None
        self._report: Report | None = None
        self._ended = False
        self._rank = place[0] if place is not None else 0

    def start(self) -> None:
        """Install the probes and begin.  Inside another watch this one joins it.

        Raises UsageError when it was started before.
        """
        global _active
        if self._session is not None or self._joined is not None or self._ended:
            raise UsageError(
                got="a second start",
                wanted="one `with` block a watch",
                where="gradledger.watch.watch",
                next_step="call watch() again for a new one",
            )
        if _active is not None:
            self._joined = _active
            return
        import torch

        from gradledger.ledger._session import Session

        self._sink = self._open_sink()
        session = self._session = Session.open(self._sink)
        if self._full is not None:
            session.recorder.attention.wanted = self._full
        session.recorder.emit(
            RunStarted,
            NOWHERE,
            program=self._program,
            argv=self._argv,
            torch=str(torch.__version__),
            python=sys.version.partition(" ")[0],
        )
        if self.store is not None:
            session.folder, session.program = str(self.store.parent), self._program
            if self._place is None:
                session.start_rank, session.start_alone = watch_rank, watch_alone
        session.oracle = self._oracle
        session.install()
        _active = self
        _forks.register()

    def stop(self, end: End | None = None) -> None:
        """Remove the probes and record how the block ended.  A second call does nothing."""
        global _active
        if self._ended:
            return
        self._ended = True
        session = self._session
        if session is None:
            return
        recorder = session.recorder
        recorder.come_home()
        session.uninstall()
        _active = None
        self._side_by_side(recorder)
        end = end or End()
        recorder.emit(
            RunEnded,
            NOWHERE,
            exit_code=end.exit_code,
            exception=end.exception,
            message=end.message[:500],
            frames=end.frames,
            steps=recorder.steps,
            backwards=recorder.backwards,
            calls=recorder.calls,
            failures=tuple(f"{text} ({count}x)" for text, count in recorder.failures.most_common(20)),
            not_watched=tuple(f"{code}: {reason}" for code, reason in recorder.not_watched.items()),
        )
        recorder.close()

    @property
    def reports(self) -> bool:
        """Whether this process is the one that reports."""
        return self._place is None or self._place[0] == 0

    def _side_by_side(self, recorder: Recorder) -> None:
        """Hand what was found over to the rank that reports, or take in what the others have left."""
        if self.store is None or self._sink is None:
            return
        from gradledger.watch import _beside

        if not self.reports:
            self._sink.settle()
            _beside.hand_over(recorder, self._judge.finish(), self._rank)
        else:
            ranks = self._place[1] if self._place is not None else None
            _beside.take_in(recorder, self.store, ranks)

    def report(self) -> Report:
        """The judgement; within the block, the one on what happened so far."""
        if self._joined is not None:
            return self._joined.report()
        note = self._sink.note() if self._sink is not None else ""
        if self._session is not None and self._session.recorder.steady.counted_only:
            counted = f"{self._session.recorder.steady.counted_only} iterations like earlier ones were only counted"
            note = f"{note}; {counted}" if note else counted
        if not self._ended:
            if self._sink is not None:
                self._sink.settle()
            return self._judge.finish(sampled=note)
        if self._report is None:
            self._report = self._judge.finish(sampled=note)
        return self._report

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of `report()`, ordered by consequence."""
        return self.report().findings

    @property
    def world(self) -> World:
        """What exists and how it hangs together, as of the last fact."""
        return self._joined.world if self._joined is not None else self._judge.world

    @property
    def stored(self) -> bool:
        """Whether the facts are being kept in a file."""
        return self.store is not None and self._sink is not None and not self.store_problem

    @property
    def store_problem(self) -> str:
        """Why they are not, when they should be; else ""."""
        return self._store_problem or (self._sink.problem if self._sink is not None else "")

    def forget(self) -> None:
        """Record nothing more: this process is a child that the program forked."""
        if self._session is not None:
            self._session.recorder.enabled = False

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None or isinstance(error, SystemExit):
            self.stop(End())
        else:
            self.stop(End(exit_code=1, exception=type(error).__qualname__, message=str(error)))

    def _open_sink(self) -> SqliteSink | ThinSink | PlainSink:
        from gradledger.ledger._sink import PlainSink, SqliteSink, ThinSink

        if self._full is not None:
            return PlainSink(self._judge.put)
        if self.store is not None:
            try:
                return SqliteSink(self.store, heard=self._judge.put)
            except Exception as error:
                self._store_problem = f"the run is not stored: {error}"
                print(f"gradledger: {self._store_problem}", file=sys.stderr)
        return ThinSink(self._judge.put)


def watch(
    *, select: Sequence[str] = (), ignore: Sequence[str] = (), store: Path | None = None, oracle: int = 0
) -> Watch:
    """Audit a block of code: ``with watch() as w: ...``, then `w.findings` or `w.report()`.

    `select`, `ignore`: rules by code, name or series letter; `store`: path of a ledger file to write; `oracle`:
    every how many iterations the oracle explains the consumed gradients (0: off).
    Raises UsageError when `select` or `ignore` names no rule, or `oracle` is no whole number.
    """
    program = sys.argv[0] if sys.argv else ""
    return Watch(program=program, argv=sys.argv[1:], select=select, ignore=ignore, store=store, oracle=oracle)


def render_text(report: Report) -> str:
    """A report as plain text of 80 columns."""
    from gradledger.audit.render.text import render

    return render(report)


def watch_rank(folder: str, program: str) -> None:
    """In a process that the watched program has started and that has joined a group of ranks: watch it to its end."""
    from torch import distributed

    from gradledger.ledger import _gather

    _let_go_of_the_inherited()
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if world < 2 or _active is not None:
        return
    path = _gather.ledger_of(Path(folder), rank)
    path.unlink(missing_ok=True)
    _to_its_end(program, path, (rank + 1, world + 1), rank)


def watch_alone(folder: str, program: str) -> None:
    """In a process that the watched program has started and that builds an optimizer: watch it to its end."""
    from gradledger.ledger import _frames, _gather

    if _active is not None:
        return  # a rank, or the program watches it itself
    _let_go_of_the_inherited()
    process = os.getpid()
    path = _gather.take_place(Path(folder), process)
    if path is not None:
        _frames.install()
        _to_its_end(program, path, (process, process + 1), 0)


def _let_go_of_the_inherited() -> None:
    """Remove the hooks of the process that forked, which are without effect here."""
    global _inherited
    if _inherited is not None and _inherited._session is not None:
        _inherited._session.uninstall()
        _inherited = None


def _to_its_end(program: str, path: Path, place: tuple[int, int], rank: int) -> None:
    """Watch this child into its ledger; `place` is of one that never reports: the process that started it does."""
    from multiprocessing import util

    one = Watch(program=program, store=path, place=place)
    one._rank = rank
    one.start()
    util.Finalize(None, one.stop, exitpriority=100)


_active: Watch | None = None
_inherited: Watch | None = None


class _Forks:
    """A forked child must not write into the parent's ledger."""

    def __init__(self) -> None:
        self._registered = False

    def register(self) -> None:
        if not self._registered and hasattr(os, "register_at_fork"):
            self._registered = True
            os.register_at_fork(after_in_child=self._in_child)

    @staticmethod
    def _in_child() -> None:
        global _active, _inherited
        if _active is not None:
            _active.forget()
            _inherited, _active = _active, None


_forks = _Forks()
