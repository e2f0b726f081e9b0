"""Bytes of a crop: what is taken comes out as it went in, what is doubtful is refused, and nothing else is raised."""

from __future__ import annotations

import io
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from gradledger.cli import _app
from gradledger.cli.commands import predict_image
from gradledger.recipes import _seal_image as images
from gradledger.recipes import _seal_physics as physics
from gradledger.recipes._seal_malformed import malformed

GOOD = physics.record(1, 1, 9).images[0]
PICTURE = Image.fromarray(np.moveaxis(GOOD, 0, -1).copy())
DPI = 25.4 / physics.PITCH


def saved(picture: Image.Image, kind: str, **more: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **more)
    return out.getvalue()


def npy(array: NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def exif(**tags: Any) -> Image.Exif:
    made = Image.Exif()
    for name, value in tags.items():
        made[{"orientation": 0x0112, "across": 0x011A, "down": 0x011B, "unit": 0x0128}[name]] = value
    return made


def taken(raw: bytes) -> NDArray[Any]:
    """As the path of the scout takes it."""
    if raw.startswith(images.NPY):
        return images.unpack(raw, where="a file")
    return images.decode(raw, where="a file", pitch=physics.PITCH)


LOSSLESS = {
    "declares its pitch": images.encode(GOOD),
    "declares nothing": images.encode(GOOD, pitch=None),
    "upright by its EXIF": saved(PICTURE, "PNG", exif=exif(orientation=1)),
    "its pitch in EXIF, dots to a cm": saved(PICTURE, "PNG", exif=exif(across=DPI / 2.54, down=DPI / 2.54, unit=3)),
    "PPM": saved(PICTURE, "PPM"),
    "PPM with a remark": b"P6\n# a belt\n32 28 # pixels\n255\n" + np.moveaxis(GOOD, 0, -1).tobytes(),
    "array": npy(GOOD),
    "array, first axis quickest": npy(np.asfortranarray(GOOD)),
}
LOSSY = {
    "JPEG": saved(PICTURE, "JPEG", quality=98, subsampling=0),
    "JPEG with a pitch": saved(PICTURE, "JPEG", quality=98, subsampling=0, dpi=(34, 34)),
    "JPEG with EXIF, no pitch in it": saved(PICTURE, "JPEG", quality=98, subsampling=0, exif=exif(orientation=1)),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_good_file_comes_out_as_it_went_in(name: str) -> None:
    found = taken(LOSSLESS[name])
    assert np.array_equal(found, GOOD)
    assert found.flags.writeable
    assert found.dtype == np.uint8


@pytest.mark.parametrize("name", LOSSY)
def test_a_jpeg_is_near_and_a_72_that_nobody_wrote_is_no_pitch(name: str) -> None:
    away = np.abs(taken(LOSSY[name]).astype(int) - GOOD)
    assert away.mean() < 2


def test_grey_is_three_equal_channels() -> None:
    grey = PICTURE.convert("L")
    found = taken(saved(grey, "PNG"))
    assert all(np.array_equal(channel, np.asarray(grey)) for channel in found)


REFUSED = {
    "no bytes": (b"", "no bytes"),
    "no picture": (b"hello", "5 bytes: no image"),
    "an animation": (saved(PICTURE, "PNG", save_all=True, append_images=[PICTURE.rotate(9)]), "2 frames"),
    "a JPEG file of several": (saved(PICTURE, "MPO", save_all=True, append_images=[PICTURE]), "2 frames"),
    "sixteen bits, RGB": (b"P6 32 28 65535\n" + bytes(6 * 28 * 32), "levels up to 65535"),
    "five bits": (b"P6 32 28 31\n" + bytes(3 * 28 * 32), "levels up to 31"),
    "two levels": (saved(PICTURE.convert("1"), "PNG"), "mode 1"),
    "with alpha": (saved(PICTURE.convert("RGBA"), "PNG"), "mode RGBA"),
    "transparent": (saved(PICTURE, "PNG", transparency=(1, 2, 3)), "a transparent colour"),
    "a quarter turn": (saved(PICTURE, "JPEG", exif=exif(orientation=6)), "EXIF orientation 6"),
    "upside down": (saved(PICTURE, "PNG", exif=exif(orientation=3)), "EXIF orientation 3"),
    "cut short": (images.encode(GOOD)[:-4], "the picture is truncated"),
    "text behind": (images.encode(GOOD) + b"\n\n", "2 of them behind the picture"),
    "JPEG cut short": (LOSSY["JPEG"][:-2], "truncated"),
    "PPM cut short": (LOSSLESS["PPM"][:-3], "truncated"),
    "two PPM": (2 * LOSSLESS["PPM"], "of them behind the picture"),
    "inches": (images.encode(GOOD, pitch=physics.PITCH * 25.4), "19.23 mm to a pixel"),
    "JPEG, dots to a cm": (saved(PICTURE, "JPEG", dpi=(86, 86)), "0.2953 mm to a pixel"),
    "EXIF in another pitch": (saved(PICTURE, "PNG", exif=exif(across=86.0, down=86.0)), "0.2953 mm to a pixel"),
    "oblong pixels": (saved(PICTURE, "PNG", dpi=(DPI, 2 * DPI)), "0.7502 x 0.375 mm to a pixel"),
    "many pixels": (saved(Image.new("L", (5000, 5000)), "PNG"), "5000 x 5000 pixels"),
    "objects": (npy(np.array([{}], dtype=object)), "a .npy file of object"),
    "cut array": (npy(GOOD)[:-7], "2681 bytes of data, 2688 by its header"),
    "behind an array": (npy(GOOD) + b"x", "2689 bytes of data"),
    "head of an array": (npy(GOOD)[:30], "cannot be read"),
    "array of the future": (b"\x93NUMPY\x09\x00" + npy(GOOD)[8:], "version 9.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_doubtful_is_refused_with_the_reason(name: str) -> None:
    raw, reason = REFUSED[name]
    with pytest.raises(images.CropError) as told:
        taken(raw)
    assert reason in told.value.got, told.value.got
    assert told.value.where == "a file"


def test_a_picture_that_is_too_large_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytearray(images.encode(GOOD))
    for width in (5000, 60_000):  # within what Pillow warns of, and beyond what it opens
        raw[16:24] = width.to_bytes(4, "big") * 2
        raw[29:33] = zlib.crc32(raw[12:29]).to_bytes(4, "big")
        monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
        with pytest.raises(images.CropError, match="16777216"):
            taken(bytes(raw))


def test_damaged_bytes_are_refused_or_taken_and_nothing_else_is_raised() -> None:
    """Bytes changed, left out and put in; in half of the PNG files every chunk's sum is made right again, so that the
    damage gets as far as it can."""
    good, rng, said = [*LOSSLESS.values(), *LOSSY.values()], np.random.default_rng(0), Counter[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3000):
            raw = bytearray(good[int(rng.integers(len(good)))])
            for _ in range(int(rng.integers(1, 6))):
                at = int(rng.integers(min(len(raw), 200 if rng.random() < 0.6 else len(raw))))
                kind, size = int(rng.integers(3)), int(rng.integers(1, 9))
                raw[at : at + (1 if kind == 0 else size if kind == 1 else 0)] = rng.bytes((1, 0, size)[kind])
            fed = bytes(raw)
            if fed.startswith(b"\x89PNG") and rng.random() < 0.5:
                fed = with_right_sums(fed)
            try:
                taken(fed)
            except images.CropError:
                said["refused"] += 1
            else:
                said["taken"] += 1
    assert said["refused"] > 1500
    assert said["taken"] > 100  # a JPEG file and an array have no sums


def with_right_sums(png: bytes) -> bytes:
    out, at = png[:8], 8
    while at + 12 <= len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        body = png[at + 4 : at + 8 + size]
        if at + 12 + size > len(png):
            break
        out, at = out + png[at : at + 4] + body + zlib.crc32(body).to_bytes(4, "big"), at + 12 + size
    return out + png[at:]


@pytest.mark.parametrize("pitch", [physics.PITCH, None])
def test_malformed_crops_are_made_of_any_good_one(pitch: float | None) -> None:
    found = malformed(GOOD, pitch)
    assert len(found) == (30 if pitch else 28)
    assert len(set(found.values())) == len(found)


def test_a_path_that_is_no_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    monkeypatch.setattr(predict_image, "LARGEST", 1000)
    (tmp_path / "large").write_bytes(bytes(1001))
    for name, wanted in {
        "a": "Too many levels of symbolic links",
        ".": "Is a directory",
        "none": "No such file",
        "large": "more than 1000 bytes",
        "/dev/zero": "more than 1000 bytes",
    }.items():
        said = CliRunner().invoke(_app.build(), ["predict-image", str(tmp_path / name), "--bundle", str(tmp_path)])
        assert wanted in str(said.exception), said.exception
