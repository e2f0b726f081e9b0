"""Renders an episode in a process of its own, since which OpenGL there is decides itself when MuJoCo is imported.

    MUJOCO_GL=egl python -m gradledger.recipes._arm6_film EPISODE.npz STRIP.png FILM.gif

The npz holds joints (T + 1, 6) rad, target (3,) m, steps (K,) of the strip.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BACKENDS = ("egl", "osmesa")  # without a screen
SIZE, EVERY = 240, 2  # pixels of a side; one step in so many is in the film
SECONDS = 300


def render(joints: NDArray[np.float64], target: NDArray[np.float64], steps: Sequence[int], out: Path) -> str | None:
    """Write `episode.png` and `episode.gif` into a folder; why not, None where they are there.

    Args:
        joints: (T + 1, 6) rad. target: (3,) m. steps: the pictures of the strip.
    """
    said = ""
    with tempfile.TemporaryDirectory() as scratch:
        episode = Path(scratch) / "episode.npz"
        np.savez(episode, joints=joints, target=target, steps=np.asarray(steps))
        made = [Path(scratch) / name for name in ("episode.png", "episode.gif")]
        for backend in dict.fromkeys((os.environ.get("MUJOCO_GL", BACKENDS[0]), *BACKENDS)):
            words = [sys.executable, "-m", __name__ if __name__ != "__main__" else "gradledger.recipes._arm6_film"]
            try:
                done = subprocess.run(
                    [*words, str(episode), *map(str, made)],
                    env={**os.environ, "MUJOCO_GL": backend},
                    capture_output=True,
                    text=True,
                    timeout=SECONDS,
                )
            except subprocess.TimeoutExpired:
                said += f"{backend}: longer than {SECONDS} s; "
                continue
            if done.returncode == 0 and all(path.exists() for path in made):
                for path in made:
                    (out / path.name).write_bytes(path.read_bytes())
                return None
            said += f"{backend}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}; "
    return f"no renderer: {said}drawn as lines"


def main(words: Sequence[str]) -> None:
    """The process."""
    from PIL import Image

    from gradledger.recipes._arm6_env import Arm6Env

    episode = np.load(words[0])
    arm, frames = Arm6Env(render_mode="rgb_array", size=SIZE), {}
    arm.reset(seed=0, options={"target": episode["target"]})
    for step in sorted({*range(0, len(episode["joints"]), EVERY), *episode["steps"].tolist()}):
        arm.place(episode["joints"][step])
        frames[step] = arm.render()
    arm.close()
    Image.fromarray(np.concatenate([frames[step] for step in episode["steps"]], axis=1)).save(words[1])
    film = [Image.fromarray(frame).quantize(64) for step, frame in frames.items() if step % EVERY == 0]
    film[0].save(words[2], save_all=True, append_images=film[1:], duration=50 * EVERY, loop=0)


if __name__ == "__main__":
    main(sys.argv[1:])
