"""Who else holds a tensor: counts of Python's references, of handles and graphs, and of tensors on one memory."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor


def _handles() -> int:
    with torch.inference_mode(False), torch.enable_grad():
        leaves = (torch.empty((), requires_grad=True),)
        graph = leaves[0].clone()
    leaf = leaves[0]
    count = sys.getrefcount(leaf)
    del graph
    return count


HANDLES = _handles()
"""Python's references to an input leaf that a record and its graph hold, and nobody else."""


def holders(tensor: Tensor) -> int:
    """How many tensors share its memory, the handle of the question counted."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def uses(tensor: Any) -> int:
    """How many handles and graphs hold the tensor itself; Python's counts as one."""
    return int(tensor._use_count())
