"""Samples of different lengths in one batch: padded, with a mask, and a loss that counts real entries only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from gradledger.data.errors import LoaderError


class Pad:
    """Collate: mappings, tuples and arrays whose first axis varies from sample to sample.

    An array (T_i, ...) becomes (B, T, ...) with T the longest in this batch, filled up with `value`; everything else
    is stacked as torch does. A mapping gets one more entry, `mask` (B, T), True where the entry is real; a tuple gets
    it as its last element; a bare array becomes (padded, mask). Samples are not changed.

    fields: names (or positions) that are padded, together with one mask; None takes every array of at least one axis
    whose lengths differ in this batch or that has as many entries as those. value: what fills up.
    """

    def __init__(self, fields: tuple[str | int, ...] | None = None, *, value: float = 0.0, mask: str = "mask") -> None:
        self.fields, self.value, self.mask = fields, value, mask

    def __call__(self, samples: list[Any]) -> Any:
        """The batch.

        Raises:
            LoaderError: no sample, samples of different kinds or fields, or padded fields of different lengths.
        """
        if not samples:
            raise _refused("no sample", "at least one", "check the sampler")
        first = samples[0]
        if isinstance(first, Mapping):
            if any(not isinstance(one, Mapping) or set(one) != set(first) for one in samples):
                raise _refused("samples with different fields", f"{sorted(first)} in each", "return the same fields")
            if self.mask in first:
                raise _refused(f"a field named {self.mask!r}", "a name that is free", "pass mask='another name'")
            columns: dict[Any, list[Any]] = {name: [one[name] for one in samples] for name in first}
            padded, real = self._columns(columns)
            return {**padded, self.mask: real}
        if isinstance(first, tuple | list):
            if any(len(one) != len(first) for one in samples):
                raise _refused("samples of different lengths as tuples", f"{len(first)} entries", "return one shape")
            padded, real = self._columns({at: [one[at] for one in samples] for at in range(len(first))})
            return (*(padded[at] for at in range(len(first))), real)
        padded, real = self._columns({0: samples})
        return padded[0], real

    def _columns(self, columns: dict[Any, list[Any]]) -> tuple[dict[Any, Any], Tensor]:
        arrays = {name: [_tensor(value) for value in values] for name, values in columns.items()}
        chosen = self._chosen(arrays)
        lengths = {name: [len(array) for array in arrays[name] if array is not None] for name in chosen}
        if len({tuple(counts) for counts in lengths.values()}) != 1:
            raise _refused(
                f"lengths {lengths}", "one length a sample in every padded field", "name the fields: Pad((...,))"
            )
        counts = torch.tensor(next(iter(lengths.values())))
        longest = int(counts.max())
        batch = {
            name: self._pad(name, arrays[name], longest) if name in chosen else default_collate(values)
            for name, values in columns.items()
        }
        return batch, torch.arange(longest)[None, :] < counts[:, None]

    def _chosen(self, arrays: dict[Any, list[Tensor | None]]) -> list[Any]:
        axes = {
            name: [tuple(array.shape) for array in values if array is not None and array.ndim > 0]
            for name, values in arrays.items()
        }
        count = max(len(values) for values in arrays.values())
        whole = {name for name, shapes in axes.items() if len(shapes) == count}
        if self.fields is not None:
            missing = [name for name in self.fields if name not in whole]
            if missing:
                raise _refused(f"no arrays in {missing}", "arrays of at least one axis", "name other fields")
            return list(self.fields)
        vary = [name for name in arrays if name in whole and len({shape[0] for shape in axes[name]}) > 1]
        if not vary:
            # All of one length by chance: the mask must be there all the same, or batches differ in kind.
            vary = [name for name in arrays if name in whole][:1]
        if not vary:
            raise _refused("no array to pad", "at least one field with a first axis", "use torch's default collate")
        lengths = [shape[0] for shape in axes[vary[0]]]
        return [name for name in arrays if name in whole and [shape[0] for shape in axes[name]] == lengths]

    def _pad(self, name: Any, values: list[Tensor | None], longest: int) -> Tensor:
        arrays = [value for value in values if value is not None]
        first = arrays[0]
        for at, array in enumerate(arrays):
            if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
                raise _refused(
                    f"{name}: {array.dtype} {list(array.shape)} in sample {at}",
                    f"{first.dtype} [T, {', '.join(map(str, first.shape[1:]))}] as in the first",
                    "only the first axis may vary",
                )
        padded = first.new_full((len(arrays), longest, *first.shape[1:]), self.value)
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
        return padded


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Sum over real entries over their count: padding has no part in it, however long it is.

    Args:
        values: (B, T, ...) such as a loss an entry. mask: (B, T), true where real. Further axes are averaged too.

    Returns:
        A scalar mean, differentiable; entries under the mask get the gradient 0, NaN there included.

    Raises:
        LoaderError: shapes that do not fit, or nothing real at all (a mean over nothing would be NaN).
    """
    if values.shape[: mask.ndim] != mask.shape:
        raise _refused(
            f"values {list(values.shape)}, mask {list(mask.shape)}", "equal leading axes", "pass one mask an entry"
        )
    real = mask.to(torch.bool).reshape(*mask.shape, *[1] * (values.ndim - mask.ndim)).expand_as(values)
    count = int(real.sum())
    if count == 0:
        raise _refused("a mask that is False everywhere", "at least one real entry", "drop empty samples")
    return torch.where(real, values, torch.zeros_like(values)).sum() / count


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))  # a copy: the sample may be read-only, or a view of the data
    return None


def _refused(got: str, wanted: str, next_step: str) -> LoaderError:
    return LoaderError(got=got, wanted=wanted, where="collate", next_step=next_step)


Collate = Callable[[list[Any]], Any]
