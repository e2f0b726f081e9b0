"""Which positions of a batch of sequences are padding, told from the values alone.

A batch [B, T, ...] is padded when its rows end (or begin) in one repeated value, differ in how long they are, and that
value stands nowhere else: `lengths_of`.  A mask [B, T] or a vector of lengths [B] says the same thing in other ways.
Rows are told by their lengths, from the side where the content is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

LEAST_ROWS, LEAST_STEPS = 4, 3
ELEMENTS = 2_000_000
LEAST_SHARE = 0.05  # of all positions


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of each of B rows of T positions, how many are content; `left`: padding comes first.  `value`: the padding, when
    it is one number."""

    rows: tuple[int, ...]
    steps: int
    left: bool = False
    value: float | None = None

    @property
    def share(self) -> float:
        """Of the positions that are padding."""
        return 1.0 - sum(self.rows) / (len(self.rows) * self.steps)

    @property
    def shape(self) -> tuple[int, int]:
        """[B, T]"""
        return len(self.rows), self.steps

    def mask(self) -> Any:
        """True at padding.  [B, T]"""
        at = np.arange(self.steps)[None]
        rows = np.asarray(self.rows)[:, None]
        return at < self.steps - rows if self.left else at >= rows

    def shifted(self) -> Lengths:
        """Of the same rows without their first position: targets of a next step."""
        rows = tuple(min(r, self.steps - 1) if self.left else max(r - 1, 0) for r in self.rows)
        return Lengths(rows, self.steps - 1, self.left, self.value)

    def agrees(self, other: Lengths) -> bool:
        """Whether two say the same of the same rows, up to a shift by one (inputs and targets of a next step)."""
        if self.left != other.left or len(self.rows) != len(other.rows):
            return False
        shift = self.steps - other.steps
        differences = {a - b for a, b in zip(self.rows, other.rows, strict=True)}
        return abs(shift) <= 1 and all(abs(d) <= 1 for d in differences) and len(differences) <= 2


def _usable(rows: Any, steps: int) -> bool:
    """Rows of different lengths, of which enough is padding, and none without content."""
    share = 1.0 - rows.sum() / (len(rows) * steps)
    return bool(len(set(rows.tolist())) > 2 and share >= LEAST_SHARE and rows.max() > 0)


def tensors_of_batch(batch: Any, depth: int = 0) -> list[torch.Tensor]:
    """The plain tensors of what a loader gave, through dictionaries, lists and tuples, a few of each."""
    if type(batch) is torch.Tensor:
        return [batch]
    parts = list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else []
    return [t for part in parts[:8] for t in tensors_of_batch(part, depth + 1)] if depth < 3 else []


def array_of(tensor: torch.Tensor) -> Any:
    """A numpy view of a tensor on the CPU; None when it is too large or has no such view."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized:
        return None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if tensor.numel() > ELEMENTS or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.detach().float()
    return tensor.detach().numpy()


def lengths_of(values: Any) -> Lengths | None:
    """Read the lengths from the values of [B, T] or [B, T, features]; None when they do not look padded."""
    if values.ndim < 2 or values.shape[0] < LEAST_ROWS or values.shape[1] < LEAST_STEPS or values.dtype == bool:
        return None
    flat = values.reshape(values.shape[0], values.shape[1], -1)
    for left in (False, True):
        end = flat[:, 0] if left else flat[:, -1]
        # the padding is what most rows end in; at least a quarter of them
        ids = [row.tobytes() for row in np.ascontiguousarray(end)]
        common, times = Counter(ids).most_common(1)[0]
        if times < max(3, len(ids) // 4):
            continue
        pad = end[ids.index(common)]
        is_pad = (flat == pad).all(-1)
        content = ~is_pad
        if flat.shape[2] > 1 and not (pad == pad[0]).all():
            continue  # a padding is one number all over
        first, last = content.argmax(1), flat.shape[1] - content[:, ::-1].argmax(1)
        some = content.any(1)
        rows = np.where(some, flat.shape[1] - first if left else last, 0)
        expected = (flat.shape[1] - rows).sum()
        if is_pad.sum() != expected or not some.all():
            continue  # it stands among the content too
        if _usable(rows, flat.shape[1]):
            return Lengths(tuple(int(r) for r in rows), flat.shape[1], left, float(pad[0]))
    return None


def lengths_of_mask(values: Any, kept: bool = True) -> Lengths | None:
    """Read the lengths from a mask [B, T] (further axes of size 1) whose ones (`kept`: else zeros) mark the content.

    Every row is one run of each; the lengths differ, and not as those of a triangle do.
    """
    shape = [s for s in values.shape if s != 1]
    if len(shape) != 2 or shape[0] < LEAST_ROWS or shape[1] < LEAST_STEPS or values.shape[0] != shape[0]:
        return None
    flat = values.reshape(shape)
    if flat.dtype != bool:
        if not ((flat == 0) | (flat == 1)).all():
            return None
        flat = flat != 0
    if not kept:
        flat = ~flat
    steps = flat.shape[1]
    change = flat[:, 1:] != flat[:, :-1]
    rows, mixed = flat.sum(1), change.any(1)
    if change.sum(1).max() > 1 or not mixed.any() or rows.min() == 0 or not _usable(rows, steps):
        return None
    starts = set(flat[mixed, 0].tolist())
    if len(starts) != 1 or (shape[0] == shape[1] and len(set(np.diff(rows).tolist())) == 1):
        return None
    return Lengths(tuple(int(r) for r in rows), steps, left=not starts.pop())


def constant_beyond(values: Any, lengths: Lengths) -> bool:
    """Whether [B, T, ...] is the same in all positions that are padding: one value for all rows, or each row's last."""
    if values.ndim < 2 or values.shape[:2] != (len(lengths.rows), lengths.steps):
        return False
    flat = values.reshape(values.shape[0], values.shape[1], -1)
    if lengths.left:
        flat = flat[:, ::-1]
    pads = [(flat[i, n:], flat[i, n - 1] if n else None) for i, n in enumerate(lengths.rows) if n < lengths.steps]
    pads = [(tail, last) for tail, last in pads if len(tail)]
    if not pads:
        return False
    one = pads[0][0][0]
    if all((tail == one).all() for tail, _ in pads):
        return True
    return all(last is not None and (tail == last).all() for tail, last in pads)


__all__ = ["Lengths", "array_of", "constant_beyond", "lengths_of", "lengths_of_mask"]
