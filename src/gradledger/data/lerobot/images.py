"""Pictures inside the data files: one PNG a frame in a column {bytes, path}, decoded with pillow.

Lossless, where a video is not; and each frame by itself, where a video has to be decoded from a key frame on.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data._needs import needs
from gradledger.data.errors import LeRobotError

Frames = NDArray[np.uint8]


def arrow_type() -> Any:
    """The published layout of a picture in a table."""
    arrow = needs("pyarrow", purpose="LeRobot data sets")
    return arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])


def metadata(names: list[str]) -> dict[str, str]:
    """What tells the readers of published data sets that these columns are pictures."""
    return {"huggingface": json.dumps({"info": {"features": {name: {"_type": "Image"} for name in names}}})}


def encode(frames: Frames) -> Any:
    """(T, H, W, 3) bytes as an Arrow array of PNGs; the path is a name only, as published."""
    arrow = needs("pyarrow", purpose="LeRobot data sets")
    image = needs("PIL.Image", purpose="pictures")
    rows = []
    for number, picture in enumerate(frames):
        held = io.BytesIO()
        image.fromarray(np.ascontiguousarray(picture)).save(held, "png")
        rows.append({"bytes": held.getvalue(), "path": f"frame-{number:06d}.png"})
    return arrow.array(rows, arrow_type())


def wrong_layout(column: Any) -> str | None:
    """Why a column holds no pictures, or None; the pictures themselves are not looked at."""
    types = needs("pyarrow.types", purpose="LeRobot data sets")
    kind = column.type
    if not types.is_struct(kind) or not {"bytes", "path"} <= {field.name for field in kind}:
        return f"is {kind}, not a struct of bytes and path"
    lost = needs("pyarrow.compute", purpose="LeRobot data sets").struct_field(column, "bytes").null_count
    return f"has {lost} empty pictures" if lost else None


def held(column: Any) -> list[bytes]:
    """The files of a column, one a frame; a column that `wrong_layout` let pass."""
    return [row["bytes"] for row in column.to_pylist()]


def decode(data: bytes, where: str) -> Frames:
    """One picture, (H, W, 3) RGB bytes.

    Raises:
        LeRobotError: it is none, or it is cut off.
    """
    image = needs("PIL.Image", purpose="pictures")
    try:
        with image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB"))
    except Exception as cause:  # pillow raises errors of many kinds for damaged files
        raise LeRobotError(
            got=f"{type(cause).__name__}: {cause}",
            wanted="a whole picture",
            where=where,
            next_step="write the folder again: this frame is damaged",
        ) from cause


def problems(files: list[bytes], shape: tuple[int, ...], fps: float) -> list[str]:
    """What is wrong with pictures that stand one after the other: damaged, of another size, or all the same."""
    found: list[str] = []
    last: Frames | None = None
    run = longest = longest_at = 0
    for number, data in enumerate(files):
        try:
            picture = decode(data, "")
        except LeRobotError as error:
            return [*found, f"frame {number} is no whole picture ({error.got})"]
        size = picture.shape[:2]
        # Published features name the axes in either order.
        if size not in (tuple(shape[:2]), tuple(shape[1:])) and not found:
            found.append(f"frame {number} is {size[0]} x {size[1]}, the feature says {list(shape)}")
        run = run + 1 if last is not None and np.array_equal(picture, last) else 0
        if run > longest:
            longest, longest_at = run, number
        last = picture
    if longest >= max(2, fps):
        found.append(f"{longest + 1} equal frames up to frame {longest_at}: the camera was frozen")
    return found
