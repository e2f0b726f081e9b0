"""Anything a batch may hold as a numpy array, and what it was called before."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def as_array(value: Any) -> tuple[NDArray[Any] | None, str]:
    """(array, name of the dtype that was given); the array is None where there is no rectangular array of numbers.

    A tensor is read where it is when numpy can, so the array may share its memory: look, never write. bfloat16, which
    numpy lacks, is widened to float32 and keeps its name.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_sparse or tensor.is_quantized:
            return None, f"{name} ({tensor.layout})"
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        if tensor.is_complex():
            return None, name
        try:
            return tensor.cpu().numpy(), name
        except (TypeError, RuntimeError) as cause:
            return None, f"{name} ({cause})"
    if isinstance(value, np.ndarray):
        array = value
    else:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError):
            return None, f"a ragged {type(value).__name__}"
    if array.dtype.kind not in "biuf":
        return None, f"{array.dtype} of {type(value).__name__}"
    return array, str(array.dtype)
