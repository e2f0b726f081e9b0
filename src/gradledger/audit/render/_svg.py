"""Pictures as inline SVG: the life of a gradient mark by mark, the whole run as a strip, curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gradledger.audit._bins import Curve, States
from gradledger.audit._phrases import number
from gradledger.audit.render._html import Raw, el, join
from gradledger.audit.story import Lane, Mark

COLUMN, GAP = 52, 14  # of one mark; between iterations
CELL, PITCH, MOST_CELLS = 12, 14, 6
TOP = 30  # above the highest stack
WORDS = {
    "fresh": "step used one pass",
    "several": "step used several passes, none used before",
    "old": "step used gradients that an earlier step had used",
    "empty": "step found no gradient",
}


def timeline(lane: Lane, iterations: Sequence[int], marked: set[tuple[str, int]]) -> Raw:
    """What stands in the gradients of a lane, mark by mark; lines in `marked` are set in bold."""
    x = 8
    highest = max((min(m.standing, MOST_CELLS) for i in iterations for m in lane.iterations[i]), default=1)
    base = TOP + max(highest, 2) * PITCH  # where stacks stand
    parts: list[Raw] = []
    for iteration in iterations:
        marks = lane.iterations[iteration]
        width = COLUMN * len(marks)
        parts.append(el("text", f"iteration {iteration}", x=x, y=14, class_="t-head"))
        parts.append(el("line", x1=x, x2=x + width - 6, y1=20, y2=20, class_="t-rule"))
        for position, mark in enumerate(marks):
            parts.append(_mark(mark, x + position * COLUMN, base, mark.site.key() in marked))
        x += width + GAP
    width = max(x - GAP + 8, 120)
    parts.append(el("line", x1=4, x2=width - 4, y1=base + 1, y2=base + 1, class_="t-base"))
    label = f"{lane.label}: " + "; ".join(
        f"iteration {i}: " + ", ".join(_words(m) for m in lane.iterations[i]) for i in iterations
    )
    height = base + 36
    return el(
        "svg", parts, viewBox=f"0 0 {width} {height}", width=width, height=height, role="img", aria_label=label
    )  # fmt: skip


def _mark(mark: Mark, x: int, base: int, bold: bool) -> Raw:
    parts: list[Raw] = []
    shown = min(mark.standing, MOST_CELLS)
    for level in range(shown):
        old = level < mark.old
        y = base - (level + 1) * PITCH + 2
        parts.append(el("rect", x=x + 10, y=y, width=CELL + 8, height=CELL, rx=2, class_="c-old" if old else "c-new"))
        if old:
            parts.append(el("path", d=f"M{x + 12} {y + CELL - 2}l8 -8M{x + 19} {y + CELL - 2}l8 -8", class_="c-hatch"))
    if mark.standing > MOST_CELLS:
        parts.append(el("text", f"{mark.standing}", x=x + 33, y=base - (shown - 1) * PITCH - 3, class_="t-small"))
    if mark.standing == 0:
        parts.append(el("rect", x=x + 10, y=base - PITCH + 2, width=CELL + 8, height=CELL, rx=2, class_="c-none"))
    strong = " t-bold" if bold else ""
    parts.append(el("text", mark.what, x=x + 20, y=base + 15, class_=f"t-mark t-{mark.what}{strong}"))
    line = f"line {mark.site.line}" if mark.site.file else "unseen"
    parts.append(el("text", line, x=x + 20, y=base + 29, class_=f"t-small{strong}"))
    return el("g", el("title", _words(mark)), parts)


def _words(mark: Mark) -> str:
    at = f" on line {mark.site.line}" if mark.site.file else ""
    part = "" if mark.share in (0.0, 1.0) else f" ({mark.share:.0%} of the tensors)"
    if mark.what == "step":
        stands = f"{mark.standing} contribution{'s' if mark.standing != 1 else ''}"
        return f"step{at} uses {stands}" + (f", {mark.old} of them used before" if mark.old else "") + part
    if mark.what == "clear" and mark.share == 0:
        return f"clear{at} finds nothing to clear"
    return f"{mark.what}{at}{part}, {mark.standing} standing"


def strip(lane: Lane) -> Raw:
    """The steps of the whole run: in each bin the shares of what they used."""
    bins = lane.states.bins()
    if not bins:
        return Raw("")
    first, last = bins[0][0], lane.states.last + 1
    span = max(last - first, 1)
    parts: list[Raw] = []
    ends = [at for at, _ in bins[1:]] + [last]  # iterations left out are like those before them
    for (at, counts), end in zip(bins, ends, strict=True):
        total = sum(counts.values())
        y = 0.0
        for word in ("old", "empty", "several", "fresh"):
            if counts[word]:
                height = 28 * counts[word] / total
                x, w = 1000 * (at - first) / span, 1000 * (end - at) / span
                parts.append(
                    el(
                        "rect",
                        x=round(x, 2),
                        y=round(y, 2),
                        width=round(w + 0.4, 2),
                        height=round(height, 2),
                        class_=f"s-{word}",
                    )
                )
                if word == "old":  # told apart without colour too; level lines, for the picture is stretched
                    rows = "".join(f"M{x:.2f} {row}h{w + 0.4:.2f}" for row in range(4, int(height) + 1, 6))
                    parts += [el("path", d=rows, class_="s-hatch")] if rows else []
                y += height
    return el(
        "svg", parts, viewBox="0 0 1000 28", preserveAspectRatio="none", class_="strip", role="img",
        aria_label=f"{lane.label}, iterations {first} to {last - 1}: {totals(lane.states)}",
    )  # fmt: skip


def totals(states: States) -> str:
    """ "1297 steps used gradients ..., 430 ..."."""
    counts = {word: sum(c[word] for _, c in states.bins()) for word in WORDS}
    return ", ".join(f"{n} × {WORDS[word]}" for word, n in counts.items() if n)


def chart(title: str, lines: Sequence[tuple[str, Curve]], *, log: bool = False) -> Raw:
    """Curves over iterations: the mean of each bin as a line, its range as a band."""
    drawn = [(label, curve.points()) for label, curve in lines]
    lows = [p.low for _, points in drawn for _, p in points if p.count]
    highs = [p.high for _, points in drawn for _, p in points if p.count]
    bad = sum(p.bad for _, points in drawn for _, p in points)
    note = f"{bad} value{'s' if bad != 1 else ''} nan or infinite" if bad else ""
    head = el("figcaption", title, el("span", f" ({note})", class_="bad") if note else None)
    if not lows:
        return el("figure", head, el("p", "no finite value", class_="muted"), class_="chart")
    low, high = min(lows), max(highs)
    log = log and low > 0 and high / low > 30
    bottom, top = (math.log10(low), math.log10(high)) if log else (low, high)
    if top - bottom < 1e-12 * max(abs(top), 1.0):
        bottom, top = bottom - 0.5, top + 0.5
    first = min(points[0][0] for _, points in drawn if points)
    last = max(points[-1][0] for _, points in drawn if points)
    width, height, left, right, up, down = 340, 150, 64, 8, 8, 22

    def at_x(iteration: float) -> float:
        return left + (width - left - right) * (iteration - first) / max(last - first, 1)

    def at_y(value: float) -> float:
        level = (math.log10(value) if log else value) if not log or value > 0 else bottom
        return up + (height - up - down) * (1 - (level - bottom) / (top - bottom))

    parts = [
        el("line", x1=left, x2=left, y1=up, y2=height - down, class_="axis"),
        el("line", x1=left, x2=width - right, y1=height - down, y2=height - down, class_="axis"),
        el("text", f"{high:.3g}", x=left - 6, y=up + 8, class_="t-axis end"),
        el("text", f"{low:.3g}", x=left - 6, y=height - down, class_="t-axis end"),
        el("text", str(first), x=left, y=height - 6, class_="t-axis"),
        el("text", f"iteration {last}", x=width - right, y=height - 6, class_="t-axis end"),
    ]
    if log:
        parts.append(el("text", "log", x=left - 6, y=(height - down + up) / 2, class_="t-axis end"))
    for index, (_, points) in enumerate(drawn):
        finite = [(at, p) for at, p in points if p.count]
        if any(p.high > p.low for _, p in finite) and len(finite) > 1:
            edge = [(at_x(at), at_y(p.high)) for at, p in finite]
            edge += [(at_x(at), at_y(p.low)) for at, p in reversed(finite)]
            parts.append(el("path", d=_path(edge) + "Z", class_=f"band k{index % 6}"))
        mean = [(at_x(at), at_y(p.total / p.count)) for at, p in finite]
        if len(mean) == 1:
            parts.append(
                el("circle", cx=round(mean[0][0], 1), cy=round(mean[0][1], 1), r=3, class_=f"dot k{index % 6}")
            )
        else:
            parts.append(el("path", d=_path(mean), class_=f"curve k{index % 6}"))
    legend = None
    if len(drawn) > 1:
        legend = el("ul", [el("li", el("span", class_=f"key k{n % 6}"), label) for n, (label, _) in enumerate(drawn)],
                    class_="legend")  # fmt: skip
    spoken = f"{title}: from {number(low)} to {number(high)} over iterations {first} to {last}"
    picture = el("svg", parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=spoken)
    return el("figure", head, picture, legend, class_="chart")


def spark(curve: Curve) -> Raw:
    """A curve without axes, on a logarithmic scale where it spans much, with its first and last value beside it."""
    points = [(at, p) for at, p in curve.points() if p.count]
    bad = any(p.bad for _, p in curve.points())
    if not points:
        return el("span", "not finite" if bad else "–", class_="bad" if bad else "muted")
    values = [p.total / p.count for _, p in points]
    positive = all(v > 0 for v in values)
    levels = [math.log10(v) for v in values] if positive and max(values) / min(values) > 30 else values
    low, high = min(levels), max(levels)
    span = max(points[-1][0] - points[0][0], 1)
    ends = f"{number(values[0])} → {number(values[-1])}" if len(values) > 1 else number(values[0])
    path = _path(
        [
            (2 + 96 * (at - points[0][0]) / span, 20 - 16 * (level - low) / (high - low if high > low else 1))
            for (at, _), level in zip(points, levels, strict=True)
        ]
    )
    picture = el("svg", el("path", d=path, class_="curve k0"), viewBox="0 0 100 24", class_="spark", aria_hidden="true")
    return join(
        picture if len(values) > 1 else None, el("span", ends), el("span", " not finite", class_="bad") if bad else None
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    kept = [points[0], *(b for a, b in pairwise(points) if abs(a[0] - b[0]) + abs(a[1] - b[1]) > 0.2)]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in kept)


__all__ = ["WORDS", "chart", "spark", "strip", "timeline", "totals"]
