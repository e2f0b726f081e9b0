"""The header of a safetensors file: names, dtypes and shapes without reading a tensor, and without torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
TORCH = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file. dtype: by torch's name without `torch.`; bytes: of its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


def read_header(path: Path) -> tuple[Entry, ...]:
    """The tensors of a safetensors file, in the order of its header.

    Raises:
        ValueError: the file is no safetensors file, or its header and its size do not agree; the text says why.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        if len(first) < 8:
            raise ValueError(f"{size} bytes, too few for a header")
        length = int.from_bytes(first, "little")
        if length > size - 8:
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        try:
            header = json.loads(file.read(length))
        except ValueError as cause:
            raise ValueError(f"a header that is no JSON ({cause})") from cause
    if not isinstance(header, dict):
        raise ValueError("a header that is no JSON object")
    entries = []
    for name, told in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (begin, end) = told["dtype"], tuple(int(n) for n in told["shape"]), told["data_offsets"]
            wanted = math.prod(shape) * BYTES[dtype]
        except (KeyError, TypeError, ValueError) as cause:
            raise ValueError(f"{name} is described by {told!r}") from cause
        if end - begin != wanted or begin < 0 or end > size - 8 - length:
            raise ValueError(f"{name}: {end - begin} bytes at {begin} for {dtype} of shape {shape}")
        entries.append(Entry(name, TORCH[dtype], shape, wanted))
    return tuple(entries)
