"""What callers get wrong about a crop: one good crop made bad in every way that is to be refused, by name."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from gradledger.data._needs import needs
from gradledger.recipes._seal_image import MM_PER_INCH, ORIENTATION, encode

TURNED = 6  # of EXIF: a quarter turn


def malformed(good: NDArray[np.uint8], pitch: float | None) -> dict[str, bytes]:
    """Bytes by what is wrong with them, made from one good crop (3, H, W); each is to be refused.

    Args:
        pitch: mm to a pixel that good files declare; None: nothing is declared, and nothing about it can be wrong.
    """
    return {**_cut(good, pitch), **_arrays(good), **_pictures(good), **_pitches(good, pitch)}


def _cut(good: NDArray[np.uint8], pitch: float | None) -> dict[str, bytes]:
    """Files that are not whole, or more than one."""
    png, array = encode(good, pitch=pitch), _npy(good)
    header = io.BytesIO()
    npy_format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**15,)})
    return {
        "empty file": b"",
        "truncated file": png[: len(png) // 2],
        "file without its last bytes": png[:-4],
        "two files in one": png + png,
        "one bit of a pixel turned": png[:100] + bytes([png[100] ^ 1]) + png[101:],
        "truncated array": array[:-7],
        "a header that promises a petabyte": header.getvalue(),
        "no image": b"file,offset_mm\n",
    }


def _arrays(good: NDArray[np.uint8]) -> dict[str, bytes]:
    """Whole .npy files of something else."""
    unit = (good / 255).astype(np.float32)
    holes = unit.copy()
    holes[0, 0, 0] = np.nan
    found: dict[str, NDArray[Any]] = {
        "floats in [0, 1]": unit,
        "floats 0 to 255": good.astype(np.float32),
        "NaN in one pixel": holes,
        "64-bit whole numbers": good.astype(np.int64),
        "channels last": np.moveaxis(good, 0, -1).copy(),
        "height and width swapped": np.swapaxes(good, 1, 2).copy(),
        "one channel": good[:1],
        "a batch of batches": good[None],
        "empty array": good[:, :0],
        "a number": np.array(7, dtype=np.uint8),
        "half the size": good[:, ::2, ::2].copy(),
        "one grey level": np.full_like(good, 90),
    }
    return {name: _npy(array) for name, array in found.items()}


def _pictures(good: NDArray[np.uint8]) -> dict[str, bytes]:
    """Whole pictures, of which a decoder would make 8 bits RGB without a word."""
    pictures = needs("PIL.Image", purpose="image files")
    pixels = np.moveaxis(good, 0, -1).copy()
    picture, deep = pictures.fromarray(pixels), pixels.astype(">u2") * 257
    height, width = good.shape[1:]
    turned = pictures.Exif()
    turned[ORIENTATION] = TURNED
    later = [pictures.fromarray(np.roll(pixels, k, axis=1)) for k in (1, 2)]
    return {
        "an animation": _saved(picture, "PNG", save_all=True, append_images=later),
        "another kind of file": _saved(picture, "GIF"),
        "sixteen bits, grey": _saved(pictures.fromarray(deep[..., 0].astype(np.uint16)), "PNG"),
        "sixteen bits, RGB": b"P6 %d %d 65535\n" % (width, height) + deep.tobytes(),
        "CMYK": _saved(picture.convert("CMYK"), "JPEG"),
        "with a palette": _saved(picture.quantize(32), "PNG"),
        "with a transparent colour": _saved(picture, "PNG", transparency=(1, 2, 3)),
        "turned by its EXIF": _saved(picture, "JPEG", exif=turned),
    }


def _pitches(good: NDArray[np.uint8], pitch: float | None) -> dict[str, bytes]:
    """Good pictures of pixels of another size."""
    if pitch is None:
        return {}
    pictures, dpi = needs("PIL.Image", purpose="image files"), MM_PER_INCH / pitch
    oblong = pictures.fromarray(np.moveaxis(good, 0, -1).copy())
    return {
        "pixels in another unit": encode(good, pitch=pitch / 1000),
        "pixels that are not square": _saved(oblong, "PNG", dpi=(dpi, 2 * dpi)),
    }


def _npy(array: NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def _saved(picture: Any, kind: str, **more: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, format=kind, **more)
    return out.getvalue()
