"""Tensors moved out between forward and reverse: to the host's memory or to a file, and fetched back ahead of use.

What moves is whole storages, each once: a tensor comes back with its shape, strides and type, and what were views of
one memory are views of one memory again.  Parameters, buffers, the data and what is too small to be worth a call stay.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks

from gradledger.core.errors import SweepError
from gradledger.sweep._action import Place
from gradledger.sweep._shipment import Away, Shipment
from gradledger.sweep._state import Boundary

SMALL = 1024
"""Bytes of a storage below which moving it costs more than it frees."""

# tensors --------------------------------------------------------------------------------------------------------------


class Packed:
    """A tensor as it is here, or what is known of it while its memory is away."""

    __slots__ = ("__weakref__", "_cargo", "_conj", "_dtype", "_layout", "_neg", "changed", "index", "tensor", "version")

    def __init__(self, tensor: Tensor, cargo: Cargo, version: int) -> None:
        self.tensor: Tensor | None = tensor
        self.version = version
        self.changed = False
        self.index = -1  # of its storage in the shipment
        self._cargo = cargo

    def leave(self, index: int) -> None:
        """Its storage has been moved out."""
        tensor = self.tensor
        assert tensor is not None
        self.changed = tensor._version != self.version
        self._layout = (tensor.storage_offset(), tensor.shape, tensor.stride())
        self._dtype, self._conj, self._neg = tensor.dtype, tensor.is_conj(), tensor.is_neg()
        self.tensor, self.index = None, index

    def land(self, storage: UntypedStorage) -> None:
        """Its storage is back."""
        tensor = torch.empty(0, dtype=self._dtype, device=storage.device).set_(storage, *self._layout)
        if self._conj:
            tensor = tensor.conj()
        if self._neg:
            tensor = torch._neg_view(tensor)
        self.tensor, self.index, self.version = tensor, -1, tensor._version

    def value(self) -> Tensor:
        """The tensor as it was saved.

        Raises SweepError where it has been written to since, as the engine itself raises.
        """
        if self.tensor is None:
            self._cargo.land()
        tensor = self.tensor
        assert tensor is not None
        if self.changed or tensor._version != self.version:
            raise SweepError(
                got=f"a tensor {tuple(tensor.shape)} that the reverse pass needs and that was written to in place",
                wanted="its value as it was when it was saved",
                where="reverse",
                next_step="use the out-of-place operation (x = x + y); a plain backward refuses this too",
            )
        return tensor


class Cargo:
    """Tensors that move out together: each storage of theirs once."""

    def __init__(self, place: Place, away: Away, here: Collection[int]) -> None:
        self._place, self._away, self._here = place, away, here
        self._packed: list[weakref.ref[Packed]] = []
        self._shipment: Shipment | None = None

    def add(self, tensor: Tensor, version: int) -> Packed:
        """Take it along; only what is alive when `move` is called moves."""
        packed = Packed(tensor, self, version)
        self._packed.append(weakref.ref(packed))
        return packed

    def move(self) -> None:
        """Move out what may move."""
        index: dict[int, int] = {}
        storages: list[UntypedStorage] = []
        leaving: list[tuple[Packed, int]] = []
        alive = [packed for ref in self._packed if (packed := ref()) is not None]
        for packed in alive:
            tensor = packed.tensor
            if tensor is None or not _movable(tensor):
                continue
            storage = tensor.untyped_storage()
            if storage.nbytes() < SMALL or storage._cdata in self._here or storage._cdata in self._away.here:
                continue
            if storage._cdata not in index:
                index[storage._cdata] = len(storages)
                storages.append(storage)
            leaving.append((packed, index[storage._cdata]))
        self._packed = [weakref.ref(packed) for packed, _ in leaving]
        if storages:
            self._shipment = Shipment(storages, self._place, self._away)
            for packed, at in leaving:
                packed.leave(at)

    def fetch(self) -> None:
        """Begin to bring it back."""
        if self._shipment is not None:
            self._shipment.fetch()

    def land(self) -> None:
        """Wait for it; every tensor that is still asked for is there afterwards."""
        shipment, self._shipment = self._shipment, None
        if shipment is None:
            return
        storages = shipment.arrive()
        for ref in self._packed:
            packed = ref()
            if packed is not None and packed.tensor is None:
                packed.land(storages[packed.index])
        self._packed.clear()

    def close(self) -> None:
        """Let go of what is away."""
        if self._shipment is not None:
            self._shipment.close()
            self._shipment = None


def _movable(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_quantized
        and not tensor._is_zerotensor()
        and tensor.untyped_storage().nbytes() > 0
    )


class Saved:
    """A context in which a block is recorded; what its graph saves can be moved out and is fetched back."""

    def __init__(self, place: Place, away: Away, here: Collection[int]) -> None:
        """`here`: addresses of storages that stay."""
        self._cargo = Cargo(place, away, here)
        self._hooks: saved_tensors_hooks | None = None
        self.move, self.fetch, self.land, self.close = (
            self._cargo.move,
            self._cargo.fetch,
            self._cargo.land,
            self._cargo.close,
        )

    def __enter__(self) -> Saved:
        # made here and dropped on exit: a hook that held this object, held by it, would keep the tensors alive
        self._hooks = saved_tensors_hooks(self._pack, _unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        hooks, self._hooks = self._hooks, None
        assert hooks is not None
        hooks.__exit__(kind, error, at)

    def _pack(self, tensor: Tensor) -> Any:
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            return tensor
        # another handle on the same memory and version: the tensor's own count of holders stays what the graph makes it
        alias = tensor.detach()
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return Packed(alias, self._cargo, tensor._version)  # never in the cargo's list
        return self._cargo.add(alias, tensor._version)


def _unpack(packed: Any) -> Tensor:
    return packed.value() if isinstance(packed, Packed) else cast(Tensor, packed)


class Moved:
    """A held boundary, moved out."""

    def __init__(self, boundary: Boundary, place: Place, away: Away) -> None:
        self._cargo = Cargo(place, away, ())
        self._needs, self._spec = boundary.needs, boundary.spec
        once: dict[int, Packed] = {}
        self._flat: list[Any] = []
        for value in boundary.flat:
            if isinstance(value, Tensor):
                value = once.get(id(value)) or once.setdefault(id(value), self._cargo.add(value, value._version))
            self._flat.append(value)
        self.fetch, self.close = self._cargo.fetch, self._cargo.close
        self._cargo.move()

    def boundary(self) -> Boundary:
        """The boundary as it was."""
        self._cargo.land()
        flat = [value.tensor if isinstance(value, Packed) else value for value in self._flat]
        return Boundary(flat, self._needs, self._spec)
