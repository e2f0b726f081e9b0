"""Digests of tensors: equal values give equal digests, in every process."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

ELEMENTS = 65_536


def digest(tensors: list[torch.Tensor]) -> str:
    """Of the values of CPU tensors (of large ones, evenly spread elements); "" when they cannot be looked at."""
    made = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            return ""
        flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().contiguous().reshape(-1)
        if flat.numel() > ELEMENTS:
            flat = flat[:: flat.numel() // ELEMENTS]
        if flat.is_complex() or flat.is_quantized:
            return ""
        plain = flat.cpu().contiguous()
        made.update(str(tuple(tensor.shape)).encode())
        made.update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return made.hexdigest()


def flat_tensors(batch: Any, depth: int = 0) -> list[torch.Tensor]:
    """Tensors in a batch, in order."""
    if type(batch) is torch.Tensor:
        return [batch]
    parts = list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else []
    return [t for part in parts[:8] for t in flat_tensors(part, depth + 1)] if depth < 3 else []
