"""Videos with PyAV (extra `[video]`): frames in, frames out, and whether a file holds what it should."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data._needs import needs
from gradledger.data.errors import LeRobotError

Frames = NDArray[np.uint8]
# Mean difference of a frame to the one before, in 256ths and over a second, up to which they show one picture. Key
# frames are coded anew, so a camera that stands still drifts by a third; the noise of one that sees gives twice that.
STILL = 0.45


@dataclass(frozen=True)
class Seen:
    """What is in a file. times: of the frames, s. height, width: pixels.

    still: longest run of frames, of a second at least, that show what the one before showed (`STILL`), up to frame
    still_at; 0 where there is none.
    """

    times: tuple[float, ...]
    height: int
    width: int
    still: int
    still_at: int


class Encoder:
    """One mp4 file, frame by frame; time stamps are whole counts of 1 / fps."""

    def __init__(self, path: Path, fps: int, height: int, width: int, *, codec: str = "libx264") -> None:
        """yuv420p halves the colour planes, so both sizes must be even."""
        if height % 2 or width % 2:
            raise LeRobotError(
                got=f"frames of {height} x {width}",
                wanted="even height and width",
                where=str(path),
                next_step="crop or pad one row or column: yuv420p stores colours for 2 x 2 pixels",
            )
        self._av = needs("av", purpose="videos", extra="video")
        self._container = self._av.open(str(path), "w")
        self._stream = self._container.add_stream(codec, rate=fps)
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        self._step = Fraction(1, fps)
        self._stream.time_base = self._stream.codec_context.time_base = self._step
        # Key frames close together: a training loader jumps about.
        self._stream.codec_context.gop_size = 2
        self._stream.options = {"crf": "23", "preset": "veryfast"}
        if codec == "libx264":
            # With it, one file in a hundred of the same small frames has other bytes; two frames are little to plan.
            self._stream.options |= {"x264-params": "mbtree=0:rc-lookahead=0:sync-lookahead=0"}
        self.path, self.frames = path, 0
        self._bytes = 0

    @property
    def megabytes(self) -> float:
        """Written so far."""
        return self._bytes / 2**20

    def add(self, frames: Frames) -> None:
        """Append (T, H, W, 3) bytes, RGB."""
        for picture in frames:
            frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            # Not the stream's own base, which the container replaces once its header is written.
            frame.pts, frame.time_base = self.frames, self._step
            self._mux(self._stream.encode(frame))
            self.frames += 1

    def close(self) -> None:
        """Finish the file."""
        self._mux(self._stream.encode())
        self._container.close()

    def _mux(self, packets: Any) -> None:
        for packet in packets:
            self._bytes += packet.size
            self._container.mux(packet)


def look(path: Path, fps: float) -> Seen:
    """Decode a whole file of so many frames a second.

    Raises:
        LeRobotError: it is no video, or it is cut off.
    """
    times: list[float] = []
    shape: tuple[int, ...] = (0, 0)
    last: Frames | None = None
    second: deque[float] = deque(maxlen=max(2, round(fps)))  # of differences
    still = run = still_at = 0
    for time, picture in _frames(path):
        if last is not None:
            second.append(float(np.abs(picture.astype(np.int16) - last).mean()))
            calm = len(second) == second.maxlen and sum(second) <= STILL * len(second)
            run = (run + 1 if run else len(second)) if calm else 0
        if run > still:
            still, still_at = run, len(times)
        times.append(time)
        last, shape = picture, picture.shape[:2]
    return Seen(tuple(times), shape[0], shape[1], still, still_at)


def read(path: Path, begin: float, count: int, fps: float, *, tolerance: float = 1e-4) -> Frames:
    """Frames of an episode: (count, H, W, 3), RGB, the k-th at begin + k / fps.

    Raises:
        LeRobotError: a frame is not where it should be, within the tolerance in s.
    """
    wanted = [begin + at / fps for at in range(count)]
    found: list[Frames] = []
    for time, picture in _frames(path, begin - 0.5 / fps):
        if abs(time - wanted[len(found)]) <= tolerance:
            found.append(picture)
        if len(found) == count:
            break
    if len(found) < count:
        raise LeRobotError(
            got=f"{len(found)} of {count} frames",
            wanted=f"a frame within {tolerance:g} s of {wanted[len(found)]:.6f} s",
            where=str(path),
            next_step="the video is too short or of another frame rate: run `gradledger data lerobot check`",
        )
    return np.stack(found)


def _frames(path: Path, begin: float = 0.0) -> Iterator[tuple[float, Frames]]:
    """(time, picture) from the key frame at or before `begin`, in s, on."""
    av = needs("av", purpose="videos", extra="video")
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            if begin > 0:
                container.seek(int(begin / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                yield float(frame.pts * stream.time_base), frame.to_ndarray(format="rgb24")
    except (av.error.FFmpegError, IndexError, OSError) as cause:
        raise LeRobotError(
            got=f"{type(cause).__name__}: {cause}",
            wanted="a whole video",
            where=str(path),
            next_step="write it again: it is truncated or no video",
        ) from cause
