"""Tensors written by safetensors and hashed at the same time, out of memory, instead of read back and hashed after.

The hash needs to know the file's bytes before they are there. So its head is foretold, and afterwards compared with the
one that safetensors wrote: where they differ (another version of the library, say) the file is read and hashed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path

import torch
from safetensors.torch import save_file

from gradledger.core.files import file_digest

# The format's name of each dtype, in the order in which a file holds them: widest elements first, so that each lies at
# a multiple of its size. Among equals the names decide.
_NAMES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_RANKS = {dtype: rank for rank, dtype in enumerate(_NAMES)}


class ChangedError(Exception):
    """Tensors, named in the text, were written by another thread while they were saved: the file is of no one state."""


def save_hashed(tensors: Mapping[str, torch.Tensor], path: Path, pool: Executor) -> Callable[[], str]:
    """Write one safetensors file.

    Args:
        tensors: on the CPU, contiguous, each with a storage of its own.
        pool: has a thread to spare.

    Returns:
        What gives the SHA-256 of the file's bytes, in hexadecimal, and waits for it; it raises ChangedError.

    Raises:
        OSError, SafetensorError: as safetensors raises them.
    """
    foretold = _head_and_order(tensors)
    early: Future[str] | None = None
    if foretold is not None:
        head, order = foretold
        early = pool.submit(_digest, head, [tensors[name] for name in order])
    before = _versions(tensors)
    save_file(dict(tensors), path)
    chosen = early if early is not None and _head_of(path) == head else pool.submit(file_digest, path)

    def digest() -> str:
        done = chosen.result()
        changed = sorted(name for name, now in _versions(tensors).items() if now != before[name])
        if changed:
            raise ChangedError(", ".join(changed))
        return done

    return digest


def _versions(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """How often each was written in place; what was made under inference_mode does not count."""
    return {name: -1 if tensor.is_inference() else tensor._version for name, tensor in tensors.items()}


def _digest(head: bytes, tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256(head)
    for tensor in tensors:
        if tensor.numel():
            digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _head_and_order(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, list[str]] | None:
    """What the file begins with and the order of what follows; None where there is a dtype that is not known here."""
    if any(tensor.dtype not in _NAMES or tensor.is_conj() or tensor.is_neg() for tensor in tensors.values()):
        return None
    order = sorted(tensors, key=lambda name: (_RANKS[tensors[name].dtype], name.encode()))
    entries, end = {}, 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def _head_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.read(8)
        return size + file.read(int.from_bytes(size, "little"))
