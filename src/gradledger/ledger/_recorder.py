"""The recorder: gives every fact its number, iteration and site, and hands it to the sink.

One recorder watches one process.  It also holds what probes share: identities, the iteration counter, whether this
iteration is watched in detail, and the count of our own failures.  An error inside a probe never reaches the program:
every probe body runs under `guard()`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch._C import _len_torch_dispatch_stack
from torch.utils._python_dispatch import _disable_current_modes

from gradledger.core.events import Event, ModuleFreed, ModuleMade
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._attention import Attention
from gradledger.ledger._doze import Held, Woken
from gradledger.ledger._identity import FollowedTable, WeakTable
from gradledger.ledger._steady import Steady

E = TypeVar("E", bound=Event)
P = TypeVar("P")


class Sink(Protocol):
    """Where events go."""

    def put(self, event: Event) -> None: ...

    def close(self) -> None: ...


def unseen() -> contextlib.AbstractContextManager[Any]:
    """For work on values: a program that watches every operation by a dispatch mode of its own must not see ours."""
    return _disable_current_modes() if _len_torch_dispatch_stack() else contextlib.nullcontext()


class _Guard:
    """See `Recorder.guard`.  A class of its own because it is entered several times in each iteration."""

    __slots__ = ("_modes", "_quiet", "_recorder", "_where")

    def __init__(self, recorder: Recorder, where: str) -> None:
        self._recorder, self._where = recorder, where

    def __enter__(self) -> None:
        self._recorder.bodies.acquire()
        self._quiet = torch._C.DisableTorchFunction()
        self._quiet.__enter__()
        self._modes = None
        if _len_torch_dispatch_stack():  # the program looks at every operation: it must not see ours
            self._modes = _disable_current_modes()
            self._modes.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> bool:
        if self._modes is not None:
            self._modes.__exit__(None, None, None)
        self._quiet.__exit__(kind, error, tb)
        self._recorder.bodies.release()
        if isinstance(error, Exception):  # the program must not see our mistakes; the count is shown at the end
            self._recorder.fail(self._where, error)
            return True
        return False


class Recorder:
    """Shared state of all probes of one watched run."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.iteration = 0
        self.steps = 0
        self.backwards = 0
        self.calls = 0
        self.bodies = threading.RLock()  # held while a probe looks at the program's tensors
        self._on = True
        self._retired = False
        self._paused = 0
        self._home = threading.get_ident()
        self.failures: Counter[str] = Counter()
        self.not_watched: dict[str, str] = {}
        self.tensors: FollowedTable[torch.Tensor] = FollowedTable()
        self.modules: FollowedTable[torch.nn.Module] = FollowedTable(self._module_died)
        self.optimizers: FollowedTable[torch.optim.Optimizer] = FollowedTable()
        self.objects: WeakTable[Any] = WeakTable()
        self.on_detail_change: list[Callable[[bool], None]] = []
        self.on_iteration: list[Callable[[int], None]] = []
        self.detail_allowed = True
        self.detail = True
        self.attention = Attention()
        self._seq = 0
        self._lock = threading.RLock()
        self._dead_modules: list[int] = []
        self._deferred: dict[str, tuple[Callable[[], None], frozenset[type[Event]]]] = {}
        self._parts: dict[type, Any] = {}
        self.steady = Steady(self._tell)
        self.doze = self.steady.doze
        self.on_wake: list[Callable[[], Woken]] = []
        self._closed = False

    # ------------------------------------------------------------------ threads

    @property
    def enabled(self) -> bool:
        """Whether facts are recorded now, in this thread."""
        return self._on and not self._retired and not self._paused and threading.get_ident() == self._home

    @enabled.setter
    def enabled(self, on: bool) -> None:
        self._on = on

    @property
    def abroad(self) -> bool:
        """Whether facts are recorded now, but not in this thread."""
        return self._on and not self._retired and threading.get_ident() != self._home

    def train_abroad(self) -> None:
        """The program runs a reverse pass or a step in a thread that is not the watched one.

        One thread is watched: looking at a `.grad` while another thread's reverse pass writes it, outside the
        interpreter's lock, could tear it.  If nothing was trained before, the watch moves to this thread, without a
        look at single operations (which belong to a thread); else it ends here.
        """
        with self.bodies:
            if not self.abroad:
                return
            if self.backwards or self.steps:
                # hooks stay where they are, without effect: the other thread may be going through them right now
                self._retired, self.detail_allowed, self.detail = True, False, False
                self.not_watched["threads"] = "the program trains in several threads: nothing was watched after that"
            else:
                self._home = threading.get_ident()
                self.forbid_detail("threads", "the program trains in a thread: no look at single operations")

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Watch nothing inside, in the watched thread: no hook, no mode, no fact."""
        if threading.get_ident() != self._home:
            yield
            return
        self._paused += 1
        self._settle()
        try:
            yield
        finally:
            self._paused -= 1
            self._settle()

    def come_home(self) -> None:
        """The program has ended: what is said about the end is said in this thread."""
        self._home, self._retired = threading.get_ident(), False

    # ------------------------------------------------------------------ events

    def emit(self, cls: type[E], site: Site | None = None, /, **values: Any) -> E | None:
        """Record one fact.  `site=None`: found from the running stack.  Returns the event (None when recording is
        off)."""
        if not self.enabled:
            return None
        if site is None:
            site = _site.here(1)
        with self._lock:
            if self.doze.asleep:
                self.wake()
            self.steady.loud = True
            if self.steady.pending:
                self.steady.flush(self.iteration)
            if self._dead_modules and cls is not ModuleFreed:
                dead, self._dead_modules = self._dead_modules, []
                for number in dead:
                    self.emit(ModuleFreed, NOWHERE, module=number)
            if self._deferred:
                self._run_deferred(cls)
            self._seq += 1
            event = cls(seq=self._seq, iteration=self.iteration, site=site, **values)
            self.sink.put(event)
        return event

    def note(
        self,
        cls: type[E],
        site: Site,
        signature: tuple[Any, ...],
        values: dict[str, Any],
        /,
        key: tuple[Any, ...] | None = None,
    ) -> None:
        """Record a fact of the everyday cycle (clear, backward, step, scheduler step, ...).

        In an iteration that is not watched in detail such facts are held back until the iteration ends, or until
        another fact is emitted.  An iteration that holds nothing else, and whose facts have the same sites and
        `signature`s (what matters of the values, without ids that grow) as many iterations told before, is only
        counted.  One of them is told again whenever those left out since are a twentieth of all, with their number as
        its weight; and so is the one right before an iteration that is told.  That keeps the watch of a long, steady
        run cheap and its ledger small, and loses no change: an iteration that differs in anything is told in full.
        `key` tells the call apart while dozing (see `_doze`); without it, line and signature do.
        """
        if not self.enabled:
            return
        full = (cls.KIND, site.file, site.line, signature)
        if self.doze.asleep:
            if key is None and self.doze.expects(full):
                return
            self.wake()
        if self.detail or self.steady.loud or self._deferred or self._dead_modules:
            self.emit(cls, site, **values)
            return
        with self._lock:
            self.steady.hold((cls, site, full, values, key or full), self.iteration)

    def _tell(self, iteration: int, facts: list[Held], weight: int) -> None:
        for cls, site, _, values, _ in facts:
            self._seq += 1
            self.sink.put(cls(seq=self._seq, iteration=iteration, site=site, weight=weight, **values))

    def _close_iteration(self) -> bool:
        """The iteration ends; whether the next ones may be dozed through."""
        with self._lock:
            return self.steady.close(self.iteration)

    def passes(self, key: tuple[Any, ...], backward: int | None = None) -> bool:
        """While dozing: whether this call is the one that comes next, so that nothing more need be looked at."""
        if self.doze.asleep and not self.abroad:
            if self.doze.expects(key, backward):
                return True
            self.wake()
        return False

    def dozed(self) -> bool:
        """While dozing, an optimizer has stepped: count the iteration; False (and awake) when it is not a known one."""
        due = self.steady.dozed()
        if due is None:
            self.wake()
            return False
        self.steps += 1
        self.iteration += 1
        if due or self.wants_detail():
            self.wake()  # the next one is told
            self._begin_iteration()
        return True

    def wake(self) -> None:
        """Stop dozing, and take up the open iteration where it is."""
        for callback in self.on_wake:
            with self.guard("wake"):
                self.steady.woken(callback(), self.iteration)

    def defer(self, key: str, flush: Callable[[], None], past: frozenset[type[Event]] = frozenset()) -> None:
        """Call `flush` once, right before the next event whose class is not in `past`.

        For facts that a program makes tensor by tensor in a loop and that are one fact: collected, told once, in order.
        """
        self._deferred[key] = (flush, past)

    def _run_deferred(self, cls: type[Event]) -> None:
        ready = [key for key, (_, past) in self._deferred.items() if cls not in past]
        for flush, _ in [self._deferred.pop(key) for key in ready]:
            try:
                flush()
            except Exception as error:
                self.fail("deferred", error)

    def part(self, cls: type[P]) -> P:
        """The one instance of `cls` in this run: state that a probe shares with others, made at its first mention."""
        found = self._parts.get(cls)
        if found is None:
            found = self._parts[cls] = cls()
        part: P = found
        return part

    def guard(self, where: str) -> _Guard:
        """Run a probe body: torch functions inside are not watched, errors are counted, never raised."""
        return _Guard(self, where)

    def fail(self, where: str, error: BaseException) -> None:
        """Count one failure of our own."""
        self.failures[f"{where}: {type(error).__name__}: {str(error)[:120]}"] += 1

    # ------------------------------------------------------------------ identities

    def module_id(self, module: torch.nn.Module, site: Site | None = None) -> int:
        """Number of a module; its first mention records `ModuleMade` at `site`."""
        known = self.modules.find(module)
        if known is not None:
            return known
        number = self.modules.number(module)
        cls = type(module)
        builtin = cls.__module__.startswith("torch.")
        name = cls.__qualname__ if builtin else f"{cls.__module__}.{cls.__qualname__}"
        self.emit(ModuleMade, site if site is not None else _site.here(1), module=number, cls=name, builtin=builtin)
        return number

    def tensor_id(self, tensor: torch.Tensor) -> int:
        """Number of a followed tensor."""
        return self.tensors.number(tensor)

    def _module_died(self, number: int) -> None:
        # called by the garbage collector at any moment: only note it, the next event carries it out
        self._dead_modules.append(number)

    # ------------------------------------------------------------------ iterations and detail

    def step_done(self) -> None:
        """An optimizer step is complete: the next iteration begins."""
        may_doze = self._close_iteration()
        self.steps += 1
        self.iteration += 1
        self._begin_iteration()
        if may_doze and not self.detail:
            self.doze.begin()

    def _begin_iteration(self) -> None:
        for callback in self.on_iteration:
            callback(self.iteration)
        self._settle()

    def iteration_without_optimizer(self) -> None:
        """In a program that has no optimizer, each backward closes an iteration."""
        self._close_iteration()
        self.iteration += 1
        for callback in self.on_iteration:
            callback(self.iteration)
        self._settle()

    def suspicious(self) -> None:
        """Something unusual happened: watch the coming iterations in full."""
        self.attention.suspect(self.iteration)
        self._settle()

    def new_phase(self, modes: tuple[object, ...] = ()) -> None:
        """The program changed phase (train/eval switch, a new pass over a loader, a block without graph): watch the
        next calls in full.

        A line that changes again and again is watched less often (see `Attention.phase_calls`).  With other `modes`
        (of what is trained) than before the line counts as a new one.
        """
        self.watch_calls(self.phase_calls((*_site.here(1).key(), modes)))

    def phase_calls(self, key: tuple[object, ...]) -> int:
        """Count one more change of phase, told apart by `key`; how many calls after it are to be watched in full."""
        return self.attention.phase_calls(self.iteration, key)

    def watch_calls(self, count: int) -> None:
        """Watch the next calls in full, so many at least."""
        if count > self.attention.calls_left:
            self.attention.calls_left = count
            self._settle()

    def call_done(self) -> None:
        """A forward call made by the program itself is complete."""
        self.calls += 1
        if self.attention.call_done():
            self._settle()

    def wants_detail(self) -> bool:
        """Whether this moment is to be watched in full."""
        return self.detail_allowed and not self._paused and self.attention.wants(self.iteration)

    def forbid_detail(self, reason_code: str, reason: str) -> None:
        """Give up detail for good (for instance under torch.compile), and say why at the end."""
        self.detail_allowed = False
        self.not_watched[reason_code] = reason
        self._settle()

    def _settle(self) -> None:
        want = self.wants_detail()
        if want != self.detail:
            self.detail = want
            for callback in self.on_detail_change:
                callback(want)

    # ------------------------------------------------------------------ end

    def close(self) -> None:
        """Stop recording; later calls are ignored."""
        if not self._closed:
            self._closed = True
            self._close_iteration()
            self.enabled = False
            self.sink.close()


__all__ = ["Recorder", "Sink"]
