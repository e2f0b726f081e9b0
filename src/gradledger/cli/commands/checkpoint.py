"""`gradledger checkpoint inspect|verify PATH`: what a checkpoint holds, and whether it is what was written.

Exit codes: 0 whole; 1 something is damaged, and what; 2 there is no checkpoint at the path, or the call cannot be
understood. Loads no torch.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from gradledger._version import __version__
from gradledger.cli._atomic import check_path, write_text
from gradledger.core.checkpoints import FACTS, LATEST, MANIFEST, candidates, complaint, read_manifest, step_of
from gradledger.core.errors import GradledgerError, UsageError
from gradledger.core.files import file_digest
from gradledger.core.safetensors_header import Entry, read_header

SUMMARY = "Look into checkpoints: what they hold, whether every byte is what was written."

WHOLE, DAMAGED, NOTHING = 0, 1, 2
_NAMES = 12  # tensors shown of a part unless all are asked for

Where = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A folder of checkpoints, one checkpoint, or a .safetensors file."),
]
AsJson = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Also write the result to FILE.")]


def inspect(
    path: Where,
    tensors: Annotated[bool, typer.Option("--tensors", help="Every tensor, not only the first of each part.")] = False,
    as_json: AsJson = None,
) -> None:
    """Step, parts, tensors, counters, hashes and the checkpoint before; of a folder of checkpoints, the newest."""
    _run(path, as_json, lambda: _inspect(path, all_tensors=tensors))


def verify(path: Where, as_json: AsJson = None) -> None:
    """Read every byte of every checkpoint at PATH and compare it with what was written; follow the chain of hashes."""
    _run(path, as_json, lambda: _verify(path))


COMMANDS = {"inspect": inspect, "verify": verify}


@dataclass
class _Answer:
    """What to print, what to write, and the exit code."""

    lines: list[str] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    code: int = WHOLE


def _run(path: Path, as_json: str | None, work: Any) -> None:
    try:
        output = check_path(as_json, "--json")
        answer: _Answer = work()
        if output is not None:
            text = {"version": __version__, "path": str(path), "exit_code": answer.code, **answer.document}
            write_text(output, json.dumps(text, indent=1) + "\n")
    except GradledgerError as error:
        print(f"gradledger: {error}", file=sys.stderr)
        raise typer.Exit(NOTHING) from None
    print("\n".join(answer.lines))
    raise typer.Exit(answer.code)


def _checkpoints(path: Path) -> list[Path]:
    """The checkpoint folders meant by `path`, newest first."""
    if path.is_dir() and step_of(path) >= 0:
        return [path]
    found = candidates(path) if path.is_dir() else []
    if not found and path.is_dir():
        found = candidates(path / "checkpoints")
    if not found:
        raise UsageError(
            got=f"{path}, which is " + ("a folder without `step-...` in it" if path.is_dir() else "no folder"),
            wanted="a checkpoint folder (step-000000001234), or the folder that holds some",
            where="gradledger checkpoint",
            next_step="point to the --out folder of the run or to its checkpoints",
        )
    return found


def _inspect(path: Path, *, all_tensors: bool) -> _Answer:
    if path.is_file():
        return _inspect_file(path, all_tensors=all_tensors)
    found = _checkpoints(path)
    answer = _Answer()
    newest = found[0]
    if len(found) > 1:
        answer.lines.append(f"{len(found)} checkpoints in {path}; the newest:")
    wrong = complaint(newest, deep=False)
    answer.lines.append(f"{newest.name}" + (f"   DAMAGED: {wrong}" if wrong else ""))
    answer.document = {"checkpoint": newest.name, "complaint": wrong, "parts": {}}
    if wrong:
        answer.code = DAMAGED
    manifest: dict[str, Any] = {}
    try:
        manifest = read_manifest(newest)
    except (OSError, ValueError):
        answer.lines.append(f"  {MANIFEST} cannot be read")
    for file in sorted(newest.glob("*.safetensors")):
        try:
            entries = read_header(file)
        except (OSError, ValueError) as cause:
            answer.lines.append(f"  {file.stem:<14} unreadable: {cause}")
            answer.code = DAMAGED
            continue
        answer.lines += _part(file.stem, entries, all_tensors)
        answer.document["parts"][file.stem] = _told(entries)
    for key, value in (manifest.get("about") or {}).items():
        answer.lines.append(f"  {key + ':':<15}{value}")
    if manifest.get("parent"):
        answer.lines.append(f"  after:         {manifest['parent']['name']}")
    answer.lines += _facts(newest, answer.document)
    if not wrong:
        answer.lines.append("names and sizes are as written; `gradledger checkpoint verify` reads every byte")
    return answer


def _inspect_file(path: Path, *, all_tensors: bool) -> _Answer:
    try:
        entries = read_header(path)
    except (OSError, ValueError) as cause:
        return _Answer([f"{path.name}: no whole safetensors file: {cause}"], {"complaint": str(cause)}, DAMAGED)
    lines = [f"{path.name}: weights alone, a run cannot go on from it", *_part(path.stem, entries, all_tensors)]
    return _Answer(lines, {"complaint": None, "parts": {path.stem: _told(entries)}})


def _part(name: str, entries: tuple[Entry, ...], all_tensors: bool) -> list[str]:
    total = sum(entry.bytes for entry in entries)
    lines = [f"  {name:<14} {len(entries):>4} tensors {_size(total):>10}"]
    shown = entries if all_tensors else entries[:_NAMES]
    width = min(max((len(entry.name) for entry in shown), default=0), 48)
    lines += [f"    {entry.name:<{width}}  {entry.dtype:<9} {list(entry.shape)}" for entry in shown]
    if len(entries) > len(shown):
        lines.append(f"    ... {len(entries) - len(shown)} more, --tensors shows them")
    return lines


def _told(entries: tuple[Entry, ...]) -> dict[str, Any]:
    return {entry.name: {"dtype": entry.dtype, "shape": list(entry.shape), "bytes": entry.bytes} for entry in entries}


def _facts(folder: Path, document: dict[str, Any]) -> list[str]:
    """Counters and whatever the program wrote beside them, one line each."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return [f"  {FACTS} cannot be read"]
    counters = facts.get("counters") or facts.get("state", {}).get("counters") or {}
    own = facts.get("facts") if isinstance(facts.get("facts"), dict) else {}
    document["counters"], document["facts"] = counters, own
    lines = [f"  counters:      {', '.join(f'{name} {value}' for name, value in counters.items())}"] if counters else []
    return lines + [f"  {name + ':':<15}{_short(value)}" for name, value in (own or {}).items()]


def _verify(path: Path) -> _Answer:
    answer = _Answer(document={"checkpoints": []})
    if path.is_file():
        return _inspect_file(path, all_tensors=False)
    found = _checkpoints(path)
    whole = 0
    for folder in found:
        wrong = complaint(folder, deep=True) or _headers(folder)
        other = None if wrong else _chain(folder)
        answer.document["checkpoints"].append({"name": folder.name, "complaint": wrong, "chain": other})
        said = f"DAMAGED: {wrong}" if wrong else f"whole, but {other}" if other else "whole"
        answer.lines.append(f"{folder.name:<22} {said}")
        whole += wrong is None
        answer.code = DAMAGED if other else answer.code
    for left in sorted(found[0].parent.glob("step-*.tmp")):
        answer.lines.append(f"{left.name:<22} was being written when its writer died; the next save removes it")
    pointer = found[0].parent / LATEST
    if pointer.exists() and not (found[0].parent / pointer.read_text(encoding="utf-8").strip()).is_dir():
        answer.lines.append(f"{LATEST} names {pointer.read_text(encoding='utf-8').strip()!r}, which is not there")
        answer.code = DAMAGED
    if whole < len(found):
        answer.code = DAMAGED
        told = answer.document["checkpoints"]
        best = next((one["name"] for one in told if one["complaint"] is None), None)
        answer.lines.append(
            f"{whole} of {len(found)} are whole; "
            + (f"a run goes on from {best}" if best else "no run can go on from here")
        )
    else:
        answer.lines.append(f"{whole} of {len(found)} are whole: every byte is what was written")
    return answer


def _headers(folder: Path) -> str | None:
    """What the manifest says of the tensors against what the files' headers say."""
    for name, told in read_manifest(folder)["files"].items():
        if not name.endswith(".safetensors") or "tensors" not in told:
            continue
        try:
            entries = {entry.name: [entry.dtype, list(entry.shape)] for entry in read_header(folder / name)}
        except ValueError as cause:
            return f"{name}: {cause}"
        if entries != told["tensors"]:
            differ = sorted(n for n in entries.keys() | told["tensors"] if entries.get(n) != told["tensors"].get(n))
            return f"{name} holds {differ[0]} as {entries.get(differ[0])}, not {told['tensors'].get(differ[0])}"
    return None


def _chain(folder: Path) -> str | None:
    """Whether the checkpoint before it, where it is still there, is the one that it followed."""
    parent = read_manifest(folder).get("parent")
    if not parent:
        return None
    manifest = folder.parent / parent["name"] / MANIFEST
    if not manifest.exists():
        return None  # let go, as old ones are
    if file_digest(manifest) != parent["sha256"]:
        return f"{parent['name']} beside it is not the one that it followed"
    return None


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024  # type: ignore[assignment]
    raise AssertionError


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
