"""The gradient audit of one iteration: as a table of 80 columns, and as JSON (schema 1)."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator
from typing import Any

from gradledger.audit._phrases import number, times
from gradledger.audit.flow import Flow, Row
from gradledger.audit.render._html import visible
from gradledger.audit.render._layout import place, shown_path
from gradledger.core.site import Site

SCHEMA = 1
WIDTH = 80


def text(flow: Flow, *, program: str = "", width: int = WIDTH) -> str:
    """The table with a final line end: what carries gradient and what does not, then what was cut, where and how."""
    lines = list(_head(flow, program))
    name = min(max((len(r.name) for r in flow.rows), default=9), width - 48)
    lines += ["", f"  {'parameter':<{name}}  {'shape':<11} {'optimizer':<10} {'norm':>9}  gradient"]
    for row, following in zip(flow.rows, [*flow.rows[1:], None], strict=True):
        lines.append(_row(row, name))
        if not row.carries and (following is None or (following.why, following.site) != (row.why, row.site)):
            lines += _reason(row, width)
    if flow.stops:
        lines += ["", "  values that left the graph on their way to a loss"]
        for stop in flow.stops:
            of = f"  {', '.join(stop.of)}" if stop.of else ""
            lines.append(f"    {_line(stop.site)}  {stop.how}{of}")
    if not flow.detailed:
        lines += [
            "",
            "  single operations of this iteration were not looked at: reasons are those that can be told without",
        ]
    return "\n".join(visible(part) for line in lines for part in _cut(line, width)) + "\n"


def as_json(flow: Flow, *, program: str = "") -> str:
    """A JSON document with a final line end; numbers that are not finite are strings."""
    return json.dumps(as_dict(flow, program=program), indent=1, allow_nan=False) + "\n"


def as_dict(flow: Flow, *, program: str = "") -> dict[str, Any]:
    """The table as plain JSON values."""
    return {
        "schema": SCHEMA,
        "program": program,
        "iteration": flow.iteration,
        "last_iteration": flow.last,
        "carrying": flow.carrying,
        "parameters": [
            {
                "name": r.name,
                "shape": None if r.shape is None else list(r.shape),
                "requires_grad": r.requires_grad,
                "optimizer": r.optimizer or None,
                "carries": r.carries,
                "passes": r.passes,
                "passes_used_before": r.old,
                "norm": r.norm if r.norm is None or math.isfinite(r.norm) else str(r.norm),
                "stopped_by": r.stop or None,
                "why": r.why or None,
                "site": _site(r.site),
            }
            for r in flow.rows
        ],
        "stops": [{"how": s.how, "site": _site(s.site), "modules": list(s.of)} for s in flow.stops],
        "reverse_passes": [
            {
                "site": _site(site),
                "method": method,
                "loss": value if value is None or math.isfinite(value) else str(value),
            }
            for site, method, value in flow.passes
        ],
        "stepped": list(flow.stepped),
        "detailed": flow.detailed,
    }


def _head(flow: Flow, program: str) -> Iterator[str]:
    several = flow.last > flow.iteration
    which = f"iterations {flow.iteration} to {flow.last}" if several else f"iteration {flow.iteration}"
    where = f" of {shown_path(program)}" if program else ""
    yield f"gradflow: {which}{where}: {flow.carrying} of {len(flow.rows)} parameters carry a gradient"
    told: dict[tuple[str, str], list[float | None]] = {}
    for site, method, value in flow.passes:
        told.setdefault((place(site) if site.file else "unseen", method), []).append(value)
    for (where, method), values in told.items():
        known = [number(v) for v in values if v is not None]
        loss = f", loss {', '.join(known[:4])}{', ...' if len(known) > 4 else ''}" if known else ""
        yield f"  {times(len(values), 'reverse pass')} ({method}) at {where}{loss}"
    yield f"  stepped: {', '.join(flow.stepped) or 'no optimizer'}"


def _row(row: Row, name: int) -> str:
    shape = "?" if row.shape is None else "x".join(map(str, row.shape)) or "scalar"
    shown = row.name if len(row.name) <= name else "..." + row.name[3 - name :]
    norm = "–" if row.norm is None else number(row.norm)
    held = row.optimizer.replace(", group ", ":") or "none"
    if row.carries:
        told = times(row.passes, "pass") if row.passes else "filled"
        told += f", {row.old} used before" if row.old else ""
        told += ", in no optimizer" if row.stop == "not held" else ""
    else:
        told = row.stop if row.stop in ("frozen", "unused", "no pass", "assigned") else "stopped"
    return f"  {shown:<{name}}  {shape:<11.11} {held:<10.10} {norm:>9.9}  {told}"


def _reason(row: Row, width: int) -> list[str]:
    """Why the rows above have no gradient, and where."""
    where = f" ({_line(row.site)})" if row.site.file else ""
    return textwrap.wrap(row.why + where, width, initial_indent="      ↑ ", subsequent_indent="        ")


def _line(site: Site) -> str:
    return f"{shown_path(site.file)}:{site.line}"


def _cut(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line.rstrip()]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True, replace_whitespace=False)


def _site(site: Site) -> dict[str, Any] | None:
    return {"file": site.file, "line": site.line, "function": site.function} if site.file else None


__all__ = ["as_dict", "as_json", "text"]
