"""The parts of the HTML report that show a run: the life of gradients, where they flow, curves, what exists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from gradledger.audit._bins import Curve
from gradledger.audit._phrases import number
from gradledger.audit.flow import Flow, Row
from gradledger.audit.render._html import Raw, el, join, prose
from gradledger.audit.render._layout import place, shown_path
from gradledger.audit.render._svg import WORDS, chart, spark, strip, timeline, totals
from gradledger.audit.rule import Finding
from gradledger.audit.story import Lane, Story

MOST_MARKS = 30  # in one picture
MOST_GROUPS = 16
MOST_ROWS = 60

Section = tuple[str, str, str, Raw | None]


def sections(story: Story | None) -> list[Section]:
    """(name, short title, title, body) of every part that there is something to show of."""
    if story is None:
        return []
    return [
        ("life", "Life of gradients", "The life of gradients", _lives(story)),
        ("flow", "Flow", "Where gradients flow, and where they stop", _flow(story.flow)),
        ("curves", "Curves", "Losses and rates", _curves(story)),
        ("norms", "Sizes", "Sizes by module", _norms(story)),
        ("watched", "Watched", "What was watched", _watched(story)),
    ]


# ------------------------------------------------------------------------------------------- life of gradients


def life(story: Story | None, finding: Finding) -> Raw | None:
    """The marks of one parameter group around the first iteration of a finding whose lines are among them."""
    if story is None or not finding.has_line:
        return None
    lines = {finding.site.key(), *(s.key() for s in finding.related)}
    for lane in story.lanes:
        kept = sorted(lane.iterations)
        if not kept or not any(m.site.key() in lines for i in kept for m in lane.iterations[i] if m.what != "fill"):
            continue
        start = finding.iteration if finding.iteration is not None else kept[0]
        chosen = _window(lane, [i for i in kept if i >= start - 1] or kept[-4:])
        return el(
            "figure",
            el("figcaption", f"What stands in the gradients of {lane.label} ({lane.tensors} tensors)"),
            el("div", timeline(lane, chosen, {finding.site.key()}), class_="scroll", tabindex="0", role="region",
               aria_label="Life of a gradient, mark by mark"),
            _key(),
            class_="life",
        )  # fmt: skip
    return None


def _window(lane: Lane, iterations: Sequence[int]) -> list[int]:
    chosen: list[int] = []
    marks = 0
    for iteration in iterations:
        marks += len(lane.iterations[iteration])
        if chosen and marks > MOST_MARKS:
            break
        chosen.append(iteration)
    return chosen[:6]


def _key() -> Raw:
    items = (
        ("c-new", "a contribution, not used yet"),
        ("c-old", "used by an earlier step already"),
        ("c-none", "empty"),
    )
    return el("ul", [el("li", el("span", class_=f"key {kind}"), text) for kind, text in items], class_="legend")


def _lives(story: Story) -> Raw | None:
    lanes = [lane for lane in story.lanes if lane.iterations]
    if not lanes:
        return None
    parts = []
    for index, lane in enumerate(lanes[:MOST_GROUPS]):
        bins = lane.states.bins()
        span = f"iterations {bins[0][0]} to {lane.states.last}" if bins else "no step"
        first = _window(lane, sorted(lane.iterations))[:3]
        marks = el("div", timeline(lane, first, set()), class_="scroll", tabindex="0", role="region",
                   aria_label=f"First iterations of {lane.label}")  # fmt: skip
        parts.append(
            el(
                "div",
                el("h3", lane.label, el("span", f" · {lane.tensors} tensors", class_="muted small")),
                el("p", f"Steps looked at, {span}: {totals(lane.states) or 'none'}", class_="small muted"),
                strip(lane),
                el(
                    "details",
                    el("summary", "The first iterations, mark by mark", class_="small"),
                    marks,
                    _key(),
                    open=index == 0,
                ),
                class_="panel",
            )
        )
    legend = el("ul", [el("li", el("span", class_=f"key s-{w}"), text) for w, text in WORDS.items()], class_="legend")
    more = el("p", f"and {len(lanes) - MOST_GROUPS} more groups") if len(lanes) > MOST_GROUPS else None
    return join(parts, more, legend)


# ------------------------------------------------------------------------------------------- flow


def _flow(flow: Flow | None) -> Raw | None:
    if flow is None:
        return None
    head = (
        (f"Iterations {flow.iteration} to {flow.last}" if flow.last > flow.iteration else f"Iteration {flow.iteration}")
        + f": {flow.carrying} of {len(flow.rows)} parameters carry a gradient."
    )  # fmt: skip
    losses = [
        el("li", el("code", place(site)), f" {method}, loss {number(value)}" if value is not None else f" {method}")
        for site, method, value in list(dict.fromkeys(flow.passes))[:6]
    ]
    items: list[Raw] = []
    groups = _grouped(flow.rows)
    for name, rows in groups[:MOST_GROUPS]:
        items += _arrows(name, rows)
    more = (
        el("p", f"and {len(groups) - MOST_GROUPS} more modules", class_="small") if len(groups) > MOST_GROUPS else None
    )
    stops = [
        el(
            "li",
            el("b", prose(stop.how)),
            " at ",
            el("code", place(stop.site)),
            f": {', '.join(stop.of)}" if stop.of else "",
        )
        for stop in flow.stops
    ]
    return el(
        "div",
        el("p", head),
        el("ul", items, class_="flow"),
        more,
        join(el("h3", "Reverse passes"), el("ul", losses, class_="small")) if losses else None,
        join(el("h3", "Values that left the graph on their way to a loss"), el("ul", stops, class_="small"))
        if stops
        else None,
        _silent_table(flow.rows),
        class_="panel",
    )


def _grouped(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """By module: the first part of the name, or the first two where all begin alike."""
    rows = list(rows)
    depth = 1 if len({r.name.split(".")[0] for r in rows}) > 1 else 2
    groups: dict[str, list[Row]] = {}
    for row in rows:
        parts = row.name.split(".")
        groups.setdefault(".".join(parts[: min(depth, max(len(parts) - 1, 1))]), []).append(row)
    return list(groups.items())


def _arrows(name: str, rows: list[Row]) -> Iterable[Raw]:
    carried = [r for r in rows if r.carries]
    if carried:
        unheld = sum(not r.optimizer for r in carried)
        text = f"{len(carried)} of {len(rows)} parameters carry a gradient"
        yield _arrow(name, "go", text + (f"; {unheld} of them in no optimizer" if unheld else ""))
    reasons: dict[tuple[str, str, str], int] = {}
    for row in rows:
        if not row.carries:
            where = f" ({shown_path(row.site.file)}:{row.site.line})" if row.site.file else ""
            key = (row.stop, row.why, where)
            reasons[key] = reasons.get(key, 0) + 1
    for (stop, why, where), count in reasons.items():
        kind = "cold" if stop in ("frozen", "unused", "no pass", "unreached") else "halt"
        yield _arrow(name, kind, f"{count} of {len(rows)} without: {why}{where}")


def _arrow(name: str, kind: str, text: str) -> Raw:
    if kind == "go":
        end = el("path", d="M130 3l12 7l-12 7z", class_="head")
    else:
        end = el("path", d="M66 4l12 12m0 -12l-12 12", class_="stopx")
    line = el("line", x1=2, x2=130 if kind == "go" else 58, y1=10, y2=10, class_=kind)
    rest = None if kind == "go" else el("line", x1=86, x2=142, y1=10, y2=10, class_="cold")
    picture = el("svg", line, rest, end, viewBox="0 0 144 20", aria_hidden="true")
    return el("li", el("span", el("code", name), class_="who"), picture, el("span", prose(text), class_="small"))


def _silent_table(rows: Sequence[Row]) -> Raw | None:
    silent = [r for r in rows if not r.carries]
    if not silent:
        return None
    cells = [
        (
            r.name,
            "?" if r.shape is None else "×".join(map(str, r.shape)) or "scalar",
            r.optimizer or "none",
            prose(r.why),
            place(r.site) if r.site.file else "",
        )
        for r in silent[:MOST_ROWS]
    ]
    left = f" (the first {MOST_ROWS})" if len(silent) > MOST_ROWS else ""
    return el("details", el("summary", f"{len(silent)} parameters without a gradient{left}"),
              _cards(("parameter", "shape", "optimizer", "why", "line"), cells))  # fmt: skip


def _cards(heads: Sequence[str], rows: Iterable[Sequence[object]], name: str | None = None) -> Raw:
    body = [el("tr", [el("td", cell, data_label=head) for head, cell in zip(heads, row, strict=True)]) for row in rows]
    head = el("thead", el("tr", [el("th", text, scope="col") for text in heads]))
    return el("table", head, el("tbody", body), class_="cards", id=name)


# ------------------------------------------------------------------------------------------- curves and sizes


def _curves(story: Story) -> Raw | None:
    charts = [
        chart(f"loss at {os.path.basename(s.label)}", [("loss", s.curve)], log=True)
        for s in story.losses
        if s.curve.points()
    ]
    rates = [(s.label, s.curve) for s in story.rates if s.curve.points()]
    if rates and any(_moves(curve) for _, curve in rates):
        charts.append(chart("learning rate", rates, log=True))
    return el("div", el("div", charts, class_="charts"), class_="panel") if charts else None


def _moves(curve: Curve) -> bool:
    return len({p.total / p.count for _, p in curve.points() if p.count}) > 1


def _norms(story: Story) -> Raw | None:
    if not story.gradients:
        return None
    values = {s.label: s.curve for s in story.values}
    updates = {s.label: s.curve for s in story.updates}
    rows = []
    for series in story.gradients:
        cells = [spark(curve) if (curve := found.get(series.label)) is not None else "–" for found in (values, updates)]
        rows.append((el("code", series.label), spark(series.curve), cells[0], cells[1]))
    note = "Euclidean norms over the tensors of each module at the steps that were measured, first → last."
    heads = ("module", "gradient", "values", "update")
    return el("div", el("p", note, class_="small muted"), _cards(heads, rows), class_="panel")


# ------------------------------------------------------------------------------------------- what exists


def _watched(story: Story) -> Raw:
    watched = story.watched
    told = [
        ("backward", "reverse passes"), ("step", "optimizer steps"), ("clear", "clears"),
        ("module_called", "module calls"),
        ("copied", "copies between modules"), ("clip", "clippings"), ("scheduler_step", "scheduler steps"),
        ("loader_epoch", "passes over a loader"), ("state_loaded", "states loaded"),
    ]  # fmt: skip
    counts = [el("li", el("b", watched[kind]), f" {text}") for kind, text in told if watched.get(kind)]
    parts: list[Raw | None] = [el("ul", counts, class_="facts")]
    if story.optimizers:
        rows = []
        for held in story.optimizers:
            for index, (tensors, elements, rate, decay) in enumerate(held.groups):
                rows.append((held.label, str(index), f"{tensors} ({elements:,} elements)", number(rate), number(decay),
                             str(held.steps), place(held.site) if held.site.file else ""))  # fmt: skip
        heads = ("optimizer", "group", "parameters", "learning rate", "weight decay", "steps", "made at")
        parts += [el("h3", "Optimizers"), _cards(heads, rows)]
    if story.unheld:
        shown = ", ".join(story.unheld[:12]) + (f" and {len(story.unheld) - 12} more" if len(story.unheld) > 12 else "")
        parts.append(el("p", el("b", f"{len(story.unheld)} parameters require grad and sit in no optimizer: "), shown))
    if story.registry:
        entries = [
            (
                e.name,
                e.kind,
                "×".join(map(str, e.shape)) or "scalar",
                "yes" if e.requires_grad else "no",
                e.optimizer or "–",
            )
            for e in story.registry
        ]
        box = el("input", type="search", data_filter="registry", aria_label="Filter the registry", placeholder="filter")
        left = f"; {story.registry_left_out} more are left out" if story.registry_left_out else ""
        parts.append(
            el(
                "details",
                el("summary", f"Registry: {len(entries)} parameters, buffers and plain attributes{left}"),
                el("div", box, class_="tools", hidden=True),
                _cards(("name", "kind", "shape", "requires grad", "optimizer"), entries, "registry"),
            )
        )
    return el("div", parts, class_="panel")


__all__ = ["life", "sections"]
