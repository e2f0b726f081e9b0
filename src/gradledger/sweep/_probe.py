"""What a gradient check compared and found: frozen records with a readable text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["equal", "wrong", "cut", "kink"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One compared derivative.

    Attributes:
        name: of the parameter, or ``x`` with the path of an entry of the data.
        index: of the entry; None: the derivative along a random unit direction over all entries.
        analytic: what the reverse pass gave.
        numeric: the central difference (at the smallest step that was tried).
        error: ``|analytic - numeric|`` relative to the larger of the two, never to less than ``floor / tolerance``.
        verdict: ``equal``; ``wrong``; ``cut``: the loss moves, but no gradient arrived at all; ``kink``: the loss has a
            corner or a jump at, or within a step of, this point and `analytic` lies between the one-sided slopes.
        sides: the slopes to the left and right, where they were asked for.
    """

    name: str
    index: tuple[int, ...] | None
    analytic: float
    numeric: float
    error: float
    verdict: Verdict
    sides: tuple[float, float] | None = None

    def __str__(self) -> str:
        at = "along a direction" if self.index is None else f"[{', '.join(map(str, self.index))}]"
        text = f"{self.name} {at}: analytic {self.analytic:.9g}, numeric {self.numeric:.9g}, error {self.error:.2g}"
        if self.verdict == "cut":
            text += " — no gradient arrived, yet the loss moves: detach(), no_grad() or a rounding cuts the graph"
        if self.verdict == "kink" and self.sides is not None:
            text += f" — slopes {self.sides[0]:.6g} to the left and {self.sides[1]:.6g} to the right"
        return text


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """What `check_gradients` found. Truth value and `passed`: nothing is wrong and nothing is cut.

    Attributes:
        loss: its value in float64 (named losses added up).
        probes: every compared derivative, in order.
        epsilon, tolerance, floor: as declared: step, relative tolerance, absolute tolerance.
    """

    loss: float
    probes: tuple[Probe, ...]
    epsilon: float
    tolerance: float
    floor: float

    @property
    def worst(self) -> Probe:
        """The largest error: among what failed if anything did, else among what agrees."""
        of = self.failed or tuple(p for p in self.probes if p.verdict == "equal") or self.probes
        return max(of, key=lambda probe: probe.error)

    @property
    def failed(self) -> tuple[Probe, ...]:
        """What is wrong or cut."""
        return tuple(p for p in self.probes if p.verdict in ("wrong", "cut"))

    @property
    def kinks(self) -> tuple[Probe, ...]:
        """Where the loss has no derivative, and the gradient is one of the slopes between."""
        return tuple(p for p in self.probes if p.verdict == "kink")

    @property
    def passed(self) -> bool:
        """Whether every derivative that exists was met."""
        return not self.failed

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        counts = f"{len(self.probes)} derivatives, {len(self.failed)} wrong, {len(self.kinks)} at a kink"
        declared = f"step {self.epsilon:g}, tolerance {self.tolerance:g} (absolute {self.floor:.2g})"
        lines = [
            f"gradient check {'passed' if self.passed else 'FAILED'}: {counts}",
            f"loss {self.loss:.9g} in float64, {declared}",
            "",
            f"{'parameter':<40} {'compared':>8} {'wrong':>6} {'kinks':>6} {'worst':>9}",
        ]
        for name in dict.fromkeys(probe.name for probe in self.probes):
            own = [p for p in self.probes if p.name == name]
            wrong = sum(p.verdict in ("wrong", "cut") for p in own)
            kinks = sum(p.verdict == "kink" for p in own)
            error = max((p.error for p in own if p.verdict != "kink"), default=0.0)
            lines.append(f"{_cut(name, 40):<40} {len(own):>8} {wrong:>6} {kinks:>6} {error:>9.1e}")
        lines += ["", f"worst: {self.worst}"]
        for title, found in (("wrong", self.failed), ("kink", self.kinks)):
            lines += [f"{title}: {probe}" for probe in found[:8] if probe is not self.worst]
            lines += [f"{title}: … and {len(found) - 8} more"] if len(found) > 8 else []
        return "\n".join(lines)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[1 - width :]
