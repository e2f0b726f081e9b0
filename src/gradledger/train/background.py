"""Checkpoints that the run does not wait for: it stops while its tensors are copied, and a thread does the rest.

What is slow about a checkpoint that survives anything is the disk, which is waited for, and SHA-256. Neither needs the
run. The price: a second copy of the state in memory, and a checkpoint that is there a moment later than `save` returns.
Mohan et al., "CheckFreq: Frequent, Fine-Grained DNN Checkpointing", FAST 2021.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from gradledger.train import checkpoint

T = TypeVar("T")


@dataclass
class _UnderWay:
    """A save that was begun; `error` is looked at once its thread has ended."""

    path: Path
    thread: threading.Thread | None = None
    error: BaseException | None = None
    process: int = 0


class BackgroundSaves:
    """Writes the checkpoints of one run, one at a time, each in a thread of its own.

    A program that ends in any way that Python sees (the end, an exception, `sys.exit`, Ctrl-C) waits for the one under
    way; one that is killed keeps the one before. An error that nobody asked for is a RuntimeWarning at the end.
    """

    def __init__(self) -> None:
        self._copies: dict[str, dict[str, torch.Tensor]] = {}
        self._held: list[_UnderWay] = []
        weakref.finalize(self, _tell, self._held)

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
        held = _UnderWay(begun.final, process=os.getpid())
        # No daemon: the interpreter waits for it at its end.
        held.thread = threading.Thread(
            target=self._write, args=(held, begun.write, self._copies), name="gradledger-checkpoint", daemon=False
        )
        self._held[:] = [held]
        held.thread.start()
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
        assert held.thread is not None
        held.thread.join()
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


def _tell(held: list[_UnderWay]) -> None:
    for one in held:
        if one.error is not None and one.process == os.getpid():
            warnings.warn(f"a checkpoint was not written, and nobody asked: {one.error}", RuntimeWarning, stacklevel=1)
