"""Storages on their way out and back: to the host's memory or to a file, and how many bytes a second that takes.

Bytes are written by the thread that computes (the memory is to be free when the next block runs) and read by one
thread beside it, into memory that the computing thread has taken, so that the allocator's books are where they belong.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn

from gradledger.sweep._action import Place
from gradledger.sweep._scratch import Scratch

# the thread beside ----------------------------------------------------------------------------------------------------

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _beside(work: Callable[[], Any]) -> Future[Any] | None:
    """Start `work` on the one thread that reads; None where no thread can be had any more (the interpreter ends)."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(1, thread_name_prefix="gradledger-offload")
        try:
            return _pool.submit(work)
        except RuntimeError:
            return None


def _in_child() -> None:
    """A forked child has no such thread: it starts its own."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# storages -------------------------------------------------------------------------------------------------------------


class Shipment:
    """Storages moved out together; `fetch` begins to bring copies back, `arrive` hands them over.  Once."""

    def __init__(self, storages: list[UntypedStorage], place: Place, away: Away) -> None:
        self._sizes = [s.nbytes() for s in storages]
        self._devices = [s.device for s in storages]
        self._back: list[Tensor] = []
        self._coming: Future[Any] | None = None
        self._process = os.getpid()
        self._file: Scratch | None = None
        self._home: list[Tensor] = []
        if place == "host":
            self._home = [_to_host(_bytes(s)) for s in storages]
            return
        self._file = away.file()
        here = (_bytes(s) if s.device.type == "cpu" else _to_host(_bytes(s)) for s in storages)
        self._at = self._file.write((memoryview(_numpy(t)) for t in here), sum(self._sizes))

    def fetch(self) -> None:
        """Begin to bring it back."""
        if self._back:
            return
        self._back = [
            torch.empty(n, dtype=torch.uint8, device=d) for n, d in zip(self._sizes, self._devices, strict=True)
        ]
        self._process = os.getpid()
        self._coming = _beside(self._job())

    def arrive(self) -> list[UntypedStorage]:
        """Wait for it; the storages, in the order in which they were given."""
        self.fetch()
        coming, self._coming = self._coming, None
        if coming is None or self._process != os.getpid():  # a thread that a fork has left behind brings nothing
            ready = self._job()()
        else:
            ready = coming.result()
        for device, event in ready:
            torch.cuda.current_stream(device).wait_event(event)
        back = [t.untyped_storage() for t in self._back]
        self._back, self._home = [], []
        if self._file is not None:
            self._file.give(self._at, sum(self._sizes))
            self._file = None
        return back

    def close(self) -> None:
        """Let go of it; nothing is on its way afterwards."""
        coming, self._coming = self._coming, None
        if coming is not None and not coming.cancel() and self._process == os.getpid():
            with contextlib.suppress(BaseException):
                for device, event in coming.result():
                    torch.cuda.current_stream(device).wait_event(event)
        self._back, self._home, self._file = [], [], None

    def _job(self) -> Callable[[], list[tuple[torch.device, Any]]]:
        """What brings it back, with nothing of this object in it but what it reads and fills."""
        gpus = {d for d in self._devices if d.type == "cuda"}
        sides: dict[torch.device, Any] = {}
        for device in gpus:  # the memory was taken on the current stream: what used it before must be over
            side = sides[device] = _side(device)
            side.wait_stream(torch.cuda.current_stream(device))
        return functools.partial(
            _bring, self._back, self._home, self._file, self._at if self._file is not None else 0, sides
        )


def _bring(
    back: list[Tensor], home: list[Tensor], file: Scratch | None, at: int, sides: dict[torch.device, Any]
) -> list[tuple[torch.device, Any]]:
    """Fill `back`; on a GPU by a stream of its own, whose end is told as an event."""
    if file is not None:
        here = [t if t.device.type == "cpu" else _pinned(t.numel()) for t in back]
        file.read([memoryview(_numpy(t)) for t in here], at)
    else:
        here = home
    for mine, theirs in zip(back, here, strict=True):
        if mine is theirs:
            continue
        if mine.device.type == "cpu":
            _numpy(mine)[:] = _numpy(theirs)  # numpy's copy: one thread, and it lets the others compute
        else:
            with torch.cuda.stream(sides[mine.device]):
                mine.copy_(theirs, non_blocking=True)
    return [(device, side.record_event()) for device, side in sides.items()]


@functools.cache
def _side(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _pinned(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())


def _to_host(flat: Tensor) -> Tensor:
    """A copy in the host's memory, waited for: the memory it leaves is to be used again at once."""
    if flat.device.type == "cpu":
        return flat.clone()
    return _pinned(flat.numel()).copy_(flat)


def _bytes(storage: UntypedStorage) -> Tensor:
    """The storage as one row of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _numpy(flat: Tensor) -> Any:
    return flat.numpy()


class Away:
    """All that one walk has moved out.

    Args:
        stay: tensors whose memory never moves: parameters, buffers, the data.
    """

    def __init__(self, stay: Iterable[Any]) -> None:
        self.here = addresses(stay)
        self._file: Scratch | None = None

    def file(self) -> Scratch:
        """The walk's file, made when it is first needed."""
        if self._file is None:
            self._file = Scratch()
        return self._file

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def addresses(tensors: Iterable[Any]) -> frozenset[int]:
    """Which storages these tensors lie in."""
    return frozenset(
        t.untyped_storage()._cdata
        for t in tensors
        if isinstance(t, Tensor) and t.layout is torch.strided and type(t) in (Tensor, nn.Parameter)
    )


# what it costs --------------------------------------------------------------------------------------------------------

_PROBE = 1 << 24


def bandwidth(place: Place, device: torch.device) -> float:
    """Bytes a second to the place or back, the slower of the two, measured once for each place, device and folder.

    The file is written and read as a step does it, through the system's cache of files, without waiting for the disk: a
    tape that lives for a fraction of a second often never gets there.  Where a step moves more than the system is ready
    to cache, the disk itself sets the pace, and a measured number handed in as `bandwidth` is better.
    """
    folder = ""
    if place == "disk":
        with contextlib.suppress(OSError):  # no folder: the file that is made next says so
            folder = tempfile.gettempdir()
    return _measured(place, str(device), folder)


@functools.cache
def _measured(place: Place, device: str, _folder: str) -> float:
    away = Away(())
    out, back = [], []
    try:
        for _ in range(4):
            tensor = torch.ones(_PROBE, dtype=torch.uint8, device=device)
            _wait(device)
            started = time.perf_counter()
            shipment = Shipment([tensor.untyped_storage()], place, away)
            _wait(device)
            out.append(time.perf_counter() - started)
            started = time.perf_counter()
            shipment.arrive()
            _wait(device)
            back.append(time.perf_counter() - started)
    finally:
        away.close()
    return _PROBE / max(min(out), min(back))  # the least, as of every time that is measured: noise only adds


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
