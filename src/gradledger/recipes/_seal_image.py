"""Bytes of one crop to its pixels and back, strictly: depth, colours, pitch and turn are read or refused."""

from __future__ import annotations

import io
import math
import re
import struct
import tokenize
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gradledger.core.errors import GradledgerError
from gradledger.data._needs import needs
from gradledger.recipes._seal_physics import PITCH

FORMATS = ("PNG", "JPEG", "PPM")
MM_PER_INCH = 25.4
MOST_PIXELS = 1 << 24  # a file of a few bytes may claim a picture that no memory holds
NPY = b"\x93NUMPY"
END_OF_PNG, END_OF_JPEG = b"\0\0\0\0IEND\xaeB`\x82", b"\xff\xd9"
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
HEAD_OF_PPM = re.compile(rb"P[56]" + _GAP + rb"\d+" + _GAP + rb"\d+" + _GAP + rb"(\d+)\s")
ORIENTATION, ACROSS, DOWN, UNIT, CM = 0x0112, 0x011A, 0x011B, 0x0128, 3  # of EXIF
# What Pillow and numpy raise on bytes that are no picture, found by feeding them such bytes.
BROKEN = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, struct.error,
    tokenize.TokenError, UserWarning, RuntimeWarning,
)  # fmt: skip


class CropError(GradledgerError):
    """Bytes, a picture or a folder that the scout does not take."""

    slug = "crop"


def refused(got: str, wanted: str, where: str, next_step: str = "") -> CropError:
    """The error of this recipe."""
    return CropError(
        got=got, wanted=wanted, where=where, next_step=next_step or "docs/seal_scout.md shows what a crop is"
    )


def encode(image: NDArray[np.uint8], *, pitch: float | None = PITCH) -> bytes:
    """(3, H, W) uint8 as the bytes of a PNG file that declares its pitch."""
    pictures = needs("PIL.Image", purpose="image files")
    out = io.BytesIO()
    more = {} if pitch is None else {"dpi": (MM_PER_INCH / pitch,) * 2}
    pictures.fromarray(np.moveaxis(image, 0, -1).copy()).save(out, format="PNG", **more)
    return out.getvalue()


def decode(raw: bytes, *, where: str, pitch: float | None = None) -> NDArray[np.uint8]:
    """Bytes of a PNG, JPEG or PPM file -> (3, H, W) uint8, red first. Grey becomes three equal channels.

    Args:
        pitch: mm to a pixel; a file that declares another one is refused, one that declares none is taken.

    Raises:
        CropError: no bytes, no picture, a truncated one, bytes behind it, several frames, other than 8 bits RGB or
            grey, transparency, a palette, pixels that are to be turned first, another pitch, or more than MOST_PIXELS.
    """
    pictures = needs("PIL.Image", purpose="image files")
    if not raw:
        raise refused("no bytes", "an image file", where)
    try:
        with warnings.catch_warnings():
            for doubt in (UserWarning, RuntimeWarning):
                warnings.simplefilter("error", doubt)
            with pictures.open(io.BytesIO(raw), formats=FORMATS) as picture:
                for got, wanted in _doubts(picture, raw, pitch):
                    raise refused(got, wanted, where)
                picture.load()
                pixels = np.asarray(picture.convert("RGB"))
    except CropError:
        raise
    except pictures.DecompressionBombError as error:
        raise refused(str(error), f"at most {MOST_PIXELS} pixels", where) from error
    except BROKEN as error:
        # Pillow says that it cannot identify a BytesIO at an address; that is no news to anyone
        said = "no image, or a truncated one" if "identify" in str(error) else str(error)
        raise refused(f"{len(raw)} bytes: {said}", "a whole PNG, JPEG or PPM file", where) from error
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


def _doubts(picture: Any, raw: bytes, pitch: float | None) -> Iterator[tuple[str, str]]:
    """(got, wanted) of what the file says and that is not taken; its size comes first, before a pixel is decoded."""
    width, height = picture.size
    if width * height > MOST_PIXELS:
        yield f"{width} x {height} pixels", f"at most {MOST_PIXELS}"
    if getattr(picture, "n_frames", 1) != 1:
        yield f"{picture.n_frames} frames", "one picture; which of them is the crop is not known"
    deepest = _deepest(picture, raw)
    if picture.mode not in ("RGB", "L") or deepest != 255:
        depth = "" if deepest == 255 else f", levels up to {deepest}"
        yield f"an image of mode {picture.mode}{depth}", "8 bits, RGB or grey"
    if "transparency" in picture.info:
        yield "a transparent colour", "8 bits, RGB or grey, opaque"
    behind = _behind(picture, raw)
    if behind:
        told = f"{behind} of them behind the picture" if behind > 0 else "the picture is truncated"
        yield f"{len(raw)} bytes: {told}", "a whole PNG, JPEG or PPM file, and nothing else in it"
    turned = picture.getexif().get(ORIENTATION, 1)
    if turned != 1:
        yield f"pixels that are to be turned first (EXIF orientation {turned})", "pixels in the order in which they lie"
    declared = _declared(picture)
    if pitch is not None and declared is not None and any(abs(one - pitch) > 0.01 * pitch for one in declared):
        across, down = declared
        each = f"{across:.4g}" if across == down else f"{across:.4g} x {down:.4g}"
        yield f"{each} mm to a pixel", f"{pitch:.4g} mm to a pixel"


def _deepest(picture: Any, raw: bytes) -> int:
    """The highest level that a pixel of the file can have. Pillow makes 8 bits of anything and does not say so."""
    if picture.format == "PNG":
        return int((1 << raw[24]) - 1)  # IHDR is the first chunk: width, height, bits
    head = HEAD_OF_PPM.match(raw) if picture.format == "PPM" else None
    return int(head[1]) if head else 255


def _behind(picture: Any, raw: bytes) -> int:
    """How many bytes lie behind the end of the picture, below 0 where its end is missing: half an upload shows, and two
    files in one."""
    if picture.format == "PPM":
        head, (width, height) = HEAD_OF_PPM.match(raw), picture.size
        return len(raw) - head.end() - width * height * len(picture.getbands()) if head else -1
    end = END_OF_PNG if picture.format == "PNG" else END_OF_JPEG
    # a thumbnail within a JPEG file has an end of its own: there the last one counts
    at = raw.find(end) if picture.format == "PNG" else raw.rfind(end)
    return -1 if at < 0 else len(raw) - at - len(end)


def _declared(picture: Any) -> tuple[float, float] | None:
    """mm to a pixel across and down, where the file says it."""
    info = picture.info
    dpi = info.get("dpi")
    if picture.format == "JPEG":  # its "dpi" is 72 where there is EXIF and no resolution in it
        scale = {1: 1.0, 2: 2.54}.get(info.get("jfif_unit", 0))
        dpi = None if scale is None else [one * scale for one in info["jfif_density"]]
    if dpi is None:
        exif = picture.getexif()
        scale = 2.54 if exif.get(UNIT) == CM else 1.0
        dpi = [float(exif.get(tag, 0)) * scale for tag in (ACROSS, DOWN)]
    if not all(0 < float(one) < math.inf for one in dpi):
        return None
    return MM_PER_INCH / float(dpi[0]), MM_PER_INCH / float(dpi[1])


def unpack(raw: bytes, *, where: str) -> NDArray[Any]:
    """Bytes of a .npy file -> its array. Nothing is allocated that the file does not hold.

    Raises:
        CropError: no header, objects, or another number of bytes than the header says.
    """
    file, wanted = io.BytesIO(raw), "a whole .npy file of numbers, and nothing behind it"
    try:
        version = npy.read_magic(file)
        reads = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in reads:
            raise refused(f"a .npy file of version {version[0]}.{version[1]}", "one of version 1.0 or 2.0", where)
        shape, fortran, dtype = reads[version](file)
    except CropError:
        raise
    except BROKEN as error:
        raise refused(f"a .npy file that cannot be read: {error}", wanted, where) from error
    there, told = len(raw) - file.tell(), math.prod(shape) * dtype.itemsize
    if dtype.hasobject or not dtype.itemsize:
        raise refused(f"a .npy file of {dtype}", wanted, where)
    if there != told:
        raise refused(f"a .npy file with {there} bytes of data, {told} by its header", wanted, where)
    values: NDArray[Any] = np.frombuffer(raw, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if fortran else "C").copy()
