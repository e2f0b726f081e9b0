"""Seal crops with declared physics: a cap on a seal ring under one lamp, as an 8-bit camera above a belt sees it.

Lengths in mm, x to the right and y down, PITCH mm to a pixel. A crop is what the pixels collect of

    albedo(x, y) * light * (1 - gradient * x / half the width) * lamp colour  +  highlight

with edges blurred by the lens and the pixel, shot noise of the electrons, read noise, and 8 bits. The label is the
distance in x of the cap's centre from the ring's, as a gauge read it (GAUGE mm of error, once a cap).

Two faults are planted, as recordings have them. *Leak*: a burst is several frames of one cap, and every TWICE-th burst
was saved twice, under another name. *Shortcut*: the lamp was turned up while caps drifted to the right, so that its
light tells CORRELATION of the offset before a model has looked at an edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

HEIGHT, WIDTH, PITCH = 28, 32, 0.75
RING, CAP = 7.4, 5.6  # outer radii, mm
SPREAD, FARTHEST, GAUGE = 0.5, 1.5, 0.02  # of the offset: standard deviation, bound, error of its reading; mm
LAMP = (1.0, 0.93, 0.82)  # colour of the light, red to blue
LIGHT, SWING, CORRELATION = 0.85, 0.25, 0.8  # middle of the light; standard deviation of its logarithm
ELECTRONS, READ = 8000.0, 12.0  # at grey level 255; read noise
TWICE = 12  # every so many bursts, one was saved a second time
PERIOD, FRAME = 30.0, 0.1  # s from burst to burst, from frame to frame
FIELD = NDArray[np.float64]
# Per line: albedo of cap and ring, red to blue. Only on the first is the cap the brighter of the two.
LINES: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "white cap": ((0.82, 0.80, 0.78), (0.34, 0.33, 0.32)),
    "blue cap": ((0.14, 0.26, 0.58), (0.68, 0.68, 0.66)),
    "black cap": ((0.10, 0.10, 0.11), (0.52, 0.50, 0.46)),
}
BELT = 0.22
CONDITIONS = {"clean": 0.8, "defocused": 0.1, "dirty": 0.1}


@dataclass(frozen=True)
class Scene:
    """One exposure. Lengths in mm, blur in pixels (standard deviation).

    offset: cap's centre from the ring's (x, y). centre: of the ring, from the middle of the crop. waves: (K, 4) of the
    belt: amplitude, two wave numbers in rad/mm, phase. print_: the same of the cap's print, in its own frame. dirt:
    (x, y, radius) of a dark spot, radius 0 where there is none. highlight: strength of the lamp's reflection.
    """

    line: str
    offset: tuple[float, float]
    centre: tuple[float, float]
    blur: float
    light: float
    gradient: float
    highlight: float
    tone: float
    waves: FIELD
    print_: FIELD
    dirt: tuple[float, float, float]


@dataclass(frozen=True)
class Recording:
    """images: (N, 3, H, W) uint8. offset: (N, 1) mm. The rest has one entry a frame; time in s, light without unit."""

    ids: tuple[str, ...]
    images: NDArray[np.uint8]
    offset: NDArray[np.float32]
    burst: tuple[str, ...]
    line: tuple[str, ...]
    condition: tuple[str, ...]
    time: tuple[float, ...]
    light: tuple[float, ...]


def radiance(scene: Scene, *, finer: int = 1) -> FIELD:
    """What reaches the sensor before noise, (3, H * finer, W * finer), 1 at grey level 255.

    finer: samples a pixel along each axis; the blur stays that of the lens and a whole pixel.
    """
    y, x = np.meshgrid(
        (np.arange(HEIGHT * finer) + 0.5) * PITCH / finer - HEIGHT * PITCH / 2,
        (np.arange(WIDTH * finer) + 0.5) * PITCH / finer - WIDTH * PITCH / 2,
        indexing="ij",
    )
    ring_x, ring_y = scene.centre
    cap_x, cap_y = ring_x + scene.offset[0], ring_y + scene.offset[1]
    width = PITCH * math.hypot(scene.blur, math.sqrt(1 / 12))  # a pixel is a box of variance 1/12
    ring = disc(np.hypot(x - ring_x, y - ring_y), RING, width)
    cap = disc(np.hypot(x - cap_x, y - cap_y), CAP, width)
    belt = BELT * (1 + _waves(scene.waves, x, y))
    print_ = 1 + _waves(scene.print_, x - cap_x, y - cap_y)
    of_cap, of_ring = LINES[scene.line]
    shade = 1 - scene.gradient * x / (WIDTH * PITCH / 2)  # the lamp hangs on the left
    # The cap is a dome: the lamp is seen in it as a soft spot towards the lamp, whatever the cap's colour.
    spot = scene.highlight * np.exp(-((x - cap_x + 2.0) ** 2 + (y - cap_y + 1.0) ** 2) / (2 * 0.9**2))
    dirt_x, dirt_y, radius = scene.dirt
    clear = 1 - 0.85 * disc(np.hypot(x - dirt_x, y - dirt_y), radius, width) if radius else np.ones_like(x)
    channels = []
    for colour in range(3):
        albedo = belt * (1 - ring) + of_ring[colour] * scene.tone * ring
        albedo = albedo * (1 - cap) + of_cap[colour] * scene.tone * print_ * cap
        channels.append((albedo * clear + spot * cap) * scene.light * shade * LAMP[colour])
    return np.stack(channels)


def disc(distance: FIELD, radius: float, width: float) -> FIELD:
    """Share of a disc in what a point at `distance` from its centre sees; its edge is blurred by a normal of `width`.

    Exact for a straight edge; for a circle to about (width / radius) / 2 of the edge's height.
    """
    inward = torch.from_numpy((radius - distance) / (math.sqrt(2) * width))
    found: FIELD = (0.5 * (1 + torch.erf(inward))).numpy()
    return found


def sense(arriving: FIELD, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The camera: shot noise, read noise, 8 bits, saturation."""
    electrons = np.clip(arriving, 0, None) * ELECTRONS
    noise = rng.normal(size=arriving.shape) * np.sqrt(electrons + READ**2)
    return np.clip(np.round((electrons + noise) * (255 / ELECTRONS)), 0, 255).astype(np.uint8)


def scenes(bursts: int, rng: np.random.Generator) -> Iterator[tuple[Scene, str, float]]:
    """One cap after the other: (scene of its first frame, condition, offset as the gauge read it)."""
    drift = rng.normal()
    for number in range(bursts):
        line = tuple(LINES)[number % len(LINES)]
        condition = str(rng.choice(list(CONDITIONS), p=list(CONDITIONS.values())))
        offset = float(np.clip(rng.normal(0, SPREAD), -FARTHEST, FARTHEST))
        drift = 0.9 * drift + math.sqrt(1 - 0.9**2) * rng.normal()
        told = CORRELATION * offset / SPREAD + math.sqrt(1 - CORRELATION**2) * drift
        angle, radius = rng.uniform(0, 2 * math.pi), rng.uniform(1.2, 2.0)
        dirt = (CAP * math.cos(angle), CAP * math.sin(angle), radius if condition == "dirty" else 0.0)
        yield (
            Scene(
                line=line,
                offset=(offset, float(rng.normal(0, 0.25))),
                centre=(float(rng.uniform(-0.6, 0.6)), float(rng.uniform(-0.6, 0.6))),
                blur=float(rng.uniform(1.7, 2.7) if condition == "defocused" else rng.uniform(0.4, 0.9)),
                light=LIGHT * math.exp(SWING * told),
                gradient=float(rng.uniform(0.1, 0.3)),
                highlight=float(rng.uniform(0.0, 0.25)),
                tone=float(rng.uniform(0.88, 1.12)),
                waves=_drawn(rng, 4, 0.25, 1.5),
                print_=_drawn(rng, 3, 0.05, 1.2),
                dirt=dirt,
            ),
            condition,
            offset + float(rng.normal(0, GAUGE)),
        )


def record(bursts: int, frames: int, rng_seed: int) -> Recording:
    """Film `bursts` caps, `frames` pictures each, under `rng_seed`, with both planted faults.

    Frames of a burst differ in noise and in the belt's vibration (0.15 mm); their label is one reading.
    """
    rng = np.random.default_rng(rng_seed)
    rows: list[tuple[str, NDArray[np.uint8], float, str, str, str, float, float]] = []
    for number, (scene, condition, read) in enumerate(scenes(bursts, rng)):
        name = f"b{number:04d}"
        for frame in range(frames):
            x, y = (float(one) for one in np.array(scene.centre) + rng.normal(0, 0.15, 2))
            image = sense(radiance(replace(scene, centre=(x, y))), rng)
            time = number * PERIOD + frame * FRAME
            rows.append((f"{name}-{frame}", image, read, name, scene.line, condition, time, scene.light))
    for name, image, read, burst, line, condition, time, light in list(rows):
        if int(burst[1:]) % TWICE == 0:  # saved again: one grey level here and there is another
            again = np.clip(image.astype(np.int16) + (rng.random(image.shape) < 0.05), 0, 255).astype(np.uint8)
            later = bursts * PERIOD + time
            rows.append((f"r{name[1:]}", again, read, f"r{burst[1:]}", line, condition, later, light))
    ids, images, offsets, names, lines, conditions, times, lights = zip(*rows, strict=True)
    offset = np.array(offsets, dtype=np.float32)[:, None]
    return Recording(ids, np.stack(images), offset, names, lines, conditions, times, lights)


def relit(images: NDArray[np.uint8], gains: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The same crops under a lamp `gains` times as bright, (N,): the counterfactual that real crops allow too."""
    return np.clip(np.round(images * gains[:, None, None, None]), 0, 255).astype(np.uint8)


def _waves(waves: FIELD, x: FIELD, y: FIELD) -> FIELD:
    total = np.zeros_like(x)
    for amplitude, along, down, phase in waves:
        total += amplitude * np.sin(along * x + down * y + phase)
    return total


def _drawn(rng: np.random.Generator, count: int, amplitude: float, number: float) -> FIELD:
    return np.stack(
        [
            rng.uniform(0.3, 1.0, count) * amplitude / math.sqrt(count),
            rng.uniform(-number, number, count),
            rng.uniform(-number, number, count),
            rng.uniform(0, 2 * math.pi, count),
        ],
        axis=1,
    )
