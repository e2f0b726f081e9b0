"""Trajectories as lines in SVG, for a page that fetches nothing."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

COLOURS = 6  # then they come again, dashed
NAMES = 12  # in the legend
POINTS = 400  # of each line that is drawn
DECADES = 1.5  # from this many between lowest and highest on, positive curves are drawn on a logarithmic scale


@dataclass(frozen=True)
class Curve:
    """A recorded trajectory of one quantity: label -> points."""

    quantity: str
    lines: dict[str, list[float]]


def svg(curve: Curve) -> str:
    """Lines over their index; points that are not finite break a line."""
    width, height, left, low_edge = 420, 220, 62, 190
    finite = [x for line in curve.lines.values() for x in line if math.isfinite(x)]
    if not finite:
        return f"<figure><figcaption>{safe(curve.quantity)}: no finite point</figcaption></figure>"
    low, high = min(finite), max(finite)
    log = low > 0 and math.log10(high / low) > DECADES
    place = math.log10 if log else float
    bottom, span = place(low), (place(high) - place(low)) or 1.0
    longest = max(len(line) for line in curve.lines.values())
    paths = []
    for at, (label, line) in enumerate(curve.lines.items()):
        every = max(1, len(line) // POINTS)
        move, path = True, []
        for i in [*range(0, len(line) - 1, every), len(line) - 1]:
            if not math.isfinite(line[i]):
                move = True
                continue
            x = left + (width - left - 8) * i / max(1, longest - 1)
            y = low_edge - (low_edge - 12) * (place(line[i]) - bottom) / span
            path.append(f"{'M' if move else 'L'}{x:.1f} {y:.1f}")
            move = False
        paths.append(f'<path class="{_look(at)}" d="{"".join(path)}"><title>{safe(label)}</title></path>')
    names = "; ".join(list(curve.lines)[:NAMES])
    key = "".join(
        f'<span><svg viewBox="0 0 20 8"><path class="{_look(at)}" d="M0 4L20 4"/></svg>{safe(label)}</span> '
        for at, label in enumerate(list(curve.lines)[:NAMES])
    )
    key += f"and {len(curve.lines) - NAMES} more" if len(curve.lines) > NAMES else ""
    return (
        f'<figure><figcaption>{safe(curve.quantity)}</figcaption><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{safe(curve.quantity)}: {safe(names)}"><line x1="{left}" y1="{low_edge}" x2="{width - 8}" '
        f'y2="{low_edge}"/><line x1="{left}" y1="12" x2="{left}" y2="{low_edge}"/>{"".join(paths)}'
        f'<text x="{left - 6}" y="18" class="e">{high:.4g}</text>'
        f'<text x="{left - 6}" y="{low_edge}" class="e">{low:.4g}</text>'
        f'<text x="{left}" y="210">0</text><text x="{width - 8}" y="210" class="e">{longest - 1}</text></svg>'
        f'<p class="note key">{"logarithmic: " if log else ""}{key}</p></figure>'
    )


def _look(at: int) -> str:
    """Class of the line of this number."""
    return f"c{at % COLOURS}" + (" d" if at >= COLOURS else "")


def safe(text: str) -> str:
    """Text for HTML: escaped, and what cannot be seen written out."""
    hidden = "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in text)
    return html.escape(hidden, quote=True)
