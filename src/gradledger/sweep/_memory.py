"""The allocator's peak: how far a piece of work raised the bytes in use, and at which point.

What counts is what torch's allocator hands out, so the scratch memory inside a kernel (im2col, reordered weights, sort
keys) is in it, and a saved tensor counts once however many names it has.

CUDA keeps a peak itself.  The CPU allocator keeps none, but it reports each allocation and each release to the
profiler; here a profiler session that records nothing else listens to them, and the level is summed from the events.
The running total that the profiler prints is not used: it drifts by every tensor that is made inside a session and
released outside.  A Python number in an operation is a small tensor too: ``x + 1`` takes 12 bytes for a moment.

What it costs (torch 2.13, one CPU thread): 0.3 ms to open a session, 0.3 µs an allocation while it runs, 5 µs an
allocation or release when it is read, 7 µs a mark.  On CUDA a synchronise at both ends and three reads of the
statistics a mark.  Seconds are better measured in a run of their own.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar, final

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler, _profiler_enabled
from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState, RecordScope, _ExperimentalConfig
from torch.autograd.profiler import record_function

from gradledger.core.errors import GradledgerError

T = TypeVar("T")

_MARK = "gradledger.mark:"
_ABOVE_EVERYTHING = 6  # torch 2.13 prints "USDT: profiler_start" on stderr for each session at every lower level


class MemoryWatchError(GradledgerError):
    """The allocator of this device cannot be watched, or a watch was used out of order."""

    slug = "memory-watch"


@dataclass(frozen=True, slots=True)
class Peak(Generic[T]):
    """What a function returned, and how far it raised the allocated bytes above the level at its start."""

    bytes: int
    result: T


@dataclass(frozen=True, slots=True)
class Span:
    """What happened between one mark and the next.  Levels are bytes above the level at the start of the watch.

    Args:
        name: the mark that opened it; the first span is called ``"start"``.
        before: level at its mark.
        peak: highest level in it, never below ``before`` and ``after``.
        after: level where it ended.
    """

    name: str
    before: int
    peak: int
    after: int

    @property
    def rise(self) -> int:
        """Bytes by which the highest level lies above the level before it."""
        return self.peak - self.before


@final
class MemoryWatch:
    """Watches the allocator of one device; ``mark`` divides the watched time into spans.

    On the CPU it sees the thread that opened it, the autograd threads and kernels that work for it, and no other
    Python thread.  A tensor that was alive at the start and is released inside lowers the level on CUDA; on the CPU
    its release cannot be seen, so there the answer is an upper bound.  Let such a tensor be made inside the watch,
    before a mark.
    On CUDA the peak statistics of the device are reset at the start and at each mark.

    Args:
        device: whose allocator; ``"cpu"`` or a CUDA device.

    Raises:
        MemoryWatchError: another device, a profiler that is already running, or a watch that is entered twice.

    Example:
        >>> with MemoryWatch("cpu") as watch:
        ...     kept = torch.ones(256)
        ...     watch.mark("second")
        ...     kept = kept + kept
        >>> [(span.name, span.before, span.peak, span.after) for span in watch.spans]
        [('start', 0, 1024, 1024), ('second', 1024, 2048, 1024)]
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise MemoryWatchError(
                got=f"device {self.device}",
                wanted="cpu or cuda",
                where="MemoryWatch(device)",
                next_step="plan on a CPU or CUDA copy of the model, or give the costs by hand",
            )
        self._meter: _CpuMeter | _CudaMeter | None = None
        self._spans: tuple[Span, ...] | None = None

    def __enter__(self) -> MemoryWatch:
        if self._meter is not None or self._spans is not None:
            raise MemoryWatchError(
                got="a watch that was used before",
                wanted="one watch for one piece of work",
                where="MemoryWatch.__enter__",
                next_step="make a new MemoryWatch for each with-block",
            )
        meter: _CpuMeter | _CudaMeter = _CudaMeter(self.device) if self.device.type == "cuda" else _CpuMeter()
        meter.start()
        self._meter = meter
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        meter, self._meter = self._meter, None
        assert meter is not None, "left without being entered"
        self._spans = meter.stop()

    def mark(self, name: str) -> None:
        """End the current span and open the one called ``name``; it allocates nothing on the device."""
        if self._meter is None:
            raise MemoryWatchError(
                got=f"mark({name!r}) outside of the with-block",
                wanted="a mark while the watch is on",
                where="MemoryWatch.mark",
                next_step="move the mark into `with MemoryWatch(...) as watch:`",
            )
        self._meter.mark(name)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans in order, ``"start"`` first; there once the with-block is left, also by an exception."""
        if self._spans is None:
            raise MemoryWatchError(
                got="spans of a watch that is not over",
                wanted="a watch whose with-block was left",
                where="MemoryWatch.spans",
                next_step="read spans after the with-block",
            )
        return self._spans

    @property
    def peak(self) -> int:
        """Highest level of the whole watch, bytes above the level at its start."""
        return max(span.peak for span in self.spans)

    @property
    def level(self) -> int:
        """Level at the end of the watch, bytes above the level at its start."""
        return self.spans[-1].after


def peak_of(function: Callable[[], T], device: torch.device | str = "cpu") -> Peak[T]:
    """Call ``function`` once and measure the allocator's peak; what it returns is alive when the measure ends.

    Garbage is collected before, so that what others left behind is not released in the middle.

    Args:
        function: called once, without arguments.
        device: whose allocator; ``"cpu"`` or a CUDA device.

    Returns:
        the peak in bytes above the level at the start, and the result of the call.

    Raises:
        MemoryWatchError: see ``MemoryWatch``.

    Example:
        >>> peak_of(lambda: torch.ones(256).exp()).bytes
        2048
    """
    gc.collect()
    with MemoryWatch(device) as watch:
        result = function()
    return Peak(watch.peak, result)


class _CudaMeter:
    """Levels from the allocator's own statistics, which follow the host: no synchronise at a mark."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._name = "start"
        self._spans: list[Span] = []
        self._base = self._before = 0

    def start(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._base = torch.cuda.memory_allocated(self._device)

    def mark(self, name: str) -> None:
        self._close()
        self._name = name
        torch.cuda.reset_peak_memory_stats(self._device)

    def stop(self) -> tuple[Span, ...]:
        torch.cuda.synchronize(self._device)
        self._close()
        return tuple(self._spans)

    def _close(self) -> None:
        after = torch.cuda.memory_allocated(self._device) - self._base
        peak = torch.cuda.max_memory_allocated(self._device) - self._base
        self._spans.append(Span(self._name, self._before, peak, after))
        self._before = after


class _CpuMeter:
    """Levels summed from the profiler's memory events; marks stand among them as empty recorded functions."""

    def __init__(self) -> None:
        self._names = ["start"]
        self._quiet = _Quiet()

    def start(self) -> None:
        if _profiler_enabled():
            raise MemoryWatchError(
                got="a profiler that is already running",
                wanted="none: memory on the CPU is measured by a profiler session of its own",
                where="MemoryWatch on cpu",
                next_step="plan and measure outside of torch.profiler.profile(...)",
            )
        config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
        with self._quiet:
            _prepare_profiler(config, {ProfilerActivity.CPU})
        with self._quiet:  # once more: the first preparation of a process sets the level
            # USER_SCOPE alone: operators are not recorded, only memory and marks.
            _enable_profiler(config, {ProfilerActivity.CPU}, {RecordScope.USER_SCOPE})  # type: ignore[call-arg]

    def mark(self, name: str) -> None:
        with record_function(f"{_MARK}{len(self._names)}"):
            self._names.append(name)

    def stop(self) -> tuple[Span, ...]:
        with self._quiet:
            tree = _disable_profiler().experimental_event_tree()
        return _spans(self._names, tree)


def _spans(names: list[str], tree: list[Any]) -> tuple[Span, ...]:
    """Sum the events; a release counts where its allocation was seen, since the profiler knows no other one's size."""
    alive: dict[int, int] = {}
    closed: list[Span] = []
    level = before = peak = 0
    for event in sorted(_flat(tree), key=lambda event: event.start_time_ns):
        if event.name == "[memory]":
            fields = event.extra_fields
            if fields.device.type != "cpu":
                continue
            if fields.alloc_size > 0:
                # An address seen alive is given out again only after a release that went unseen (another thread's).
                level += fields.alloc_size - alive.get(fields.ptr, 0)
                alive[fields.ptr] = fields.alloc_size
                peak = max(peak, level)
            else:
                level -= alive.pop(fields.ptr, 0)
        elif event.name.startswith(_MARK):
            closed.append(Span(names[len(closed)], before, peak, level))
            before = peak = level
    closed.append(Span(names[len(closed)], before, peak, level))
    return tuple(closed)


def _flat(tree: list[Any]) -> Iterator[Any]:
    """Every event of the tree, parents before their children."""
    waiting = list(reversed(tree))
    while waiting:
        event = waiting.pop()
        yield event
        waiting.extend(reversed(event.children))


class _Quiet:
    """Keeps the profiler's own log off stderr, by the level that KINETO_LOG_LEVEL sets, while it starts and stops."""

    def __init__(self) -> None:
        self._level = _log_level()
        self._was = 0

    def __enter__(self) -> None:
        if self._level is not None:
            self._was, self._level.value = self._level.value, _ABOVE_EVERYTHING

    def __exit__(self, *error: object) -> None:
        if self._level is not None:
            self._level.value = self._was


def _log_level() -> ctypes.c_int | None:
    """The variable itself where the library exports it; without it the log stays as torch prints it."""
    folder = Path(torch.__file__).parent / "lib"
    for library in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        if (folder / library).exists():
            try:
                return ctypes.c_int.in_dll(ctypes.CDLL(str(folder / library)), "_ZN9libkineto6Logger14severityLevel_E")
            except (OSError, ValueError):
                return None
    return None
