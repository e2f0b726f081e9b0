"""The model card, compiled from `card.toml` and the folder: every number a reference, no section empty. How often test
labels were opened is added from the record of it.

[front]                       # for the Hub: license, tags, pipeline_tag ... ; name: of the model
name = "ik-planar"
task = "tabular-regression"
[facts]                       # constants that the texts need
workspace_m = 3.0
[sections]                    # each of SECTIONS
intended_use = "Poses within {{card.toml#facts.workspace_m}} m of the base."
[[results]]                   # model-index: one distinct config a slice
dataset = "planar arm"
config = "all"
metric = "mse"
value = "results.json#trials[0].validation"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradledger.core.records import Fault, RecordError, write_text
from gradledger.evidence._openings import OPENINGS, openings
from gradledger.evidence.errors import CardError, PlanError
from gradledger.evidence.references import fill, resolve

SOURCE, CARD = "card.toml", "README.md"
SECTIONS: dict[str, str] = {
    "intended_use": "Intended use",
    "excluded_use": "Excluded use",
    "lineage": "Lineage of data and weights",
    "units_and_frames": "Units and frames",
    "results": "Results",
    "slices": "Slices",
    "worst_cases": "Worst cases",
    "latency": "Latency",
    "rejection": "Rejection and abstention",
    "limitations": "Limitations",
    "evidence_boundary": "Evidence boundary",
}
Line = tuple[str, tuple[str, ...]]


def write(folder: Path) -> Path:
    """Compile `card.toml` into the card; returns where it is.

    Raises:
        CardError: a section is missing or empty, a number is written by hand, a reference leads nowhere, or two results
            of a metric share a config.
        RecordError: the record of opened test labels was edited.
    """
    path = folder / CARD
    write_text(path, "\n".join(line for line, _ in compile(folder)) + "\n")
    return path


def compile(folder: Path) -> list[Line]:
    """Lines of the card, each with the references whose values it shows. Raises as `write` does."""
    source = _source(folder)
    front, sections = _part(source, "front"), _part(source, "sections")
    for key in sections:
        if key not in SECTIONS:
            raise _refused(f"the section {key!r}", f"of {', '.join(SECTIONS)}", "sections", "rename it")
    results, refs = _results(folder, source, front)
    head = {key: value for key, value in front.items() if key not in ("name", "task")}
    name = front.get("name")
    if not isinstance(name, str) or not name.strip():
        raise _refused("no name", "the model's name", "front", 'add name = "..."')
    head["model-index"] = [{"name": name, "results": results}]
    lines: list[Line] = [("---", ())]
    values = iter(refs)
    for line in yaml(head):
        lines.append((line, (next(values, SOURCE),) if line.strip().startswith('"value":') else ()))
    lines += [("---", ()), ("", ()), (f"# {name}", ())]
    for key, title in SECTIONS.items():
        text = sections.get(key)
        if not isinstance(text, str) or not text.strip():
            got = "no text" if key in sections else "no such section"
            raise _refused(
                got, f"the section {title!r} filled", f"sections.{key}", "say it, or say why it was not measured"
            )
        lines += [("", ()), (f"## {title}", ()), ("", ()), *fill(folder, text, where=f"{SOURCE}: sections.{key}")]
    return [*lines, *_opened(folder)]


def faults(folder: Path) -> list[Fault]:
    """Where the card says something else than the folder: the line, and what it should refer to."""
    if not (folder / SOURCE).exists():
        return []
    if not (folder / CARD).exists():
        return [Fault(CARD, "file", "no card", f"the card that {SOURCE} makes")]
    try:
        wanted = compile(folder)
        there = (folder / CARD).read_text(encoding="utf-8").splitlines()
    except (CardError, PlanError) as error:
        return [Fault(SOURCE, error.where, error.got, error.wanted)]
    except RecordError:
        return []  # the chain that was edited is told as such; without it the card cannot be made
    except UnicodeDecodeError as error:
        return [Fault(CARD, "file", str(error), "text")]
    found = []
    section = "front matter"
    for at in range(max(len(wanted), len(there))):
        line, refs = wanted[at] if at < len(wanted) else ("", ())
        section = line.removeprefix("## ") if line.startswith("## ") else section
        got = there[at] if at < len(there) else "(no line)"
        if at >= len(wanted) or got != line:
            field = f"line {at + 1} ({section}{': ' + ', '.join(refs) if refs else ''})"
            found.append(Fault(CARD, field, got.strip()[:80], line.strip()[:80] or "no such line"))
    return found[:20]


def _opened(folder: Path) -> list[Line]:
    """Each time that test labels were looked at, numbered; nothing where nobody counted."""
    rows = openings(folder)
    if not rows:
        return []
    again = sum(one.in_version > 1 for one in rows)
    lines: list[Line] = [("", ()), ("## Test labels opened", ()), ("", ())]
    told = "Once under each version of the plan" + (f", and {again} more: see why." if again else ".")
    lines += [(told, (OPENINGS,)), ("", ()), ("| number | at (UTC) | plan | under this plan | why |", ())]
    lines.append(("|---|---|---|---|---|", ()))
    for one in rows:
        why = " ".join(one.why.split()).replace("|", "/") or "first under this plan"
        cells = f"| {one.number} | {one.at} | {one.plan[:12]} | {one.in_version} | {why} |"
        lines.append((cells, (f"{OPENINGS} line {one.number}",)))
    return lines


def _results(
    folder: Path, source: Mapping[str, Any], front: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    rows = source.get("results")
    if not isinstance(rows, list) or not rows:
        raise _refused("no results", "[[results]], one or more", "results", "name dataset, config, metric and value")
    entries: list[dict[str, Any]] = []
    refs: list[str] = []
    seen: set[tuple[str, str, str]] = set()
    for at, row in enumerate(rows):
        place = f"results[{at}]"
        for key in ("dataset", "config", "metric", "value"):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise _refused(f"{key} = {row.get(key)!r}", "text", place, f"add {key} = ...")
        mark = (row["dataset"], row["config"], row["metric"])
        if mark in seen:
            raise _refused(
                f"{row['metric']} of {row['dataset']}, config {row['config']!r}, twice",
                "a distinct config for each slice",
                place,
                "name the slice in config: results that differ in dataset args alone are merged by the Hub",
            )
        seen.add(mark)
        value = resolve(folder, row["value"])
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refused(f"{value!r}", "a number", f"{place}: {row['value']}", "refer to the number itself")
        task = row.get("task", front.get("task", "other"))
        data = {"name": f"{row['dataset']} ({row['config']})", "type": row["dataset"].replace(" ", "-")}
        data |= {"config": row["config"], "split": row.get("split", "test")}
        metric = {"type": row["metric"], "name": row.get("name", row["metric"]), "value": value}
        entries.append({"task": {"type": task}, "dataset": data, "metrics": [metric]})
        refs.append(row["value"])
    return entries, refs


def yaml(value: Any, indent: str = "") -> list[str]:
    """Block YAML of mappings and lists; texts and keys are quoted as JSON has them, which YAML reads the same."""
    lines: list[str] = []
    if isinstance(value, Mapping):
        for key, one in value.items():
            if isinstance(one, Mapping | list) and one:
                lines += [f"{indent}{json.dumps(key)}:", *yaml(one, indent + "  ")]
            else:
                lines.append(f"{indent}{json.dumps(key)}: {json.dumps(one, ensure_ascii=False)}")
        return lines
    for one in value:
        if isinstance(one, Mapping | list) and one:
            inner = yaml(one, indent + "  ")
            lines += [f"{indent}- {inner[0].strip()}", *inner[1:]]
        else:
            lines.append(f"{indent}- {json.dumps(one, ensure_ascii=False)}")
    return lines


def _source(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / SOURCE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _refused(
            f"no {SOURCE} in {folder}",
            "the words of the card",
            "file",
            "write it, as docs/evidence.md shows; `gradledger new experiment NAME` writes one to start from",
        ) from error
    except (OSError, ValueError) as error:
        raise _refused(f"{type(error).__name__}: {error}", "the words of the card", "file", "correct it") from error


def _part(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = source.get(key)
    if not isinstance(value, Mapping):
        raise _refused(f"no [{key}]", f"the table [{key}]", key, "add it")
    return value


def _refused(got: str, wanted: str, where: str, next_step: str) -> CardError:
    return CardError(got=got, wanted=wanted, where=f"{SOURCE}: {where}", next_step=next_step)
