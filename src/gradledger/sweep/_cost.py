"""What a chain of blocks costs: records that a profile fills and a planner reads.  No torch.

A chain has n blocks, the last one is the loss.  Boundary i is the input of block i: boundary 0 is the data (not ours,
not counted), boundary n the loss.  Storages are named by their index, so that what two boundaries or two graphs share
is counted once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradledger.core.errors import SweepError

VERSION = 1


class CostError(SweepError):
    """Costs that contradict themselves, or a stored profile that cannot be read."""

    slug = "cost"


@dataclass(frozen=True, slots=True)
class BlockCost:
    """One block, measured.  Bytes and seconds."""

    name: str
    forward_s: float
    """Seconds of a run that keeps no graph."""
    record_s: float
    """Seconds of a run that keeps its local graph."""
    reverse_s: float
    """Seconds of its vector-Jacobian product."""
    forward_peak: int
    """Highest level while it runs, above the level before (input already alive); output included."""
    record_peak: int
    """The same while it is recorded."""
    reverse_peak: int
    """The same in its VJP (tape and d_out alive before); includes d_in and the parameter gradients it makes."""
    saved: frozenset[int]
    """Storages that its local graph keeps alive, parameters and buffers apart."""
    grad_bytes: int = 0
    """Parameter gradients that stay allocated after its reverse."""
    keep_reason: str | None = None
    """Not None: this block may not be recomputed, and why."""
    stays: frozenset[int] = frozenset()
    """Those of `saved` that cannot be moved out: held beside the saved tensors (`ctx.x = x`, a kernel's tables)."""


@dataclass(frozen=True, slots=True)
class Costs:
    """A chain, measured.

    Raises CostError where lengths, ids or numbers contradict each other.
    """

    blocks: tuple[BlockCost, ...]
    """n blocks, the loss last."""
    storages: tuple[int, ...]
    """Bytes of each storage seen."""
    boundaries: tuple[frozenset[int], ...]
    """n + 1: storages of each boundary; the first is empty."""
    cotangents: tuple[int, ...]
    """n + 1: bytes of each boundary's cotangent; the first is 0 when the data is not differentiated."""

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def forced(self) -> dict[int, str]:
        """Blocks that may not be recomputed, with the reason; the loss apart."""
        return {i: b.keep_reason for i, b in enumerate(self.blocks[:-1]) if b.keep_reason is not None}

    def size(self, ids: Iterable[int]) -> int:
        """Bytes of these storages, each counted once."""
        return sum(self.storages[i] for i in set(ids))

    def to_json(self) -> str:
        """One JSON object; `from_json` gives equal costs back."""
        return json.dumps(
            dict(
                version=VERSION,
                storages=self.storages,
                boundaries=[sorted(b) for b in self.boundaries],
                cotangents=self.cotangents,
                blocks=[
                    {name: sorted(v) if isinstance(v := getattr(b, name), frozenset) else v for name in _FIELDS}
                    for b in self.blocks
                ],
            )
        )

    @classmethod
    def from_json(cls, text: str, *, where: str | Path = "stored costs") -> Costs:
        """Read what `to_json` wrote.

        Raises CostError when the text is no such object, or of another version.
        """
        try:
            raw: dict[str, Any] = json.loads(text)
            version = raw["version"]
            if version == VERSION:
                return cls(
                    blocks=tuple(_block(b) for b in raw["blocks"]),
                    storages=tuple(raw["storages"]),
                    boundaries=tuple(frozenset(b) for b in raw["boundaries"]),
                    cotangents=tuple(raw["cotangents"]),
                )
        except (ValueError, KeyError, TypeError) as error:
            raise CostError(
                got=f"text that is no profile ({type(error).__name__}: {error})",
                wanted="a JSON object as Costs.to_json writes it",
                where=str(where),
                next_step="profile the blocks again and store the result",
            ) from error
        raise CostError(
            got=f"version {version!r}",
            wanted=f"version {VERSION}",
            where=str(where),
            next_step="profile the blocks again with this release",
        )


_FIELDS = tuple(BlockCost.__slots__)


def _block(raw: dict[str, Any]) -> BlockCost:
    sets = dict(saved=frozenset(raw["saved"]), stays=frozenset(raw.get("stays", ())))
    return BlockCost(**(raw | sets))


def _check(costs: Costs) -> None:
    n, known = len(costs.blocks), len(costs.storages)

    def wrong(got: str, wanted: str, where: str) -> CostError:
        return CostError(got=got, wanted=wanted, where=where, next_step="profile again, or mend the record by hand")

    if n == 0:
        raise wrong("no blocks", "at least one: the loss is the last", "Costs.blocks")
    for field, values in (("boundaries", costs.boundaries), ("cotangents", costs.cotangents)):
        if len(values) != n + 1:
            raise wrong(f"{len(values)} entries", f"{n + 1}, one more than blocks", f"Costs.{field}")
    if costs.boundaries[0]:
        raise wrong(f"storages {sorted(costs.boundaries[0])}", "none: the data is not counted", "Costs.boundaries[0]")
    for field, numbers in (("storages", costs.storages), ("cotangents", costs.cotangents)):
        for i, number in enumerate(numbers):
            if number < 0:
                raise wrong(f"{number} bytes", "zero or more", f"Costs.{field}[{i}]")
    for i, ids in enumerate(costs.boundaries):
        _check_ids(ids, known, f"Costs.boundaries[{i}]", wrong)
    for i, block in enumerate(costs.blocks):
        where = f"block {i} ({block.name})"
        _check_ids(block.saved, known, f"{where}, saved", wrong)
        _check_ids(block.stays, known, f"{where}, stays", wrong)
        for field in ("forward_s", "record_s", "reverse_s", "forward_peak", "record_peak", "reverse_peak"):
            value = getattr(block, field)
            if not (math.isfinite(value) and value >= 0):
                raise wrong(f"{field} = {value!r}", "a finite number, zero or more", where)
        if block.grad_bytes < 0:
            raise wrong(f"grad_bytes = {block.grad_bytes!r}", "zero or more", where)


def _check_ids(ids: frozenset[int], known: int, where: str, wrong: Any) -> None:
    strange = sorted(i for i in ids if not 0 <= i < known)
    if strange:
        raise wrong(f"storage {strange[0]}", f"an index into the {known} storages", where)
