"""The report as SARIF 2.1.0: code hosts and editors annotate the lines with it.

Paths below the current folder are relative to `%SRCROOT%`; others are absolute.  A result is recognised again by
`partialFingerprints`, made of the code, the file, the function and the text of the line, not of its number.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gradledger._version import __version__
from gradledger.audit import registry
from gradledger.audit._source import source_line
from gradledger.audit.registry import LoadedRule
from gradledger.audit.render.json import comparison, finite
from gradledger.audit.report import Report
from gradledger.audit.rule import Finding
from gradledger.core.errors import UsageError
from gradledger.core.site import Site

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BASE = "%SRCROOT%"
FINGERPRINT = "gradledger/v1"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}

Json = dict[str, Any]


def render(report: Report) -> str:
    """A SARIF document with a final line end."""
    return json.dumps(as_dict(report), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def as_dict(report: Report) -> Json:
    """The report as plain JSON values: one run, suppressed findings included and marked as such."""
    keys = sorted({*report.names, *(f.key for f in report.findings), *(s.finding.key for s in report.suppressed)})
    index = {key: number for number, key in enumerate(keys)}
    loaded = _loaded(keys)
    seen: Counter[str] = Counter()
    shown = {f.key for f in report.findings} | {s.finding.key for s in report.suppressed}
    results = [_result(f, index, report, seen) for f in report.findings]
    for silenced in report.suppressed:
        result = _result(silenced.finding, index, report, seen)
        result["suppressions"] = [{"kind": "inSource", "status": "accepted", "justification": silenced.reason}]
        results.append(result)
    driver = {
        "name": "gradledger",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_rule(key, report.names.get(key, ""), loaded.get(key), full=key in shown) for key in keys],
    }
    run: Json = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"gradledger/{_relative(report.program) or 'program'}/"},
        "originalUriBaseIds": {BASE: {"uri": Path.cwd().as_uri().rstrip("/") + "/"}},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report, index)],
        "results": results,
        "properties": {
            "checked": list(report.checked),
            "events": report.events,
            "sampled": report.sampled,
            "comparison": comparison(report),
        },
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def fingerprint(finding: Finding, number: int = 0) -> str:
    """What a result is recognised by although its line moved; `number`: of the results that share all of it."""
    text = " ".join(source_line(finding.site.file, finding.site.line).split()) or finding.subject
    parts = (finding.key, _relative(finding.site.file), finding.site.function, text, str(number))
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


def _loaded(keys: Iterable[str]) -> dict[str, LoadedRule]:
    rules = registry.load()
    found: dict[str, LoadedRule] = {}
    for key in keys:
        try:
            found[key] = rules.find(key)
        except UsageError:  # of another registry: its page is not at hand
            continue
    return found


def _rule(key: str, name: str, loaded: LoadedRule | None, *, full: bool) -> Json:
    explain = f"`gradledger explain {key}` shows its page with a faulty and a correct program."
    if loaded is None:
        return {"id": key, "name": name or key, "help": {"text": explain}}
    rule = loaded.rule
    found: Json = {
        "id": key,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.summary},
        "help": {"text": f"{rule.summary}\n\n{explain}"},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"tags": [rule.family, "pytorch"], "kebab-name": rule.name},
    }
    if full:
        found["help"] = {"text": f"{loaded.page}\n\n{explain}", "markdown": f"{loaded.page}\n\n{explain}"}
    return found


def _result(finding: Finding, index: dict[str, int], report: Report, seen: Counter[str]) -> Json:
    mark = fingerprint(finding)
    number = seen[mark]
    seen[mark] += 1
    related = [s for s in dict.fromkeys(finding.related) if s.file]
    result: Json = {
        "ruleId": finding.key,
        "ruleIndex": index[finding.key],
        "level": LEVELS[finding.severity],
        "message": {"text": _unlinked(f"{finding.message}\nFix: {finding.fix}")},
        "locations": _locations(finding, report),
        "partialFingerprints": {FINGERPRINT: fingerprint(finding, number)},
        "occurrenceCount": max(finding.count, 1),
        "properties": {
            "confidence": finding.confidence,
            "precision": "very-high" if finding.confidence == "certain" else "high",
            "subject": finding.subject,
            "iteration": finding.iteration,
            "evidence": finite(dict(finding.evidence)),
            "fix": finding.fix,
        },
    }
    if related:
        result["relatedLocations"] = [
            {"id": number, **_location(site), "message": {"text": _unlinked(_line_of(site))}}
            for number, site in enumerate(related)
        ]
    return result


def _locations(finding: Finding, report: Report) -> list[Json]:
    """Where it is; a finding without a line is laid on the program's file, if it has one."""
    if finding.has_line:
        return [_location(finding.site)]
    if report.program and Path(report.program).is_file():
        return [{"physicalLocation": {"artifactLocation": _artifact(report.program)}}]
    return []


def _location(site: Site) -> Json:
    text = source_line(site.file, site.line)
    region: Json = {"startLine": max(site.line, 1)}
    if text.strip():
        region |= {
            "startColumn": len(text) - len(text.lstrip()) + 1,
            "endColumn": len(text.rstrip()) + 1,
            "snippet": {"text": text},
        }
    place: Json = {"physicalLocation": {"artifactLocation": _artifact(site.file), "region": region}}
    if site.function and site.function != "<module>":
        place["logicalLocations"] = [{"name": site.function, "kind": "function"}]
    return place


def _artifact(file: str) -> Json:
    relative = _relative(file)
    if relative and not Path(relative).is_absolute():
        return {"uri": quote(relative), "uriBaseId": BASE}
    path = Path(file)
    return {"uri": path.as_uri() if path.is_absolute() else quote(file)}


def _relative(file: str) -> str:
    """The path below the current folder with forward slashes; the absolute one when it lies elsewhere."""
    if not file:
        return ""
    path = Path(file).absolute()
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def _invocation(report: Report, index: dict[str, int]) -> Json:
    ended = report.ended
    failures = ended.failures if ended is not None else ()
    told: Json = {
        "executionSuccessful": ended is not None,
        "toolConfigurationNotifications": [
            {
                "level": "note",
                "message": {"text": _unlinked(f"{item.key} was not checked: {item.reason}")},
                **({"associatedRule": {"id": item.key, "index": index[item.key]}} if item.key in index else {}),
            }
            for item in report.not_checked
        ],
        "toolExecutionNotifications": [
            *({"level": "warning", "message": {"text": _unlinked(text)}} for text in failures),
            *(
                {
                    "level": "note",
                    "message": {"text": _unlinked(note.message)},
                    **({"locations": [_location(Site(note.file, note.line, ""))]} if note.file else {}),
                }
                for note in report.notes
            ),
        ],
    }
    if ended is not None:
        told["exitCode"] = ended.exit_code
    if report.started is not None:
        told["arguments"] = list(report.started.argv)
    return told


def _line_of(site: Site) -> str:
    return source_line(site.file, site.line).strip() or f"line {site.line}"


def _unlinked(text: str) -> str:
    """SARIF reads `[words](2)` in a message as a link to a related line: what the program wrote is none."""
    return text.replace("](", "] (")
