"""Tensors moved out between forward and reverse: to the host's memory or to a file, and fetched back ahead of use."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gradledger.core.errors import SweepError
from gradledger.sweep._action import Place
from gradledger.sweep._state import Boundary

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _worker() -> ThreadPoolExecutor:
    """One thread that copies while the device, or the other core, computes."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(1, thread_name_prefix="gradledger-offload")
        return _pool


class Stored:
    """One tensor moved out, with the strides and the device that it had."""

    __slots__ = ("_coming", "_device", "_dtype", "_home", "_path", "_shape", "_stride")

    def __init__(self, tensor: Tensor, place: Place, folder: Path | None) -> None:
        self._device, self._dtype = tensor.device, tensor.dtype
        self._shape, self._stride = tensor.shape, tensor.stride()
        self._coming: Future[Tensor] | None = None
        self._home: Tensor | None = None
        self._path: Path | None = None
        flat = _flat(tensor.detach())
        if place == "host":
            pinned = flat.device.type != "cpu" and torch.cuda.is_available()
            self._home = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=pinned).copy_(flat)
            return
        assert folder is not None
        number, name = tempfile.mkstemp(dir=folder, suffix=".tensor")
        os.close(number)
        self._path = Path(name)
        try:
            flat.cpu().view(torch.uint8).numpy().tofile(self._path)
        except OSError as error:
            self.forget()
            raise SweepError(
                got=f"{error.strerror or error} while {flat.numel() * flat.element_size()} bytes were moved to disk",
                wanted="room for what the plan moves out",
                where=f"offload to {folder}",
                next_step="free some space, point TMPDIR at another disk, or plan without @disk",
            ) from error

    def fetch(self) -> None:
        """Begin to bring it back."""
        if self._coming is None:
            self._coming = _worker().submit(self._load)

    def tensor(self) -> Tensor:
        """The tensor as it was: shape, strides, device, bits."""
        coming, self._coming = self._coming, None
        value = self._load() if coming is None else coming.result()
        self.forget()
        return value

    def forget(self) -> None:
        """Remove what is left of it outside."""
        self._home = None
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._path = None

    def _load(self) -> Tensor:
        size = (
            1 + sum((n - 1) * s for n, s in zip(self._shape, self._stride, strict=True)) if self._shape.numel() else 0
        )
        if self._path is not None:
            raw = torch.from_file(str(self._path), shared=False, size=size * self._dtype.itemsize, dtype=torch.uint8)
            flat = raw.view(self._dtype).clone()
        else:
            assert self._home is not None
            flat = self._home.clone() if self._device.type == "cpu" else self._home
        return torch.as_strided(flat.to(self._device, non_blocking=True), self._shape, self._stride)


def _flat(tensor: Tensor) -> Tensor:
    """The tensor's stretch of memory, gaps and all, as one dimension."""
    if not tensor.numel():
        return torch.empty(0, dtype=tensor.dtype)
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return torch.as_strided(tensor, (size,), (1,))


def _folder(place: Place) -> Path | None:
    return Path(tempfile.mkdtemp(prefix="gradledger-offload-")) if place == "disk" else None


class Saved:
    """A context in which what the graph saves is moved out; parameters and small tensors stay."""

    def __init__(self, place: Place | None) -> None:
        assert place is not None
        self._place: Place = place
        self._folder = _folder(place)
        self._stored: dict[tuple[int, int, tuple[int, ...]], Stored] = {}
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> Saved:
        self._hooks.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._hooks.__exit__(kind, error, at)

    def _pack(self, tensor: Tensor) -> Any:
        small = tensor.numel() * tensor.element_size() < SMALL
        if small or isinstance(tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return tensor
        return Stored(tensor, self._place, self._folder)

    def _unpack(self, packed: Any) -> Tensor:
        return packed.tensor() if isinstance(packed, Stored) else packed

    def fetch(self) -> None:
        """Begin to bring everything back."""


SMALL = 4096
"""Bytes below which moving costs more than it frees."""


class Moved:
    """A held boundary, moved out."""

    def __init__(self, boundary: Boundary, place: Place) -> None:
        folder = _folder(place)
        once: dict[int, Stored] = {}
        self._needs, self._spec = boundary.needs, boundary.spec
        self._flat: list[Any] = [
            once.setdefault(id(t), Stored(t, place, folder)) if isinstance(t, Tensor) else t for t in boundary.flat
        ]

    def fetch(self) -> None:
        """Begin to bring it back."""
        for value in self._flat:
            if isinstance(value, Stored):
                value.fetch()

    def boundary(self) -> Boundary:
        """The boundary as it was."""
        back: dict[int, Tensor] = {}
        flat: list[Any] = []
        for value in self._flat:
            if isinstance(value, Stored):
                if id(value) not in back:
                    back[id(value)] = value.tensor()
                value = back[id(value)]
            flat.append(value)
        return Boundary(flat, self._needs, self._spec)
