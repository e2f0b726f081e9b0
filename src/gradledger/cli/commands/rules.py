"""`gradledger rules`: every rule in one table."""

from __future__ import annotations

from typing import Annotated

import typer

from gradledger.audit import registry
from gradledger.audit.rule import FAMILIES

SUMMARY = "List every rule: code, name, severity, summary."


def command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of the list.")] = False,
) -> None:
    """List every rule: code, name, severity, summary."""
    rules = registry.load().rules
    if as_json:
        import json

        rows = [
            {
                "code": r.rule.key,
                "name": r.rule.name,
                "family": r.rule.family,
                "severity": r.rule.severity,
                "summary": r.rule.summary,
            }
            for r in rules
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max((len(r.rule.name) for r in rules), default=0)
    for family in FAMILIES:
        members = [r.rule for r in rules if r.rule.family == family]
        if members:
            typer.echo(family)
            for rule in members:
                typer.echo(f"  {rule.key}  {rule.name:<{width}}  {rule.severity:<7}  {rule.summary}")
    for code, reason in registry.load().broken:
        typer.echo(f"{code}: {reason}", err=True)
