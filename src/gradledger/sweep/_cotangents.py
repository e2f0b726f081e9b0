"""What flowed back over each boundary: norm, largest magnitude, share of zeros, and where a NaN was born.

Nothing is read while the walk runs. Of a large cotangent three streaming kernels leave a few numbers behind, on its
device; a small one is kept as it is and measured when somebody asks. `finish` reads everything at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from gradledger.core.errors import SweepError

Phase = Literal["data", "forward", "loss", "seed", "reverse", "parameters"]

Zeros = Literal["sampled", "exact", "no"]

# Below this a kernel is all overhead (2 to 5 microseconds each), and keeping the tensor costs at most 64 kB.
SMALL = 4096
# Zeros of larger tensors are counted in this many rows of this many elements, evenly spread over memory. Comparing into
# a buffer of the same dtype and adding it up streams; torch.count_nonzero and booleans are 20 to 200 times slower on a
# CPU, and even so the exact count costs more than norm and extremes together.
ROWS, WIDTH = 256, 128
PIECE = 1 << 17  # of the exact count: what stays in cache


@dataclass(frozen=True, slots=True)
class BoundaryRecord:
    """The numbers of one boundary, over all its tensors.

    Attributes:
        block: whose vector-Jacobian product gave this cotangent (it belongs to that block's input); in the forward
            half, whose output it is.
        norm: square root of the sum of squares of all elements. Of bf16 rounded to bf16; inf where the squares leave
            the range of the dtype although every element is finite.
        largest: largest magnitude; NaN if there is one.
        finite: no element is NaN or infinite.
        zeros: share of elements that are exactly 0, between 0 and 1; NaN if not asked for. Above 32,768 elements it is
            an estimate from as many, unless the ledger was told to count exactly.
        elements: of all tensors together; complex ones count twice.
        absent: tensors of this boundary that got no cotangent at all (None).
        overwritten: somebody wrote to a small tensor before it was read: the numbers are those of the later values.
    """

    block: str
    norm: float
    largest: float
    finite: bool
    zeros: float
    elements: int
    absent: int = 0
    overwritten: bool = False


@dataclass(frozen=True, slots=True)
class Birth:
    """Where the first non-finite value came from: everything that went into it was finite.

    Attributes:
        block: its name; None where the forward half was not recorded, or for data and seed.
        phase: ``data``, ``forward``, ``loss`` (its own block), ``seed``, ``reverse`` (in the cotangent) or
            ``parameters`` (in the parameter gradients alone).
    """

    block: str | None
    phase: Phase

    def __str__(self) -> str:
        if self.phase == "forward" and self.block is None:
            return "the loss is not finite: record the forward half to learn in which block that began"
        where = {
            "data": "the data hold a non-finite value",
            "forward": f"block {self.block}: its output is the first that is not finite, its input was",
            "loss": "the loss: every block's output is finite",
            "seed": "the seed cotangent that was handed in is not finite",
            "reverse": f"block {self.block}: a finite cotangent came in, one that is not finite went out",
            "parameters": f"block {self.block}: its parameter gradients are not finite, the cotangents are",
        }
        return where[self.phase]


@dataclass(frozen=True, slots=True)
class Cotangents:
    """One reverse pass, read.

    Attributes:
        reverse: one record a block, in the order of the walk (the last block first).
        forward: in forward order, the data first under the name ``data``; empty unless asked for.
        born: where the first non-finite value came from; None if all is finite.
    """

    reverse: tuple[BoundaryRecord, ...]
    forward: tuple[BoundaryRecord, ...]
    born: Birth | None

    def __getitem__(self, block: str) -> BoundaryRecord:
        """The record of the cotangent that this block gave; KeyError for a block that is not there."""
        for record in self.reverse:
            if record.block == block:
                return record
        raise KeyError(block)

    def __str__(self) -> str:
        """Tables of at most 80 columns; ``gain`` is the norm over that of the boundary before, in the same walk."""
        lines = [f"born: {self.born}", ""] if self.born is not None else []
        for title, records, phases in (
            ("cotangents, in the order of the reverse walk", self.reverse, ("reverse", "parameters")),
            ("outputs, in the order of the forward pass", self.forward, ("data", "forward")),
        ):
            if not records:
                continue
            lines += [title, f"{'block':<28}{'norm':>10}{'gain':>8}{'largest':>10}{'zeros':>7}{'elements':>11}"]
            before = math.nan
            for record in records:
                lines.append(_row(record, before) + self._mark(record, phases))
                before = record.norm
            lines.append("")
        return "\n".join(lines[:-1]) if lines else "no cotangents were recorded"

    def _mark(self, record: BoundaryRecord, phases: Sequence[str]) -> str:
        here = self.born is not None and self.born.phase in phases
        if here and self.born is not None and record.block == (self.born.block or "data"):
            return " born"
        return " overwritten" if record.overwritten else ""


def _row(record: BoundaryRecord, before: float) -> str:
    name = record.block if len(record.block) <= 27 else "…" + record.block[-26:]
    if not record.elements:
        return f"{name:<28}{'none' if record.absent else '-':>10}"
    gain = record.norm / before if before > 0 else math.nan
    zeros = f"{100 * record.zeros:.0f}%" if record.zeros == record.zeros else "-"
    times = f"{gain:.3g}" if math.isfinite(gain) else "-"
    return f"{name:<28}{record.norm:>10.3g}{times:>8}{record.largest:>10.3g}{zeros:>7}{record.elements:>11}"


# ---------------------------------------------------------------------------------------------------- while it runs
@dataclass(frozen=True, slots=True)
class _Numbers:
    """What was left of one tensor: 0-dimensional results, still on its device."""

    elements: int
    norm: Tensor
    low: Tensor
    high: Tensor
    looked: int = 0
    nonzero: tuple[Tensor, ...] = ()
    overwritten: bool = False


# A small tensor is kept with its version; of a large one the numbers; of an empty one nothing.
_Kept = tuple[Tensor, int] | _Numbers | None
_Row = tuple[str, list[_Kept], int]


class CotangentLedger:
    """Collects one reverse pass: `update` per boundary, then `finish`. A new pass takes a new ledger.

    Args:
        zeros: how zeros are counted: ``sampled`` (32,768 elements of a larger tensor, evenly spread), ``exact`` (costs
            about as much as everything else) or ``no``.

    Example:
        >>> import torch
        >>> from gradledger.sweep._cotangents import CotangentLedger
        >>> ledger = CotangentLedger()
        >>> ledger.update("head", torch.tensor([3.0, 0.0, -4.0]))
        >>> ledger.update("stem", torch.tensor([1.0, float("nan")]))
        >>> seen = ledger.finish()
        >>> seen["head"].norm, seen["head"].largest, seen.born.block
        (5.0, 4.0, 'stem')
    """

    __slots__ = ("_forward", "_gradients", "_loss", "_reverse", "_scratch", "_seed", "_zeros")

    def __init__(self, *, zeros: Zeros = "sampled") -> None:
        if zeros not in ("sampled", "exact", "no"):
            raise SweepError(
                got=f"zeros={zeros!r}",
                wanted="'sampled', 'exact' or 'no'",
                where="CotangentLedger",
                next_step="leave it out for 'sampled'",
            )
        self._zeros = zeros
        self._reverse: list[_Row] = []
        self._forward: list[_Row] = []
        self._gradients: dict[int, Tensor] = {}
        self._loss: list[_Kept] = []
        self._seed: list[_Kept] = []
        self._scratch: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def update(self, block: str, cotangent: Any, gradients: Sequence[Tensor] = ()) -> None:
        """The cotangent of a block's input, as its vector-Jacobian product gave it.

        Args:
            block: the block's name.
            cotangent: a tensor, None, or any nesting of them (also empty: a first block does not differentiate data).
            gradients: of the block's parameters, if a NaN that shows nowhere else is to be found too; costs one more
                pass over them.
        """
        if type(cotangent) is Tensor:
            self._reverse.append((block, [self._kept(cotangent)], 0))
        else:
            leaves = cotangent if type(cotangent) is tuple else pytree.tree_leaves(cotangent)
            kept = [self._kept(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
            self._reverse.append((block, kept, sum(leaf is None for leaf in leaves)))
        if gradients:
            given = [gradient.detach() for gradient in gradients]
            self._gradients[len(self._reverse) - 1] = torch.nn.utils.get_total_norm(given, math.inf)

    def forward(self, block: str, state: Any) -> None:
        """The output of a block, before anything else may write to it; on request only."""
        leaves = [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor)]
        self._forward.append((block, self._copied(leaves), 0))

    def data(self, x: Any) -> None:
        """The data, before the first block; on request only."""
        self.forward("data", x)

    def loss(self, loss: Any, seeds: Iterable[Tensor | None] = ()) -> None:
        """The loss (any nesting of tensors) and the seed cotangents, if they were handed in."""
        self._loss = self._copied([leaf for leaf in pytree.tree_leaves(loss) if isinstance(leaf, Tensor)])
        self._seed = self._copied([seed for seed in seeds if seed is not None])

    def _copied(self, leaves: Sequence[Tensor]) -> list[_Kept]:
        """Like `_kept`, for tensors that others go on to use and may overwrite."""
        real = [t.detach() for t in leaves if t.is_floating_point() or t.is_complex()]
        return [self._kept(t.clone() if t.numel() <= SMALL else t) for t in real]

    def _kept(self, tensor: Tensor) -> _Kept:
        if tensor.numel() <= SMALL and tensor.layout is torch.strided:
            if tensor.untyped_storage().nbytes() <= 16 * SMALL:  # no narrow view of something large
                return tensor, tensor._version
        return self._streamed(tensor)

    def _streamed(self, tensor: Tensor, *, overwritten: bool = False) -> _Numbers | None:
        """One pass per number: norm, extremes (they carry a NaN along), zeros."""
        real = _real(tensor.detach())
        if real.numel() == 0:
            return None
        low, high = torch.aminmax(real)
        # half precision overflows at 65504; its norm is taken in single precision, at the price of a cast copy
        norm = torch.linalg.vector_norm(real, dtype=torch.float32 if real.dtype is torch.float16 else None)
        looked, nonzero = (0, ()) if self._zeros == "no" else self._nonzero(real)
        return _Numbers(real.numel(), norm, low, high, looked, nonzero, overwritten)

    def _nonzero(self, real: Tensor) -> tuple[int, tuple[Tensor, ...]]:
        """How many elements were looked at, and how many of them are not 0: 0-dimensional counts to be added up."""
        flat = _in_memory_order(real)
        looked = real.numel()
        if flat is None or (self._zeros == "exact" and real.device.type != "cpu"):
            return looked, (torch.count_nonzero(real),)
        scratch = self._scratch.get((real.dtype, real.device))
        if scratch is None:
            size = PIECE if self._zeros == "exact" else ROWS * WIDTH
            scratch = self._scratch[real.dtype, real.device] = torch.empty(size, dtype=real.dtype, device=real.device)
        # a count in half precision would stop at 256 or 2048
        count_in = torch.float64 if real.dtype is torch.float64 else torch.float32
        if self._zeros == "sampled" and looked > ROWS * WIDTH:
            step = looked // ROWS
            rows = flat.as_strided((ROWS, WIDTH), (step, 1))
            return ROWS * WIDTH, (torch.ne(rows, 0, out=scratch.view(ROWS, WIDTH)).sum(dtype=count_in),)
        return looked, tuple(
            torch.ne(piece, 0, out=scratch[: piece.numel()]).sum(dtype=count_in)
            for piece in torch.split(flat, len(scratch))
        )

    # ------------------------------------------------------------------------------------------------ reading
    def finish(self) -> Cotangents:
        """Read every number (one transfer per device and dtype) and say where a non-finite value was born."""
        reverse, forward = self._measured(self._reverse), self._measured(self._forward)
        ends = self._measured([("loss", self._loss, 0), ("seed", self._seed, 0)])
        waiting = list(self._gradients.values())
        for _, numbers, _ in (*reverse, *forward, *ends):
            for n in numbers:
                waiting += (n.norm, n.low, n.high, *n.nonzero)
        values = _read(waiting)
        walked, run, (loss, seed) = ([_record(*row, values) for row in rows] for rows in (reverse, forward, ends))
        bad = {k for k, norm in self._gradients.items() if not math.isfinite(values[id(norm)])}
        return Cotangents(tuple(walked), tuple(run), _birth(walked, run, loss.finite, seed.finite, bad))

    def _measured(self, rows: Sequence[_Row]) -> list[tuple[str, list[_Numbers], int]]:
        """The rows with numbers in place of the small tensors that were kept."""
        done = []
        for block, kept, absent in rows:
            numbers = [
                self._streamed(one[0], overwritten=one[0]._version != one[1]) if isinstance(one, tuple) else one
                for one in kept
            ]
            done.append((block, [n for n in numbers if n is not None], absent))
        return done


def _birth(
    reverse: Sequence[BoundaryRecord],
    forward: Sequence[BoundaryRecord],
    loss_finite: bool,
    seed_finite: bool,
    bad_parameters: set[int],
) -> Birth | None:
    if not loss_finite:
        first = next((record for record in forward if not record.finite), None)
        if first is None:
            return Birth("loss", "loss") if forward else Birth(None, "forward")
        return Birth(None, "data") if first.block == "data" else Birth(first.block, "forward")
    if not seed_finite:
        return Birth(None, "seed")
    for k, record in enumerate(reverse):
        if not record.finite:
            return Birth(record.block, "reverse")
        if k in bad_parameters:
            return Birth(record.block, "parameters")
    return None


def _record(block: str, numbers: Sequence[_Numbers], absent: int, values: dict[int, float]) -> BoundaryRecord:
    ends = [abs(values[id(end)]) for n in numbers for end in (n.low, n.high)]
    elements = sum(n.elements for n in numbers)
    zeros = math.nan
    if elements and all(n.looked for n in numbers):  # each tensor's share, weighted by its size
        shares = [1.0 - sum(values[id(count)] for count in n.nonzero) / n.looked for n in numbers]
        zeros = sum(share * n.elements for share, n in zip(shares, numbers, strict=True)) / elements
    return BoundaryRecord(
        block=block,
        norm=math.hypot(*(values[id(n.norm)] for n in numbers)),
        largest=math.nan if any(end != end for end in ends) else max(ends, default=0.0),
        finite=all(map(math.isfinite, ends)),
        zeros=zeros,
        elements=elements,
        absent=absent,
        overwritten=any(n.overwritten for n in numbers),
    )


def _read(waiting: Sequence[Tensor]) -> dict[int, float]:
    """The values of 0-dimensional tensors by id, with one transfer per device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in waiting:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    values: dict[int, float] = {}
    for group in groups.values():
        values.update(zip(map(id, group), map(float, torch.stack(group).tolist()), strict=True))
    return values


def _real(tensor: Tensor) -> Tensor:
    """The same numbers as one strided real tensor: complex entries as pairs, sparse ones by what they hold."""
    if tensor.is_nested:
        tensor = tensor.values()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _in_memory_order(tensor: Tensor) -> Tensor | None:
    """A flat view of a tensor that fills its memory, whatever the order of its axes; None where there is none."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    turned = tensor.permute(order)
    return turned.view(-1) if turned.is_contiguous() else None
