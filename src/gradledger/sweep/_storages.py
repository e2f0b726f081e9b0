"""Which memory each local graph saves and each boundary holds, storage by storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gradledger.sweep._cost import BlockCost, Costs
from gradledger.sweep._state import Boundary, address_of


class Storages:
    """Storages as they are met: which each graph saves, which each boundary holds."""

    def __init__(self, modules: Sequence[nn.Module], given: Any) -> None:
        self._ids: dict[int, int] = {}
        self._bytes: list[int] = []
        self._alive: list[Any] = []
        self._not_ours = {
            address_of(t)
            for m in modules
            for t in (*m._parameters.values(), *m._buffers.values())
            if t is not None and t.layout is torch.strided
        }
        self._not_ours |= {
            address_of(t) for t in pytree.tree_leaves(given) if isinstance(t, Tensor) and t.layout is torch.strided
        }
        self.saved: dict[int, set[int]] = {}
        self.boundaries: dict[int, set[int]] = {}

    def recording(self, i: int) -> saved_tensors_hooks:
        """A context that notes what block i saves."""
        into = self.saved.setdefault(i, set())

        def pack(tensor: Tensor) -> Tensor:
            self._note(tensor, into)
            return tensor

        return saved_tensors_hooks(pack, lambda tensor: tensor)

    def boundary(self, at: int, boundary: Boundary) -> None:
        """Note what boundary `at` holds."""
        into = self.boundaries.setdefault(at, set())
        for tensor in boundary.tensors():
            self._note(tensor, into)

    def _note(self, tensor: Tensor, into: set[int]) -> None:
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self._not_ours:
            return
        known = self._ids.get(storage._cdata)
        if known is None:
            known = self._ids[storage._cdata] = len(self._bytes)
            self._bytes.append(storage.nbytes())
            self._alive.append(storage)  # so that no later storage takes its address
        into.add(known)

    def forget(self) -> None:
        """Let go of the memory itself."""
        self._alive.clear()

    def costs(self, blocks: list[dict[str, Any]], cotangents: list[int], grown: list[int]) -> Costs:
        """The records; what a block keeps beyond the tensors that were seen becomes a storage of its own."""
        n = len(blocks)
        boundaries = [frozenset[int]()] + [frozenset(self.boundaries.get(i, ())) for i in range(1, n)] + [frozenset()]
        alive: set[int] = set()
        for i, block in enumerate(blocks):
            saved = self.saved.get(i, set())
            new = (saved | boundaries[i + 1]) - alive
            gone = boundaries[i] - saved - (self.saved.get(i - 1, set()) if i else set())
            unseen = grown[i] - sum(self._bytes[k] for k in new) + sum(self._bytes[k] for k in gone & alive)
            alive |= new
            alive -= gone
            if unseen > UNSEEN:
                self._bytes.append(unseen)
                saved = saved | {len(self._bytes) - 1}
                block["stays"] = frozenset({len(self._bytes) - 1})
            block["saved"] = frozenset(saved)
        return Costs(
            blocks=tuple(BlockCost(**block) for block in blocks),
            storages=tuple(self._bytes),
            boundaries=tuple(boundaries),
            cotangents=(*cotangents[:n], 4),
        )


UNSEEN = 1024
"""Bytes that a recorded block may keep beyond the tensors it saves (scalars, small tables) without being counted."""
