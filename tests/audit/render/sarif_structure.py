"""What SARIF 2.1.0 (OASIS, section 3) asks of the objects that our report uses: required and allowed properties, types,
closed words, and the references between them.  Written from the standard, not from the renderer."""

from __future__ import annotations

import re
from typing import Any

LEVEL = ("none", "note", "warning", "error")
# object -> property -> type: str, int, bool, ("word", ...), "object", ["object"]; a leading "!" marks what is required
OBJECTS: dict[str, dict[str, Any]] = {
    "sarifLog": {"$schema": "uri", "!version": ("2.1.0",), "!runs": ["run"], "properties": dict},
    "run": {
        "!tool": "tool", "automationDetails": "runAutomationDetails", "originalUriBaseIds": {"artifactLocation"},
        "columnKind": ("utf16CodeUnits", "unicodeCodePoints"), "invocations": ["invocation"], "results": ["result"],
        "artifacts": ["artifactLocation"], "properties": dict,
    },
    "tool": {"!driver": "toolComponent", "properties": dict},
    "toolComponent": {
        "!name": str, "version": str, "semanticVersion": str, "informationUri": "uri",
        "rules": ["reportingDescriptor"], "properties": dict,
    },
    "reportingDescriptor": {
        "!id": str, "name": str, "shortDescription": "multiformat", "fullDescription": "multiformat",
        "help": "multiformat", "helpUri": "uri", "defaultConfiguration": "reportingConfiguration", "properties": dict,
    },
    "reportingConfiguration": {"level": LEVEL, "enabled": bool, "rank": int, "properties": dict},
    "multiformat": {"!text": str, "markdown": str, "properties": dict},
    "message": {"text": str, "markdown": str, "id": str, "arguments": [str], "properties": dict},
    "runAutomationDetails": {"id": str, "guid": str, "description": "message", "properties": dict},
    "invocation": {
        "!executionSuccessful": bool, "exitCode": int, "arguments": [str], "commandLine": str,
        "toolConfigurationNotifications": ["notification"], "toolExecutionNotifications": ["notification"],
        "properties": dict,
    },
    "notification": {
        "!message": "message", "level": LEVEL, "associatedRule": "reportingDescriptorReference",
        "locations": ["location"], "properties": dict,
    },
    "reportingDescriptorReference": {"id": str, "index": int, "properties": dict},
    "result": {
        "ruleId": str, "ruleIndex": int, "level": LEVEL, "!message": "message", "locations": ["location"],
        "relatedLocations": ["location"], "partialFingerprints": {str}, "fingerprints": {str}, "occurrenceCount": int,
        "suppressions": ["suppression"], "kind": ("fail", "pass", "review", "open", "informational", "notApplicable"),
        "properties": dict,
    },
    "suppression": {
        "!kind": ("inSource", "external"), "status": ("accepted", "underReview", "rejected"), "justification": str,
        "properties": dict,
    },
    "location": {
        "id": int, "physicalLocation": "physicalLocation", "logicalLocations": ["logicalLocation"],
        "message": "message", "properties": dict,
    },
    "physicalLocation": {
        "artifactLocation": "artifactLocation", "region": "region", "contextRegion": "region", "properties": dict,
    },
    "artifactLocation": {"uri": "uri", "uriBaseId": str, "index": int, "description": "message", "properties": dict},
    "region": {
        "startLine": int, "startColumn": int, "endLine": int, "endColumn": int, "snippet": "artifactContent",
        "properties": dict,
    },
    "artifactContent": {"text": str, "properties": dict},
    "logicalLocation": {"name": str, "fullyQualifiedName": str, "kind": str, "properties": dict},
}  # fmt: skip
URI = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*")


def problems(document: Any) -> list[str]:
    """Everything that is wrong with a SARIF document, each with the path to it."""
    found = list(_object("sarifLog", document, "$"))
    return found or [p for n, run in enumerate(document["runs"]) for p in _references(run, f"$.runs[{n}]")]


def _object(kind: str, value: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: {kind} is no object"]
    wanted = OBJECTS[kind]
    allowed = {name.lstrip("!"): shape for name, shape in wanted.items()}
    found = [f"{path}: {kind} without {n[1:]}" for n in wanted if n.startswith("!") and n[1:] not in value]
    for name, inner in value.items():
        if name not in allowed:
            found.append(f"{path}: {kind} has no property {name}")
        else:
            found += _value(allowed[name], inner, f"{path}.{name}")
    return found


def _value(shape: Any, value: Any, path: str) -> list[str]:
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{path}: no array"]
        return [p for n, item in enumerate(value) for p in _value(shape[0], item, f"{path}[{n}]")]
    if isinstance(shape, set):
        (inner,) = shape
        return [p for key, item in value.items() for p in _value(inner, item, f"{path}.{key}")]
    if isinstance(shape, tuple):
        return [] if value in shape else [f"{path}: {value!r} is none of {shape}"]
    if shape == "uri":
        return [] if isinstance(value, str) and URI.fullmatch(value) else [f"{path}: {value!r} is no URI"]
    if isinstance(shape, str):
        return _object(shape, value, path)
    ok = isinstance(value, shape) and not (shape is int and isinstance(value, bool))
    return [] if ok else [f"{path}: {value!r} is no {shape.__name__}"]


def _references(run: Any, path: str) -> list[str]:
    """Rules by id and index, base ids, positive lines, messages with words."""
    found: list[str] = []
    rules = run["tool"]["driver"].get("rules", [])
    ids = [rule["id"] for rule in rules]
    if len(set(ids)) != len(ids):
        found.append(f"{path}: a rule id twice")
    bases = run.get("originalUriBaseIds", {})
    for name, base in bases.items():
        if not base["uri"].endswith("/"):
            found.append(f"{path}: base {name} does not end with a slash")

    def walk(value: Any, where: str) -> None:
        if isinstance(value, list):
            for number, item in enumerate(value):
                walk(item, f"{where}[{number}]")
        elif isinstance(value, dict):
            base = value.get("uriBaseId")
            if base is not None:
                if base not in bases:
                    found.append(f"{where}: unknown uriBaseId {base}")
                if value["uri"].startswith("/") or ":" in value["uri"].partition("/")[0]:
                    found.append(f"{where}: an absolute URI with a base")
            for name in ("startLine", "startColumn", "endColumn", "occurrenceCount"):
                if name in value and value[name] < 1:
                    found.append(f"{where}.{name}: below 1")
            for name, item in value.items():
                if name != "properties":
                    walk(item, f"{where}.{name}")

    walk(run, path)
    for number, result in enumerate(run.get("results", [])):
        where = f"{path}.results[{number}]"
        at = result.get("ruleIndex", -1)
        if not 0 <= at < len(ids) or ids[at] != result.get("ruleId"):
            found.append(f"{where}: ruleIndex does not lead to ruleId")
        if not result["message"].get("text"):
            found.append(f"{where}: no text")
        related = [place.get("id") for place in result.get("relatedLocations", [])]
        if len(set(related)) != len(related):
            found.append(f"{where}: related ids are not distinct")
    return found
