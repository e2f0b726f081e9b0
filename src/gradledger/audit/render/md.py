"""The report as Markdown: for a pull request or an issue."""

from __future__ import annotations

from collections.abc import Sequence

from gradledger.audit import oracle
from gradledger.audit.render._layout import (
    difference_rows,
    evidence_text,
    excerpt,
    oracle_text,
    place,
    reasons,
    run_line,
    verdict,
)
from gradledger.audit.report import Report
from gradledger.audit.rule import Finding


def render(report: Report, *, footer: Sequence[str] = ()) -> str:
    """A Markdown document with a final line end."""
    parts = [f"# gradledger: {verdict(report)}", run_line(report)]
    for number, finding in enumerate(report.findings, start=1):
        parts += _finding(number, finding, report.names.get(finding.key, ""))
    parts += _compared(report)
    parts += _oracle(report)
    for silenced in report.suppressed:
        reason = silenced.reason or "no reason given"
        parts.append(f"- allowed: {silenced.finding.key} at `{place(silenced.finding.site)}` ({reason})")
    parts += [
        f"- `{note.file}:{note.line}`: {note.message}" if note.file else f"- {note.message}" for note in report.notes
    ]
    parts.append(f"Checked {len(report.checked)} rules: {', '.join(report.checked) or 'none'}.")
    groups = reasons(report)
    if groups:
        parts.append("Not checked:\n\n" + "\n".join(f"- {codes}: {reason}" for codes, reason in groups))
    parts += footer
    return "\n\n".join(parts) + "\n"


def _compared(report: Report) -> list[str]:
    if report.comparison is None:
        return []
    rows = difference_rows(report)
    head = f"## {len(rows)} difference{'s' if len(rows) != 1 else ''} from {report.comparison.good}"
    if not rows:
        return [head]
    heads = ("what", "of", "good run", "this run", "iteration", "line")
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return [head, "\n".join(f"| {line} |" for line in lines)]


def _oracle(report: Report) -> list[str]:
    if report.oracle is None:
        return []
    told = "\n".join(f"- {text}: {where}" for text, where in oracle.rows(report.oracle))
    return [f"## {oracle.headline(report.oracle)}", told]


def _finding(number: int, finding: Finding, name: str) -> list[str]:
    parts = [f"## {number}. {finding.key} {name} ({finding.severity})", finding.message]
    if finding.has_line:
        lines = excerpt(finding.site)
        marks = "\n".join(f"{'>' if marked else ' '} {line:>4} | {text}" for line, text, marked in lines)
        parts.append(f"`{place(finding.site)}`" + (f"\n\n```text\n{marks}\n```" if marks else ""))
    rows = []
    if finding.count > 1:
        rows.append(f"- seen {finding.count} times")
    if finding.evidence:
        rows.append(f"- evidence: {evidence_text(finding.evidence)}")
    if said := oracle_text(finding.evidence):
        rows.append(f"- oracle: {said}")
    rows += [f"- related: `{place(site)}`" for site in dict.fromkeys(finding.related) if site.file]
    rows.append(f"- fix: `{finding.fix}`" if "\n" not in finding.fix else f"- fix:\n\n```python\n{finding.fix}\n```")
    return [*parts, "\n".join(rows)]
