"""Checkpoints that the run does not wait for: it stops while its tensors are copied, and a thread does the rest.

What is slow about a checkpoint that survives anything is the disk, which is waited for, and SHA-256. Neither needs the
run. The price: a second copy of the state in memory, and a checkpoint that is there a moment later than `save` returns.
Mohan et al., "CheckFreq: Frequent, Fine-Grained DNN Checkpointing", FAST 2021.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from gradledger.train import checkpoint

T = TypeVar("T")


@dataclass
class _UnderWay:
    """A save that was begun; `error` is looked at once it is `done`."""

    path: Path
    process: int
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


Job = Callable[[], None]


class BackgroundSaves:
    """Writes the checkpoints of one run, one at a time, in a thread of its own.

    A program that ends in any way that Python sees (the end, an exception, `sys.exit`, Ctrl-C) waits for the one under
    way; one that is killed keeps the one before. An error that nobody asked for is a RuntimeWarning at the end.
    """

    def __init__(self) -> None:
        self._copies: dict[str, dict[str, torch.Tensor]] = {}
        self._held: list[_UnderWay] = []
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._works_in = 0  # the process whose thread takes the jobs

    def save(
        self,
        folder: Path,
        step: int,
        parts: Mapping[str, Mapping[str, torch.Tensor]],
        facts: Mapping[str, Any],
        *,
        keep: int = 2,
        about: Mapping[str, str] | None = None,
    ) -> Path:
        """Begin what `checkpoint.save` does, with the same arguments; the tensors may change once this returns.

        The copies stay for the next save, which would otherwise ask the system for that much memory again. It waits
        where the one before is not done.

        Returns:
            The folder that is going to be there.

        Raises:
            CheckpointError: the arguments, or the save before this one; this one is not begun then.
        """
        self.wait()
        begun = checkpoint.prepare(folder, step, parts, facts, keep=keep, about=about)
        self._copies = {part: _copied(tensors, self._copies.get(part, {})) for part, tensors in parts.items()}
        held = _UnderWay(begun.final, os.getpid())
        if self._works_in != held.process:  # the first save, or the first after a fork
            self._works_in, self._jobs = held.process, SimpleQueue()
            weakref.finalize(self, _end, self._held, self._jobs)
            # One for all saves: starting a thread waits until it runs, which takes long where all cores are busy. A
            # daemon, since it never ends by itself: `_end` waits for what it does when the interpreter ends.
            threading.Thread(target=_work, args=(self._jobs,), name="gradledger-checkpoint", daemon=True).start()
        self._held[:] = [held]
        self._jobs.put(functools.partial(self._write, held, begun.write, self._copies))
        return held.path

    def wait(self) -> Path | None:
        """Until the save under way is on the disk.

        Returns:
            The newest checkpoint of these, None where none was begun since the last `wait`.

        Raises:
            CheckpointError: it could not be written; the one before is untouched. It is raised once.
        """
        if not self._held:
            return None
        (held,) = self._held
        if held.process != os.getpid():  # a fork: the thread and its error are the parent's
            self._held.clear()
            return None
        held.done.wait()
        self._held.clear()
        if held.error is not None:
            raise held.error
        return held.path

    def _write(
        self,
        held: _UnderWay,
        write: Callable[[Mapping[str, Mapping[str, torch.Tensor]], Executor], Path],
        parts: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> None:
        try:
            write(parts, _Inline())
        except BaseException as error:
            held.error = error
        finally:
            held.done.set()


def _work(jobs: SimpleQueue[Job | None]) -> None:
    """One job after the other, until None. A job holds whose it is: that is not collected before it is done."""
    while (job := jobs.get()) is not None:
        job()
        del job


class _Inline(Executor):
    """Runs at once, in the thread that asks: pools take nothing more once the interpreter has begun to end."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def _copied(tensors: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU, in the memory of those before where they fit."""
    copies = {}
    # Whatever mode the caller is in: the next save writes into these copies again.
    with torch.inference_mode(False), torch.no_grad():
        for name, tensor in tensors.items():
            copy = before.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            copies[name] = copy.copy_(tensor.detach())
    return copies


def _end(held: list[_UnderWay], jobs: SimpleQueue[Job | None]) -> None:
    """Nobody saves any more, or the interpreter ends: wait, say what nobody asked for, let the thread go."""
    for one in held:
        if one.process != os.getpid():
            return
        one.done.wait()
        error, one.error = one.error, None
        if error is not None:
            warnings.warn(f"a checkpoint was not written, and nobody asked: {error}", RuntimeWarning, stacklevel=1)
    jobs.put(None)
