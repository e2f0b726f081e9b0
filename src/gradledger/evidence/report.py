"""The report of a folder, as one HTML file that opens offline, and as Markdown: both from the same blocks.

A block is (title, heads, rows) of texts; curves and dots are drawn as SVG in the page, and left out of the Markdown.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradledger._version import __version__
from gradledger.evidence import _dots, compare, lock
from gradledger.evidence._curves import Curve as Curve
from gradledger.evidence._curves import safe as _safe
from gradledger.evidence._curves import svg as svg
from gradledger.evidence._openings import openings
from gradledger.evidence.hypothesis import FINGERPRINT
from gradledger.evidence.judge import judge
from gradledger.evidence.record import Attempt, TrialRecord

SEEDS = 12  # columns of the table of every seed; with more seeds, trials.jsonl has them
CURVES = 12  # drawn at most
SHORT = 14  # letters of a cell that is never broken: an id, a count, a verdict
PICTURES = 2 * 2**20  # bytes of pictures that the page takes in; the page stays below 3 MB
DOCUMENTS = ("slices", "worst", "latency", "rejections")
SIGNS = {"supported": "✓", "refuted": "✕", "inconclusive": "?"}


@dataclass(frozen=True)
class Block:
    """One table. note: what a reader must know of it."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Story:
    """All that the report shows."""

    title: str
    summary: str
    blocks: tuple[Block, ...]
    curves: tuple[Curve, ...]
    pictures: tuple[tuple[str, bytes], ...] = ()
    dots: tuple[_dots.Dots, ...] = ()


def tell(folder: Path) -> Story:
    """Read a folder.

    Raises:
        RecordError, PlanError: its records or its plan were edited.
    """
    versions, record = lock.versions(folder), TrialRecord(folder)
    attempts, latest = record.attempts(), record.latest()
    blocks: list[Block] = []
    counts = dict.fromkeys(SIGNS, 0)
    if versions:
        judged = judge(versions[-1].plan, record.measured())
        for one in judged:
            counts[one.verdict] += 1
        rows = tuple(
            (
                f"{SIGNS[one.verdict]} {one.verdict}",
                one.id,
                one.claim,
                one.predicted,
                _measured(one.measured),
                one.why,
            )
            for one in judged
        )
        blocks.append(Block("Hypotheses", ("verdict", "id", "claim", "predicted", "measured", "ground"), rows))
        blocks.append(_versions(versions))
    blocks.append(_trials(attempts))
    known = versions[-1].plan.quantities if versions else {}
    fingerprints = {name for name, one in known.items() if one.unit == FINGERPRINT}
    blocks += _columns(latest, fingerprints)
    claimed = dict.fromkeys(one.quantity for one in versions[-1].plan.hypotheses) if versions else {}
    seeds = _dots.of_seeds(compare.columns(latest), [name for name in claimed if name not in fingerprints])
    blocks += _labels(folder)
    blocks += [block for name in DOCUMENTS for block in _document(folder, name)]
    blocks += _results(folder)
    told = ", ".join(f"{n} {name}" for name, n in counts.items()) if versions else "no registered plan"
    failed = sum(one.status == "failed" for one in latest.values())
    title = versions[-1].plan.name if versions else folder.resolve().name
    summary = f"{told}; {len(latest)} trials, {failed} failed, {len(attempts)} attempts"
    return Story(
        title,
        summary,
        tuple(block for block in blocks if block.rows),
        (*_curves(latest), *_latency(folder)),
        _pictures(folder),
        (*seeds, *_dots.of_slices(_rows(folder / "slices.json"))),
    )


def markdown(story: Story) -> str:
    """The story as Markdown."""
    lines = [f"# {_cell(story.title)}", "", story.summary]
    for block in story.blocks:
        lines += ["", f"## {block.title}", ""]
        lines += [block.note, ""] if block.note else []
        lines += [f"| {' | '.join(block.heads)} |", f"|{'---|' * len(block.heads)}"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in block.rows]
    return "\n".join(lines) + "\n"


def page(story: Story) -> str:
    """The story as one HTML document: no script, no other file, nothing that is fetched."""
    body = [f"<header><h1>{_safe(story.title)}</h1><p>{_safe(story.summary)}</p></header><main>"]
    for at, block in enumerate(story.blocks):
        body.append(f"<section><h2>{_safe(block.title)}</h2>")
        body.append(f"<p class=note>{_safe(block.note)}</p>" if block.note else "")
        heads = "".join(f"<th scope=col>{_safe(head)}</th>" for head in block.heads)
        rows = "".join(
            "<tr>"
            + "".join(
                f'<td data-label="{_safe(head)}"{" class=s" if len(cell) <= SHORT else ""}>{_safe(cell)}</td>'
                for head, cell in zip(block.heads, row, strict=True)
            )
            + "</tr>"
            for row in block.rows
        )
        body.append(f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></section>")
        if at == 0:
            body += _charts("Curves", [svg(curve) for curve in story.curves])
            body += _charts("Seeds and slices", [_dots.svg(one) for one in story.dots])
    if story.pictures:
        body.append("<section><h2>Pictures</h2><div class=charts>")
        for name, data in story.pictures:
            text = base64.b64encode(data).decode()
            image = f'<img alt="{_safe(name)}" src="data:image/png;base64,{text}">'
            body.append(f"<figure><figcaption>{_safe(name)}</figcaption>{image}</figure>")
        body.append("</div></section>")
    body.append(f"</main><footer>gradledger {__version__}</footer>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{_safe(story.title)}</title><style>{_CSS}</style></head><body>{''.join(body)}</body></html>\n"
    )


# ------------------------------------------------------------------------------------------------------------- blocks


def _versions(versions: Sequence[lock.Version]) -> Block:
    rows = tuple(
        (
            str(one.number),
            one.at,
            one.sha256[:16],
            str(one.trials_before),
            "registered" if one.number == 1 else f"amended: {one.reason}",
        )
        for one in versions
    )
    late = any(one.trials_before for one in versions)
    note = "An amendment after trials had ended is no prediction of them." if late else ""
    return Block("Plan", ("version", "registered (UTC)", "SHA-256", "trials before", "what"), rows, note)


def _trials(attempts: Sequence[Attempt]) -> Block:
    rows = tuple(
        (
            one.trial.arm,
            str(one.trial.rng_seed),
            str(one.number),
            "killed, or still running" if one.status == "running" else one.status,
            "-" if one.seconds is None else f"{one.seconds:.2f}",
            one.trial.id,
            one.error,
        )
        for one in attempts
    )
    return Block("Trials", ("arm", "rng_seed", "attempt", "status", "seconds", "id", "error"), rows)


def _columns(latest: Mapping[str, Attempt], fingerprints: set[str]) -> list[Block]:
    """Over seeds, and every seed. fingerprints: quantities that say which, not how much: of those nothing is a mean."""
    found = compare.columns(latest)
    rows = []
    for one in found:
        summary = one.summary
        shown: tuple[str, ...] = ("-",) * 5
        if one.quantity in fingerprints:
            shown = (*("-",) * 4, f"none: a fingerprint, {len(set(one.values.values()))} different")
        elif summary is not None:
            held = summary.interval
            interval = held.why if held.low is None or held.high is None else f"{held.low:.6g} to {held.high:.6g}"
            shown = (
                f"{summary.mean:.6g}",
                f"{summary.iqm:.6g}",
                f"{summary.minimum:.6g}",
                f"{summary.maximum:.6g}",
                interval,
            )
        left = "; ".join(f"seed {seed}: {why}" for seed, why in sorted(one.left_out.items()))
        rows.append((one.quantity, one.arm, str(len(one.values)), *shown, left))
    heads = ("quantity", "arm", "n", "mean", "IQM", "min", "max", "interval, level 0.95", "not in the mean")
    seeds = sorted({seed for one in found for seed in (*one.values, *one.left_out)})
    note = "Interval of the mean by bootstrap over seeds."
    each: tuple[tuple[str, ...], ...] = ()
    if len(seeds) <= SEEDS:
        each = tuple(
            (
                one.quantity,
                one.arm,
                *(_shown(one.values[s]) if s in one.values else one.left_out.get(s, "not run") for s in seeds),
            )
            for one in sorted(found, key=lambda one: (one.quantity, one.arm))
        )
    return [
        Block("Over seeds", heads, tuple(sorted(rows)), note),
        Block("Every seed", ("quantity", "arm", *(f"seed {seed}" for seed in seeds)), each),
    ]


def _labels(folder: Path) -> list[Block]:
    rows = tuple(
        (str(one.number), one.at, one.plan[:16], str(one.in_version), one.why or "first under this plan")
        for one in openings(folder)
    )
    return [Block("Test labels opened", ("number", "at (UTC)", "plan", "under this plan", "why"), rows)]


def _charts(title: str, figures: Sequence[str]) -> list[str]:
    """A section of drawings; nothing where there are none."""
    return [f"<section><h2>{title}</h2><div class=charts>", *figures, "</div></section>"] if figures else []


def _rows(path: Path) -> list[Mapping[str, Any]]:
    """The records of a document, as a list or under `rows`; [] where there are none."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    rows = told.get("rows") if isinstance(told, Mapping) else told
    return [one for one in rows if isinstance(one, Mapping)] if isinstance(rows, list) else []


def _document(folder: Path, name: str) -> list[Block]:
    """slices.json and the like where a recipe left them: a list of records, records by name, or `rows`; with `about`,
    which is what a reader must know."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return []
    told = json.loads(path.read_text(encoding="utf-8"))
    about = str(told.get("about", "")) if isinstance(told, Mapping) else ""
    if isinstance(told, Mapping) and isinstance(told.get("rows"), list):
        told = told["rows"]
    if isinstance(told, Mapping):
        told = [
            {"name": key, **_flat(one)}
            for key, one in ({"whole": told["whole"], **told["stages"]} if "stages" in told else told).items()
            if isinstance(one, Mapping)
        ]
    return [_records(name.capitalize(), told, about)]


def _results(folder: Path) -> list[Block]:
    """Of results.json: what rules without a model reach, where a metric stands among them (`scale`: records of
    `baselines.place`), and what came of each fault that was planted on purpose."""
    try:
        told = json.loads((folder / lock.RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(told, Mapping):
        return []
    faults = told.get("breaks")
    if isinstance(faults, list):
        faults = [
            {
                "fault": one.get("fault"),
                "predicted": one.get("predicted"),
                "actual": one.get("actual"),
                "loud": one.get("loud"),
                "audit found": ", ".join(f"{code} at line {line}" for code, line in one.get("found", [])) or "nothing",
                "as expected": one.get("as_expected"),
            }
            for one in faults
            if isinstance(one, Mapping)
        ]
    return [
        _records("Baselines", told.get("baselines")),
        _records("On the scale of the baselines", told.get("scale")),
        _records("Faults on purpose", faults),
        _records("Gradient audit of one iteration", told.get("gradient_audit")),
    ]


def _records(title: str, told: Any, note: str = "") -> Block:
    """A table of a list of records; one without rows where it is no list."""
    records = [_flat(one) for one in told if isinstance(one, Mapping)] if isinstance(told, list) else []
    heads = tuple(dict.fromkeys(key for one in records for key in one))
    rows = tuple(tuple(_shown(one.get(head)) for head in heads) for one in records)
    return Block(title, heads, rows, note)


def _curves(latest: Mapping[str, Attempt]) -> list[Curve]:
    found: dict[str, dict[str, list[float]]] = {}
    for one in latest.values():
        for name, value in (one.quantities or {}).items():
            numbers = isinstance(value, list) and len(value) > 1 and all(isinstance(x, int | float) for x in value)
            if numbers:
                found.setdefault(name, {})[f"{one.trial.arm}, seed {one.trial.rng_seed}"] = [float(x) for x in value]
    return [Curve(name, lines) for name, lines in list(found.items())[:CURVES]]


def _latency(folder: Path) -> list[Curve]:
    """How long calls take: the time that each per cent of them does not exceed."""
    try:
        told = json.loads((folder / "latency.json").read_text(encoding="utf-8"))["distribution_ms"]
        lines = {str(name): [float(x) for x in row] for name, row in told.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [Curve("latency in ms that so many per cent of the calls do not exceed", lines)]


def _pictures(folder: Path) -> tuple[tuple[str, bytes], ...]:
    """PNG files that a recipe left, by name, as many as the page has room for."""
    found, room = [], PICTURES
    for path in sorted(folder.glob("*.png")):
        room -= path.stat().st_size
        if room >= 0 and not path.is_symlink():
            found.append((path.name, path.read_bytes()))
    return tuple(found)


def _measured(values: Mapping[str, Sequence[Any]]) -> str:
    return "; ".join(f"seed {seed}: {' / '.join(_shown(one) for one in row)}" for seed, row in list(values.items())[:8])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        whole = value.is_integer() and 1e6 <= abs(value) < 2**53  # a count or a fingerprint: every digit tells
        return f"{value:.0f}" if whole else f"{value:.6g}"
    if isinstance(value, list):
        return (
            f"[{', '.join(_shown(one) for one in value[:3])}{f', ... {len(value)} in all' if len(value) > 3 else ''}]"
        )
    return "none" if value is None else str(value)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, one in value.items():
        found |= (
            _flat(one, f"{prefix}{key} ") if isinstance(one, Mapping) else {f"{prefix}{key}".replace("_", " "): one}
        )
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CSS = """
:root{color-scheme:light dark;--bg:#f6f7f9;--panel:#fff;--ink:#1b2027;--muted:#56606c;--rule:#d8dde4;
--c0:#2563b8;--c1:#b3541b;--c2:#2b7a4b;--c3:#8a3fa0;--c4:#7a6a00;--c5:#a02c4f}
@media(prefers-color-scheme:dark){:root{--bg:#111418;--panel:#191d23;--ink:#e6e9ee;--muted:#a2acb8;--rule:#333a44;
--c0:#7fb0f5;--c1:#f0a06a;--c2:#7fd6a0;--c3:#d59be6;--c4:#e0d060;--c5:#f08fae}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1320px;padding:0 16px 48px;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6rem;margin:24px 0 4px;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:0 0 8px}
section{background:var(--panel);border:1px solid var(--rule);border-radius:10px;padding:16px;margin:0 0 14px}
.note,footer{color:var(--muted);font-size:.875rem;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;font-size:.9rem}th{text-align:left;color:var(--muted);font-weight:600}
@media(min-width:761px){th,.s{white-space:nowrap}section{overflow-x:auto}}img{max-width:100%;height:auto;background:#fff}
th,td{border-bottom:1px solid var(--rule);padding:5px 12px 5px 0;vertical-align:top;overflow-wrap:anywhere}
@media(max-width:760px){thead{position:absolute;left:-9999px}tr{display:block;padding:8px 0;
border-bottom:1px solid var(--rule)}td{display:block;border:0;padding:1px 0}
td:not(:empty)::before{content:attr(data-label) ": ";color:var(--muted)}}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));gap:16px}
figure{margin:0;min-width:0}figcaption{font-weight:600;font-size:.9rem;overflow-wrap:anywhere}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--muted);font:11px system-ui,sans-serif}svg .e{text-anchor:end}svg line{stroke:var(--rule)}
svg path{fill:none;stroke-width:1.6}svg .d{stroke-dasharray:5 3}svg circle{fill:var(--c0);fill-opacity:.6}
svg .i{stroke:var(--ink);stroke-width:1.5}svg .m{stroke:var(--c1);stroke-width:2.5}
.key span{white-space:nowrap;margin-right:10px}.key svg{display:inline-block;width:20px;height:8px;margin-right:4px}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}
.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}.c5{stroke:var(--c5)}
"""
