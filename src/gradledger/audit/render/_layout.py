"""The report as lines of styled pieces: what the terminal and the plain text share."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gradledger.audit import oracle
from gradledger.audit._phrases import times
from gradledger.audit._source import source_lines
from gradledger.audit.report import Report
from gradledger.audit.rule import Finding
from gradledger.core.site import Site

Piece = tuple[str, str]  # text, style ("" for none)
Line = list[Piece]

CONTEXT = 2  # source lines before and after the marked one
RELATED_SHOWN = 5
EVIDENCE_SHOWN = 8
REASONS_SHOWN = 8
DIFFERENCES_SHOWN = 12
ORACLE = "oracle"  # its key among the evidence
LONGEST = 60  # characters of one piece of evidence
STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}


def layout(report: Report, *, width: int = 80, footer: Sequence[str] = (), ascii_only: bool = False) -> list[Line]:
    """The whole report in at most `width` columns (source lines and long names are cut)."""
    return [
        *_verdict(report, width),
        *_findings(report, width, ascii_only),
        *_compared(report, width),
        *_oracle(report, width, ascii_only),
        *_end(report, width, footer),
    ]


def shown_path(file: str) -> str:
    """`file` relative to the current folder when it lies below it."""
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):
        return file
    return file if relative.startswith("..") else relative


def place(site: Site) -> str:
    """ "train.py:39, in train"."""
    inside = f", in {site.function}" if site.function and site.function != "<module>" else ""
    return f"{shown_path(site.file)}:{site.line}{inside}"


def verdict(report: Report) -> str:
    """One line: how many findings of which severity, or that there are none."""
    counts = [(report.count("error"), "error"), (report.count("warning"), "warning"), (report.count("info"), "remark")]
    parts = [f"{n} {word}{'s' if n != 1 else ''}" for n, word in counts if n]
    what = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    where = f" in {shown_path(report.program)}" if report.program else ""
    if parts:
        return f"{what}{where}"
    if not report.events:
        return f"nothing was recorded{where}"
    ran = [one for one in (report.ended, *report.others) if one is not None]
    if report.ended is not None and not any(one.steps or one.backwards for one in ran):
        return f"nothing to judge{where}: no backward and no step ran"
    return f"no fault found{where}"


def run_line(report: Report) -> str:
    """How the run went, in numbers."""
    ended = report.ended
    if ended is None:
        return "the run was cut off before its end; judged on what was recorded"
    text = f"{ended.steps} optimizer steps, {ended.backwards} backward passes, exit code {ended.exit_code}"
    if ended.exception:
        at = f" at {shown_path(ended.frames[-1].file)}:{ended.frames[-1].line}" if ended.frames else ""
        text += f"; ended by {ended.exception}{at}"
    return "; ".join([text, *_others(report)])


def _others(report: Report) -> Iterator[str]:
    """Of ranks and of processes that train by themselves, what ran in them."""
    for kind, some in (("rank", "ranks"), ("process", "processes")):
        runs = [one for one in report.others if bool(one.process) == (kind == "process")]
        if runs:
            each = " each" if len(runs) > 1 else ""
            yield (
                f"watched beside it: {len(runs)} {some if each else kind}, {_span([r.steps for r in runs])} steps and "
                f"{_span([r.backwards for r in runs])} passes{each}"
            )


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """ "multiple 120, tensors 4".  What the oracle says is a line of its own (`oracle_text`)."""
    told = [
        (k, v) for k, v in evidence.items() if v is not None and v != "" and v != [] and v != () and k != ORACLE
    ]  # fmt: skip
    return ", ".join(f"{k.replace('_', ' ')} {_value(v)}" for k, v in told[:EVIDENCE_SHOWN])


def oracle_text(evidence: Mapping[str, Any]) -> str:
    """ "consumed = 1.00·task (train.py:41) + 2.00·penalty (train.py:42)"; "" when the oracle says nothing."""
    return str(evidence.get(ORACLE, ""))


def reasons(report: Report) -> list[tuple[str, str]]:
    """(codes, reason) of what was not checked, rules with one reason together."""
    grouped: dict[str, list[str]] = {}
    for item in report.not_checked:
        grouped.setdefault(item.reason, []).append(item.key)
    return [(", ".join(keys), reason) for reason, keys in grouped.items()]


def difference_rows(report: Report) -> list[tuple[str, str, str, str, str, str]]:
    """(what, subject, good run, this run, iteration, line) of every difference from a good run, in order."""
    found = report.comparison.differences if report.comparison is not None else ()
    return [
        (
            d.what,
            d.subject,
            d.there,
            d.here,
            "" if d.iteration is None else str(d.iteration),
            f"{shown_path(d.site.file)}:{d.site.line}" if d.site.file else "",
        )
        for d in found
    ]


def together(iterations: int) -> str:
    """How long two runs had equal gradients."""
    return f"gradient norms are equal in the first {times(iterations, 'measured iteration')}"


def excerpt(site: Site, context: int = CONTEXT) -> list[tuple[int, str, bool]]:
    """(line number, text, marked) around a site, indentation common to all removed; empty when unreadable."""
    lines = source_lines(site.file) if site.file else ()
    if not 0 < site.line <= len(lines):
        return []
    first, last = max(1, site.line - context), min(len(lines), site.line + context)
    block = textwrap.dedent("\n".join(line.expandtabs(4) for line in lines[first - 1 : last])).split("\n")
    numbered = [(first + i, text, first + i == site.line) for i, text in enumerate(block)]
    while numbered and not numbered[0][1].strip():
        numbered.pop(0)
    while numbered and not numbered[-1][1].strip():
        numbered.pop()
    return numbered


def _verdict(report: Report, width: int) -> Iterator[Line]:
    style = next((STYLES[s] for s in ("error", "warning", "info") if report.count(s)), "bold green")
    for number, text in enumerate(_wrap(f"gradledger: {verdict(report)}", width)):
        yield [(text, style if number == 0 or report.findings else "")]
    for text in _wrap(run_line(report), width):
        yield [(text, "dim")]


def _findings(report: Report, width: int, ascii_only: bool) -> Iterator[Line]:
    for number, finding in enumerate(report.findings, start=1):
        yield []
        yield from _finding(number, finding, report.names.get(finding.key, ""), width, ascii_only)


def _finding(number: int, finding: Finding, name: str, width: int, ascii_only: bool) -> Iterator[Line]:
    style = STYLES[finding.severity]
    likely = ", likely" if finding.confidence == "likely" else ""
    yield [(f"{number}. {finding.severity}{likely}  ", style), (f"{finding.key} {name}", "bold")]
    for text in _wrap(finding.message, width - 3):
        yield [(f"   {text}", "")]
    yield []
    bar, marker = ("|", ">") if ascii_only else ("│", "▸")
    if finding.has_line:
        yield [(f"   {_cut(place(finding.site), width - 3)}", "cyan")]
        for line, text, marked in excerpt(finding.site):
            head = f" {marker if marked else ' '} {line:>4} {bar} "
            yield [(head, style if marked else "dim"), (_cut(text, width - len(head)), "bold" if marked else "")]
        yield []
    seen = f"{finding.count} times" if finding.count > 1 else ""
    if finding.iteration is not None:
        seen += f"{', ' if seen else ''}first in iteration {finding.iteration}"
    said = oracle_text(finding.evidence)
    rows = [("seen", seen), ("evidence", evidence_text(finding.evidence)), ("oracle", _plainer(said, ascii_only))]
    related = [s for s in dict.fromkeys(finding.related) if s.file]
    for index, site in enumerate(related[:RELATED_SHOWN]):
        lines = source_lines(site.file)
        code = lines[site.line - 1].strip() if 0 < site.line <= len(lines) else ""
        said_at = f"{_short(place(site), width - 13)}  {code}".rstrip()
        rows.append(("related" if index == 0 else "", _cut(said_at, width - 13)))
    rows.append(("fix", finding.fix))
    for label, text in rows:
        if text:
            yield from _row(label, text, width)


def _short(placed: str, room: int) -> str:
    """A place whose line can be read: folders are left out from the front, up to those of an installed package."""
    placed = re.split(r"(?:site|dist)-packages/", placed)[-1]
    while len(placed) > room and "/" in placed.removeprefix(".../"):
        placed = ".../" + placed.removeprefix(".../").partition("/")[2]
    return placed


def _plainer(text: str, ascii_only: bool) -> str:
    return text.replace("·", "*").replace("×", "x") if ascii_only else text


def _compared(report: Report, width: int) -> Iterator[Line]:
    comparison = report.comparison
    if comparison is None:
        return
    yield []
    rows = difference_rows(report)
    told = f"{len(rows)} difference{'s' if len(rows) != 1 else ''} from {shown_path(comparison.good)}"
    for text in _wrap(
        f"{told}, over {comparison.compared} parameters" + (", first to show first:" if rows else ""), width
    ):
        yield [(text, "bold")]
    if comparison.together:
        for text in _wrap(together(comparison.together), width):
            yield [(text, "dim")]
    for what, subject, there, here, iteration, line in rows[:DIFFERENCES_SHOWN]:
        at = ", ".join(text for text in (f"iteration {iteration}" if iteration else "", line) if text)
        yield [(f"  {what:<11}", "bold"), (_cut(subject, width - 13), "")]
        for label, text in (("there", there), ("here", here), ("at", at)):
            if text:
                yield [(f"  {'':<11}{label:<6}", "dim"), (_cut(text, width - 19), "")]
    if len(rows) > DIFFERENCES_SHOWN:
        yield from _plain(f"  and {len(rows) - DIFFERENCES_SHOWN} more (all in --format json)", width)


def _oracle(report: Report, width: int, ascii_only: bool) -> Iterator[Line]:
    if report.oracle is None:
        return
    yield []
    for text in _wrap(oracle.headline(report.oracle), width):
        yield [(text, "bold")]
    for text, where in oracle.rows(report.oracle):
        yield from _plain(f"  {_plainer(text, ascii_only)}: {where}", width, indent="    ")


def _end(report: Report, width: int, footer: Sequence[str]) -> Iterator[Line]:
    yield []
    for silenced in report.suppressed:
        reason = silenced.reason or "no reason given"
        text = f"allowed: {silenced.finding.key} at {place(silenced.finding.site)} ({reason})"
        yield from _plain(text, width)
    for note in report.notes:
        yield from _plain(f"{shown_path(note.file)}:{note.line}: {note.message}" if note.file else note.message, width)
    checked = f"checked {len(report.checked)} rule{'s' if len(report.checked) != 1 else ''}"
    groups = reasons(report)
    yield from _plain(f"{checked}; not checked:" if groups else checked, width)
    for codes, reason in groups[:REASONS_SHOWN]:
        yield from _plain(f"  {codes}: {reason}", width, indent="    ")
    if len(groups) > REASONS_SHOWN:
        yield from _plain(f"  and {len(groups) - REASONS_SHOWN} more reasons (all in --format json)", width)
    if report.ended is not None:
        given = {reason for _, reason in groups}
        for text in report.ended.not_watched:
            if text in given:
                continue
            yield from _plain(f"not watched: {text}", width)
        if report.ended.failures:
            count = len(report.ended.failures)
            kinds = f"{count} kind{'s' if count != 1 else ''} of failure"
            text = f"{kinds} inside gradledger itself, the program was not touched: {report.ended.failures[0]}"
            yield from _plain(text, width)
    for text in (f"judged on {report.sampled}" if report.sampled else "", *footer):
        yield from _plain(text, width)


def _row(label: str, text: str, width: int) -> Iterator[Line]:
    for index, part in enumerate(_wrap(text, width - 13)):
        yield [(f"   {label if index == 0 else '':<10}", "dim"), (part, "green" if label == "fix" else "")]


def _plain(text: str, width: int, indent: str = "  ") -> Iterator[Line]:
    for part in _wrap(text, width, indent):
        yield [(part, "dim")]


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    parts: list[str] = []
    for paragraph in text.splitlines():
        parts += textwrap.wrap(
            paragraph,
            width,
            subsequent_indent=indent,
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
        ) or [""]
    return parts


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{k} {_value(v)}" for k, v in value.items()) + ")"
    if isinstance(value, Iterable) and not isinstance(value, str):
        items = [_value(v) for v in value]
        shown = 5 if sum(map(len, items[:5])) <= LONGEST else 2
        return "[" + ", ".join(items[:shown] + (["..."] if len(items) > shown else [])) + "]"
    return _cut(str(value), LONGEST)
