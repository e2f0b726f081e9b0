"""The report as one HTML file: no network, no other file, readable without script, on a phone, in light and dark.

Everything that comes from the program is escaped (see `_html`), and a content policy lets the page load nothing.
"""

from __future__ import annotations

import ast
import difflib
import platform
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from gradledger._version import __version__
from gradledger.audit import oracle, registry
from gradledger.audit._phrases import times
from gradledger.audit._source import source_line, source_lines
from gradledger.audit.render import _pictures
from gradledger.audit.render._html import Raw, el, join, markdown, prose
from gradledger.audit.render._layout import (
    ORACLE,
    difference_rows,
    evidence_text,
    oracle_text,
    place,
    reasons,
    run_line,
    shown_path,
    together,
    verdict,
)
from gradledger.audit.render._style import CSS, JS, POLICY
from gradledger.audit.report import Report
from gradledger.audit.rule import SEVERITIES, Finding
from gradledger.core.errors import UsageError
from gradledger.core.site import Site

BEFORE, AFTER = 5, 4  # lines of source around the marked one
RELATED = 12
SIGNS = {"error": "✕", "warning": "!", "info": "i"}
WORDS = {"error": "error", "warning": "warning", "info": "remark"}


def render(report: Report, *, footer: Sequence[str] = ()) -> str:
    """An HTML document.  `footer`: further lines, such as where the run is kept."""
    sections = [
        ("findings", "Findings", "Findings", _findings(report)),
        ("compared", "Compared", "Compared with a good run", _compared(report)),
        ("oracle", "Oracle", "What the consumed gradients are made of", _oracle(report)),
        *_pictures.sections(report.story),
        ("coverage", "Coverage", "What was checked, and what could not be", _coverage(report)),
        ("cost", "Cost", "Cost and versions", _cost(report, footer)),
    ]
    shown = [section for section in sections if section[3]]
    links = [el("li", el("a", short, href=f"#{name}")) for name, short, _, _ in shown]
    main = [el("section", el("h2", title, id=f"{name}-title"), body, id=name, aria_labelledby=f"{name}-title")
            for name, _, title, body in shown]  # fmt: skip
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="generator", content=f"gradledger {__version__}"),
        el("title", f"gradledger: {verdict(report)}"),
        Raw(f"<style>{CSS}</style>"),
    )
    body = el(
        "body",
        el("a", "To the findings", href="#findings", class_="skip"),
        el("div", _top(report), el("nav", el("ul", links), class_="toc", aria_label="Sections"), el("main", main),
           el("footer", _foot()), class_="page"),
        Raw(f"<script>{JS}</script>"),
    )  # fmt: skip
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


# ------------------------------------------------------------------------------------------- top and bottom


def _top(report: Report) -> Raw:
    worst = next((s for s in SEVERITIES if report.count(s)), None)
    kind = worst or ("ok" if report.events else "info")
    sign = SIGNS[worst] if worst else "✓" if report.events else "?"
    facts: list[Raw] = []
    if report.program:
        facts.append(el("li", el("b", "Command "), el("code", _command(report))))
    if report.exit_code is not None:
        facts.append(el("li", el("b", "Program's exit code "), report.exit_code))
    if report.cost is not None and report.cost.seconds:
        facts.append(el("li", el("b", "Watched "), _seconds(report.cost.seconds)))
    return el(
        "header",
        el(
            "div",
            el("span", sign, class_=f"dot-big v-{kind}", aria_hidden="true"),
            el("div", el("h1", verdict(report)), el("p", run_line(report), class_="muted")),
            class_="verdict",
        ),
        el("ul", facts, class_="facts") if facts else None,
        class_="top",
    )


def _command(report: Report) -> str:
    started = report.started
    words = [report.program, *(started.argv if started is not None else ())]
    module = not report.program.endswith(".py") and not Path(report.program).exists()
    return "gradledger audit " + ("-m " if module else "") + shlex.join(words)


def _foot() -> Raw:
    return join(f"gradledger {__version__} · ", el("code", "gradledger rules"), " lists every rule, ",
                el("code", "gradledger explain CODE"), " shows its page.")  # fmt: skip


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


# ------------------------------------------------------------------------------------------- findings


def _findings(report: Report) -> Raw:
    if not report.findings:
        text = "Nothing was recorded, so nothing could be judged." if not report.events else (
            f"None. {len(report.checked)} rules looked at this run; what they could not see is listed below."
        )  # fmt: skip
        return el("div", el("p", text), class_="panel")
    tools: Raw | None = None
    severities = [s for s in SEVERITIES if report.count(s)]
    if len(severities) > 1:
        buttons = [el("button", f"All {len(report.findings)}", type="button", data_severity="all", aria_pressed="true")]
        buttons += [
            el("button", f"{WORDS[s]}s {report.count(s)}", type="button", data_severity=s, aria_pressed="false")
            for s in severities
        ]
        tools = el("div", buttons, class_="tools", hidden=True, role="group", aria_label="Show findings")
    articles = [_finding(n, f, report) for n, f in enumerate(report.findings, start=1)]
    return join(tools, articles)


def _finding(number: int, finding: Finding, report: Report) -> Raw:
    name = report.names.get(finding.key, "")
    title = el("h3", f"{number}. ", el("code", finding.key), f" {name}", id=f"finding-{number}")
    badges = [
        el("span", f"{SIGNS[finding.severity]} {WORDS[finding.severity]}", class_=f"badge {finding.severity}"),
        el("span", finding.confidence, class_="badge plain", title="how sure the rule is"),
    ]
    rows: list[tuple[str, object]] = []
    seen = f"{finding.count} times" if finding.count > 1 else ""
    if finding.iteration is not None:
        seen += f"{', ' if seen else ''}first in iteration {finding.iteration}"
    if seen:
        rows.append(("seen", seen))
    rows += [
        (key.replace("_", " "), evidence_text({key: value})[len(key) + 1 :])
        for key, value in finding.evidence.items()
        if value not in (None, "", [], ()) and key != ORACLE
    ]
    if said := oracle_text(finding.evidence):
        rows.append((ORACLE, said))
    left = join(
        el("p", _where(finding.site), class_="small") if finding.has_line else None,
        _source(finding),
        el("p", "Fix", class_="label"),
        _fix(finding),
        _allow(finding),
    )
    right = join(
        el("p", "Evidence", class_="label") if rows else None,
        el("dl", [join(el("dt", k), el("dd", v)) for k, v in rows], class_="kv") if rows else None,
        _related(finding),
        _rule_page(finding.key),
    )
    return el(
        "article",
        el("header", badges, title),
        el("p", prose(finding.message), class_="message"),
        _pictures.life(report.story, finding),
        el("div", el("div", left), el("div", right), class_="cols"),
        class_=f"panel finding {finding.severity}",
        data_severity=finding.severity,
        aria_labelledby=f"finding-{number}",
    )


def _where(site: Site) -> Raw:
    path = Path(site.file)
    if not path.is_absolute():
        return el("code", place(site))
    try:
        return el("a", el("code", place(site)), href=path.as_uri())
    except (ValueError, UnicodeEncodeError):
        return el("code", place(site))


def _source(finding: Finding) -> Raw | None:
    site = finding.site
    lines = source_lines(site.file) if site.file else ()
    if not 0 < site.line <= len(lines):
        return None
    first, last = max(1, site.line - BEFORE), min(len(lines), site.line + AFTER)
    block = textwrap.dedent("\n".join(line.expandtabs(4) for line in lines[first - 1 : last])).split("\n")
    numbered = list(enumerate(block, start=first))
    while numbered and not numbered[0][1].strip():
        numbered.pop(0)
    while numbered and not numbered[-1][1].strip():
        numbered.pop()
    related = {s.line for s in finding.related if s.file == site.file}
    rows = []
    for number, text in numbered:
        hit = number == site.line
        kind = "row hit" if hit else "row rel" if number in related else "row"
        inner = el("span", f"{'▸' if hit else ' '}{number}", class_="n"), text or " "
        rows.append(el("mark" if hit else "span", inner, class_=kind, style="color:inherit" if hit else None))
    label = f"{shown_path(site.file)} around line {site.line}"
    return el("div", el("pre", rows, class_="source"), class_="scroll", tabindex="0", role="region", aria_label=label)


def _fix(finding: Finding) -> Raw:
    """A changed line as a difference, a new line as an addition, anything else as words."""
    fix = finding.fix.strip("\n")
    if not _is_code(fix):
        return el("p", prose(fix))
    old = source_line(finding.site.file, finding.site.line).strip()
    new = textwrap.dedent(fix).splitlines()
    alike = difflib.SequenceMatcher(None, old, fix.strip().splitlines()[0]).ratio() >= 0.6
    before = [el("span", f"- {old}", class_="del")] if alike and old != fix.strip() else []
    after = [el("span", f"+ {line}", class_="add") for line in new]
    label = "the line as it should read" if before else "the line to write"
    return el(
        "div", el("pre", before, after, class_="fix"), class_="scroll", tabindex="0", role="region", aria_label=label
    )


def _is_code(fix: str) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(fix))
    except (SyntaxError, ValueError, RecursionError):
        return False
    # one bare word or name is prose that happens to parse
    return bool(tree.body) and not all(isinstance(n, ast.Expr) and isinstance(n.value, ast.Name) for n in tree.body)


def _allow(finding: Finding) -> Raw:
    text = source_line(finding.site.file, finding.site.line).strip()
    comment = f"# gradledger: allow[{finding.key}] why it is meant"
    shown = f"{text}  {comment}" if text and "#" not in text else comment
    return el("details", el("summary", "Meant like this? Allow it"), el("pre", shown, class_="say"))


def _related(finding: Finding) -> Raw | None:
    related = [s for s in dict.fromkeys(finding.related) if s.file]
    if not related:
        return None
    items = [
        el("li", _where(s), el("br"), el("code", source_line(s.file, s.line).strip(), class_="muted"))
        for s in related[:RELATED]
    ]
    more = el("li", f"and {len(related) - RELATED} more") if len(related) > RELATED else None
    return join(el("p", "Lines that belong to it", class_="label"), el("ul", items, more, class_="small"))


def _rule_page(key: str) -> Raw | None:
    try:
        loaded = registry.load().find(key)
    except UsageError:
        return None
    return el(
        "details",
        el("summary", f"What {key} means, and when it is silent"),
        el("div", markdown(loaded.page), class_="small"),
    )


# ------------------------------------------------------------------------------------------- the rest


def _compared(report: Report) -> Raw | None:
    comparison = report.comparison
    if comparison is None:
        return None
    rows = difference_rows(report)
    told = (
        f"Against {comparison.good}: {times(len(rows), 'difference')} over {times(comparison.compared, 'parameter')}."
    )
    equal = f" {together(comparison.together).capitalize()}." if comparison.together else None
    head = el("p", told, equal)
    if not rows:
        return el("div", head, class_="panel")
    return el("div", head, _table(("what", "of", "good run", "this run", "iteration", "line"), rows), class_="panel")


def _oracle(report: Report) -> Raw | None:
    found = report.oracle
    if found is None:
        return None
    head = el("p", f"{oracle.headline(found).removeprefix('oracle: ')}. Gradients were computed again on copies, term ",
              "by term, and compared with what the optimizer used.")  # fmt: skip
    return el("div", head, _table(("what", "seen"), oracle.rows(found)), class_="panel")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Raw:
    return el(
        "table",
        el("thead", el("tr", [el("th", h, scope="col") for h in heads])),
        el("tbody", [el("tr", [el("td", c, data_label=h) for h, c in zip(heads, row, strict=True)]) for row in rows]),
        class_="cards",
    )


def _coverage(report: Report) -> Raw:
    parts: list[Raw | None] = []
    if report.suppressed:
        items = [
            el("li", el("code", s.finding.key), " at ", _where(s.finding.site), f": {s.reason or 'no reason given'}")
            for s in report.suppressed
        ]
        parts.append(join(el("h3", "Allowed by a comment"), el("ul", items)))
    notes = [f"{shown_path(n.file)}:{n.line}: {n.message}" if n.file else n.message for n in report.notes]
    if notes:
        parts.append(join(el("h3", "Remarks on the audit"), el("ul", [el("li", n) for n in notes])))
    if report.not_checked:
        items = [el("li", el("b", codes), f": {reason}") for codes, reason in reasons(report)]
        parts.append(join(el("h3", f"Not checked: {len(report.not_checked)} rules"), el("ul", items)))
    ended = report.ended
    given = {n.reason for n in report.not_checked}
    unseen = [text for text in (ended.not_watched if ended is not None else ()) if text not in given]
    failures = list(ended.failures) if ended is not None else []
    sampled = [f"judged on {report.sampled}"] if report.sampled else []
    if ended is None:
        sampled.append("the run was cut off before its end: later iterations are unknown")
    if unseen or failures or sampled:
        texts = [*unseen, *sampled, *(f"inside gradledger, the program was not touched: {f}" for f in failures)]
        parts.append(join(el("h3", "Could not be seen"), el("ul", [el("li", t) for t in texts])))
    checked = [el("li", el("code", key), f" {report.names.get(key, '')}") for key in report.checked]
    what = f"Checked: {len(report.checked)} rule{'s' if len(report.checked) != 1 else ''}"
    parts.append(el("details", el("summary", what), el("ul", checked, class_="small")))
    return el("div", parts, class_="panel")


def _cost(report: Report, footer: Sequence[str]) -> Raw:
    rows: list[tuple[str, str]] = [("facts recorded", str(report.events))]
    story, cost, started = report.story, report.cost, report.started
    if story is not None:
        rows.append(("iterations looked at in full", f"{story.detailed} of {story.iterations}"))
    if cost is not None:
        if cost.seconds:
            rows.append(("watched for", f"{_seconds(cost.seconds)}, the program's own work included"))
        if cost.stored_bytes:
            rows.append(("stored facts", f"{cost.stored_bytes / 1024:.0f} KiB in {cost.stored_at}"))
    rows.append(("gradledger", __version__))
    if started is not None:
        rows += [("torch", started.torch or "unknown"), ("python", started.python or "unknown")]
        if started.argv:
            rows.append(("arguments", shlex.join(started.argv)))
    rows.append(("report made on", platform.platform()))
    return el(
        "div",
        el("dl", [join(el("dt", k), el("dd", v)) for k, v in rows], class_="kv"),
        [el("p", line, class_="small muted") for line in footer],
        class_="panel",
    )


__all__ = ["render"]
