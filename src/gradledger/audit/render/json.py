"""The report as JSON, schema 1: for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradledger.audit.oracle import Summary
from gradledger.audit.report import Report
from gradledger.audit.rule import Finding
from gradledger.core.site import Site

SCHEMA = 1


def render(report: Report) -> str:
    """A JSON document with a final line end; finite numbers only (nan and infinities become strings)."""
    return json.dumps(as_dict(report), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain JSON values."""
    ended = report.ended
    return {
        "schema": SCHEMA,
        "program": report.program,
        "exit_code": report.exit_code,
        "findings": [_finding(f, report.names) for f in report.findings],
        "checked": list(report.checked),
        "not_checked": [{"code": n.key, "reason": n.reason} for n in report.not_checked],
        "suppressed": [_finding(s.finding, report.names) | {"reason": s.reason} for s in report.suppressed],
        "notes": [{"file": n.file, "line": n.line, "message": n.message} for n in report.notes],
        "comparison": comparison(report),
        "oracle": _oracle(report.oracle),
        "run": {
            "complete": ended is not None,
            "exception": ended.exception if ended else "",
            "steps": ended.steps if ended else None,
            "backwards": ended.backwards if ended else None,
            "events": report.events,
            "sampled": report.sampled,
            "failures": list(ended.failures) if ended else [],
            "not_watched": list(ended.not_watched) if ended else [],
            "others": [
                {"rank": None if o.process else o.rank, "process": o.process or None, "steps": o.steps}
                | {"backwards": o.backwards, "complete": not o.cut, "checked": list(o.checked)}
                for o in report.others
            ],
        },
    }


def _finding(finding: Finding, names: Mapping[str, str]) -> dict[str, Any]:
    related = list(dict.fromkeys(s for s in finding.related if s.file))
    return {
        "code": finding.key,
        "name": names.get(finding.key, ""),
        "severity": finding.severity,
        "confidence": finding.confidence,
        "file": finding.site.file,
        "line": finding.site.line,
        "related_lines": sorted({s.line for s in related if s.file == finding.site.file}),
        "related": [_site(s) for s in related],
        "count": finding.count,
        "iteration": finding.iteration,
        "subject": finding.subject,
        "evidence": finite(finding.evidence),
        "message": finding.message,
        "fix": finding.fix,
    }


def comparison(report: Report) -> dict[str, Any] | None:
    """The comparison with a good run; None when there was none."""
    found = report.comparison
    if found is None:
        return None
    return {
        "with": found.good,
        "parameters": found.compared,
        "equal_iterations": found.together,
        "differences": [
            {
                "what": d.what,
                "subject": d.subject,
                "there": d.there,
                "here": d.here,
                "iteration": d.iteration,
                "file": d.site.file,
                "line": d.site.line,
            }
            for d in found.differences
        ],
    }


def _oracle(found: Summary | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "explained": found.explained,
        "unexplained": found.unexplained,
        "not_replayable": found.abstained,
        "explanations": [
            {"text": e.text, "iterations": e.iterations, "first": e.iteration, **_site(e.site)}
            for e in found.explanations
        ],
        "reasons": [
            {"reason": a.reason, "text": a.text, "iterations": a.iterations, **_site(a.site)} for a in found.reasons
        ],
    }


def _site(site: Site) -> dict[str, Any]:
    return {"file": site.file, "line": site.line, "function": site.function}


def finite(value: Any) -> Any:
    """The value as JSON can hold it: nan and infinities as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(v) for v in value]
    return value
