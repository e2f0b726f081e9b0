"""Pictures of the planar arm: losses of every seed, errors over the workspace, the worst cases drawn as arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.evidence.record import Attempt

CURVES, ERRORS = "curves.png", "errors.png"


def draw(out: Path, attempts: Sequence[Attempt], kept: Mapping[str, NDArray[Any]]) -> dict[str, str | None]:
    """Draw what can be drawn: file -> why it is not there, None where it is.

    Args:
        attempts: finished trials. kept: arrays of one of them (pose, joints, said).
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return dict.fromkeys((CURVES, ERRORS), "matplotlib is not installed")
    _curves(Figure(figsize=(8, 4.5), layout="constrained"), attempts).savefig(out / CURVES, dpi=120)
    _errors(Figure(figsize=(10, 4.5), layout="constrained"), kept).savefig(out / ERRORS, dpi=120)
    return {CURVES: None, ERRORS: None}


def _curves(figure: Any, attempts: Sequence[Attempt]) -> Any:
    axes = figure.subplots()
    arms = list(dict.fromkeys(one.trial.arm for one in attempts))
    styles = dict(zip(arms, ("-", "--", ":", "-."), strict=False))
    for number, one in enumerate(attempts):
        losses = (one.quantities or {}).get("losses", [])
        label = one.trial.arm if one.trial.arm not in [a.trial.arm for a in attempts[:number]] else None
        colour = f"C{one.trial.rng_seed % 10}"
        axes.plot(
            np.arange(1, len(losses) + 1), losses, styles.get(one.trial.arm, "-"), color=colour, label=label, lw=1
        )
    axes.set(yscale="log", xlabel="epoch", ylabel="training loss, rad² (mean over the epoch)")
    axes.set_title("One colour a seed; lines of the engines lie on each other")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def _errors(figure: Any, kept: Mapping[str, NDArray[Any]]) -> Any:
    pose, joints, said = (np.asarray(kept[name], dtype=float) for name in ("pose", "joints", "said"))
    reached, wanted = _hand(said), pose[:, :2]
    away = np.linalg.norm(reached - wanted, axis=1)
    left, right = figure.subplots(1, 2)
    points = left.scatter(wanted[:, 0], wanted[:, 1], c=away, s=6, cmap="viridis", vmax=np.quantile(away, 0.99))
    figure.colorbar(points, ax=left, label="distance of the hand from the target, m")
    left.set(aspect="equal", xlabel="x, m", ylabel="y, m", title=f"{len(away)} held-out targets")
    for rank, worst in enumerate(np.argsort(-away)[:4]):
        right.plot(*_arm(joints[worst]), "o-", color=f"C{rank}", lw=2, ms=3, label=f"{away[worst]:.2f} m off")
        right.plot(*_arm(said[worst]), "o--", color=f"C{rank}", lw=1, ms=3)
    right.set(aspect="equal", xlabel="x, m", ylabel="y, m", title="The four worst: asked (solid), said (dashed)")
    right.legend(fontsize=8)
    return figure


def _arm(joints: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(3,) joints -> x and y of base, two elbows and hand."""
    angles = np.cumsum(joints)
    return np.append(0, np.cumsum(np.cos(angles))), np.append(0, np.cumsum(np.sin(angles)))


def _hand(joints: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 3) joints -> (N, 2) position of the hand."""
    angles = np.cumsum(joints, axis=1)
    return np.stack([np.cos(angles).sum(1), np.sin(angles).sum(1)], axis=1)
