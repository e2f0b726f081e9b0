"""A plan in words and memory as a picture, for a terminal of 80 columns.  No torch."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping

from gradledger.core.errors import UsageError
from gradledger.sweep._action import MARKS, Place
from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Item, Keep, Plan, Segment, keeps
from gradledger.sweep._simulate import Simulation, play

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WIDTH = 80


def show_bytes(count: float) -> str:
    """`1.25 MB`: three or four digits and a decimal unit."""
    for unit in _UNITS:
        if abs(count) < 999.5 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.3g} {unit}"


def show_seconds(seconds: float) -> str:
    """`3.2 ms`: three digits and s, ms or µs."""
    if seconds >= 0.9995 or seconds == 0:
        return f"{seconds:.3g} s"
    if seconds >= 0.9995e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"


def describe(plan: Plan, costs: Costs, *, bandwidth: Mapping[Place, float] | None = None) -> str:
    """Table: each block kept, recomputed (how often), forced and why, or moved out; and predicted peak and seconds.

    Args:
        plan: fits the chain of `costs`.
        costs: bytes and seconds.
        bandwidth: as for `simulate`.

    Raises PlanError when the plan does not fit.
    """
    n = len(costs)
    plan.validate(n, forced=costs.forced)
    actions = plan.actions()
    played = play(actions, costs, bandwidth=bandwidth)
    kept = play(Plan(tuple(Keep(i) for i in range(n))).actions(), costs)
    runs = Counter(a.block for a in actions if a.kind in ("run", "record"))
    away = {i: f"input on {place}" for i, place in _held_away(plan.items)}
    rows = [("block", "name", "tape", "saved", "why")]
    for keep, depth in keeps(plan.items):
        i, block = keep.block, costs.blocks[keep.block]
        times = runs[i] - 1
        what = "keep" if depth == 0 else "recompute" if times == 1 else f"recompute {times}x"
        why = [f"forced: {block.keep_reason}"] if block.keep_reason and i < n - 1 else []
        why += ["the loss"] if i == n - 1 else []
        why += [f"tape on {keep.place}"] if keep.place else []
        why += [away[i]] if i in away else []
        rows.append((str(i), block.name, what, show_bytes(costs.size(block.saved)), ", ".join(why)))
    widths = [min(max(len(row[c]) for row in rows), limit) for c, limit in enumerate((5, 26, 14, 8, 80))]
    widths[4] = _WIDTH - sum(widths[:4]) - 8
    lines = []
    for row in rows:
        cells = (
            f"{_cut(row[0], widths[0]):>{widths[0]}}  {_cut(row[1], widths[1]):<{widths[1]}}  "
            f"{_cut(row[2], widths[2]):<{widths[2]}}  {row[3]:>{widths[3]}}"
        )
        for part in textwrap.wrap(row[4], widths[4]) or [""]:  # a reason is told in full
            lines.append(f"{cells}  {part}".rstrip())
            cells = " " * len(cells)
    at = played.levels[played.at_action].action
    memory, time = _ratio(played.peak, kept.peak), _ratio(played.seconds, kept.seconds)
    peak = f"peak {show_bytes(played.peak)}{memory}, at `{at}` of "
    lines += [
        peak + _cut(costs.blocks[at.block].name, _WIDTH - len(peak)),
        f"time {show_seconds(played.seconds)}{time}",
    ]
    return "\n".join(lines)


def _ratio(mine: float, plain: float) -> str:
    return f", {mine / plain:.3g}x of keeping all" if plain else ""


def _cut(text: str, width: int) -> str:
    """One line, at most `width` characters, the end of a name rather than its start."""
    text = " ".join(text.split())
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def _held_away(items: tuple[Item, ...]) -> list[tuple[int, Place]]:
    found: list[tuple[int, Place]] = []
    stack = list(items)
    while stack:
        item = stack.pop()
        if isinstance(item, Segment):
            if item.place:
                found.append((next(keeps(item.items))[0].block, item.place))
            stack.extend(item.items)
    return found


def picture(simulation: Simulation, width: int = _WIDTH, *, height: int = 10, budget: int | None = None) -> str:
    """Memory over the schedule: actions across, bytes up, what is done below.

    Args:
        simulation: from `simulate`.
        width: columns of the whole picture, 30 or more.
        height: rows of the drawing, 1 or more.
        budget: bytes; drawn as a line where it is not above the picture.

    Below the drawing: r runs, R records, V reverses, and a dot where nothing is computed.  Where actions outnumber the
    columns, a column is the highest of its actions.
    """
    if width < 30 or height < 1:
        raise UsageError(
            got=f"width={width!r}, height={height!r}",
            wanted="a width of 30 or more, a height of 1 or more",
            where="picture",
            next_step="leave them out for 80 columns and 10 rows",
        )
    levels = simulation.levels
    margin = 10
    columns = min(width - margin, len(levels))
    parts = [levels[len(levels) * c // columns : len(levels) * (c + 1) // columns] for c in range(columns)]
    tops = [max(level.peak for level in part) for part in parts]
    kinds = [
        next((a.action.kind for a in part if a.action.kind in ("run", "record", "reverse")), None) for part in parts
    ]
    scale = max(simulation.peak, 1)
    eighths = [-(-8 * height * top // scale) for top in tops]
    line = None if budget is None or budget > scale else min(height - 1, budget * height // scale)
    rows = []
    for row in range(height - 1, -1, -1):
        label = show_bytes(scale * (row + 1) / height) if row in (height - 1, (height - 1) // 2) else ""
        empty = "-" if row == line else " "
        if row == line and not label and budget is not None:
            label = show_bytes(budget)
        cells = "".join(_EIGHTHS[min(8, e - 8 * row)] if e > 8 * row else empty for e in eighths)
        rows.append(f"{label:>{margin - 2}} |{cells}".rstrip())
    marks = "".join(MARKS[kind] if kind else "." for kind in kinds)
    spot = next(c for c in range(columns) if len(levels) * (c + 1) // columns > simulation.at_action)
    peak = f"^ peak {show_bytes(simulation.peak)} at {levels[simulation.at_action].action}"
    if spot + len(peak) > width - margin:
        peak = peak[2:] + " ^"
        pad = max(0, spot + 1 - len(peak))
    else:
        pad = spot
    return "\n".join([*rows, f"{'':>{margin - 2}} +{marks}", (" " * (margin + pad) + peak)[:width]])
