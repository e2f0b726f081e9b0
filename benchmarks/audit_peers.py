"""The audit beside other tools, on the same scripts in one run: found, located, false alarms, CPU time.

    python benchmarks/audit_peers.py FOLDER [--peers torchfix,torch-audit] [--python PEERS/bin/python] [--json OUT]
                                            [--minutes M] [--sample N] [--again] [--ours FASTSCORE.json]
    python benchmarks/audit_peers.py --fixtures ...      the example programs of our own rules

FOLDER holds a manifest.jsonl as tools/fastscore.py reads it.  --python is the interpreter that has the peers:

    python -m venv PEERS && PEERS/bin/pip install torch==2.13.0 numpy torchfix torch-preflight guardtower torch-audit

Each tool runs as its documentation asks:

    torchfix, torch-preflight   on the files, with their default rules; the program does not run
    torch-audit                 the documented one-line edit, `autopatch(model, optimizer=..., every_n_steps=1)`, made
                                for each optimizer when its model is first called: after the schedulers are built
    guardtower                  `audit(model, step, optimizer=...)` on the first batch of each optimizer, inside the
                                program's own backward, and `monitor` for the whole run
    gradledger                  `gradledger audit`, no edit
    bare                        the program alone, for the CPU time

`_peer_rules.py` says which fault of the catalogue each rule of a peer stands for, and what is no false alarm.
Programs run in forked children of a process that has imported torch and the tool: their CPU seconds, user and system,
are those of the program under the tool without the imports.  Those of a static tool are of whole processes over CHUNK
files, divided by their number.  OUT keeps each script's result: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _peer_rules as rules  # puts tools/ on the path
import fastscore

HERE = Path(__file__).resolve().parent
HOW = {
    "gradledger": "whole run, no edit",
    "torch-preflight": "static",
    "torchfix": "static",
    "torch-audit": "hooks, edit",
    "guardtower": "first step, edit",
    "bare": "",
}
Results = dict[str, dict[str, Any]]  # script: {"findings": [{"rule", "severity", "lines", "message"}], "cpu", "broke"}
CHUNK = 26  # files that a static tool is given at a time
Found = dict[str, list[dict[str, Any]]]  # path: its findings
PASSES = 7  # a stopped run has every seventh script first; odd, since faulty and correct ones alternate


def _seconds_of(command: list[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=_environment(), check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def parse_torchfix(text: str) -> Found:
    """Its lines `path:line:column: CODE [*] message` by path."""
    found: Found = {}
    for path, line, rule, message in re.findall(r"^(\S+?\.py):(\d+):\d+: (TOR\d+)(?: \[\*\])? (.*)$", text, re.M):
        finding = dict(rule=rule, severity="warning", lines=[int(line)], message=message)
        found.setdefault(Path(path).as_posix(), []).append(finding)
    return found


def parse_preflight(text: str) -> Found:
    """Its JSON by path; a note is information."""
    found: Found = {}
    for one in json.loads(text)["diagnostics"]:
        finding = dict(
            rule=one["code"],
            severity="info" if one["severity"] == "note" else one["severity"],
            lines=list(range(one["line"], (one["end_line"] or one["line"]) + 1)),
            message=one["message"],
        )
        found.setdefault(Path(one["path"]).as_posix(), []).append(finding)
    return found


# how it is started, the exit codes of a run that went well, how its output is read
STATIC: dict[str, tuple[list[str], tuple[int, ...], Callable[[str], Found]]] = {
    "torchfix": (["-m", "torchfix", "-j", "1"], (0,), parse_torchfix),
    "torch-preflight": (["-m", "torch_preflight", "check", "--format", "json", "--jobs", "1"], (0, 1), parse_preflight),
}


def run_static(tool: str, python: str, folder: Path, files: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """CHUNK files in each process of the tool."""
    words, well, parse = STATIC[tool]
    for k in range(0, len(files), CHUNK):
        some = files[k : k + CHUNK]
        done, seconds = _seconds_of([python, *words, *some], folder)
        try:
            found = parse(done.stdout) if done.returncode in well else None
        except ValueError:
            found = None
        if found is None:
            raise SystemExit(f"{tool} ended with {done.returncode} and no report:\n{done.stderr[-2000:]}")
        for name in some:
            yield name, dict(findings=of_file(found, folder, name), cpu=seconds / len(some), broke="")


def of_file(found: Found, folder: Path, name: str) -> list[dict[str, Any]]:
    """The findings of one file, whether the tool names it as it was told or in full."""
    return found.get(name, []) + found.get((folder / name).as_posix(), [])


def run_dynamic(tool: str, python: str, folder: Path, files: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """One script after the other, forked from a process that has imported the tool."""
    if not files:
        return
    worker = subprocess.Popen(
        [python, str(HERE / "_peer_worker.py"), tool, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        for name in files:
            worker.stdin.write(name + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
            if not answer:
                raise SystemExit(f"{tool}: the worker of {python} ended at {name}, see its message above")
            yield name, json.loads(answer)
    finally:
        worker.stdin.close()
        worker.wait()


def run_ours(folder: Path, files: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The audit of this tree, forked likewise."""
    import _forkserver

    _forkserver.preload()
    for name in files:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        (result,) = _forkserver.run_all([_forkserver.Job(folder, name)], workers=1)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        broke = "" if result.report is not None else result.output.strip()[-200:] or "no report"
        yield name, dict(findings=[_our_finding(f) for f in result.findings], cpu=seconds, broke=broke)


def _our_finding(finding: dict[str, Any]) -> dict[str, Any]:
    lines = [line for line in (finding["line"], *finding["related_lines"]) if line]
    return dict(rule=finding["code"], severity=finding["severity"], lines=lines, message=finding["message"])


def read_ours(path: Path) -> Results:
    """The findings of a whole run of `tools/fastscore.py FOLDER --json PATH`; no CPU time is in it."""
    results: Results = {}
    for name, row in json.loads(path.read_text(encoding="utf-8"))["results"].items():
        report = row["report"]
        findings = [_our_finding(f) for f in report["findings"]] if report else []
        results[name] = dict(findings=findings, cpu=None, broke="" if report else row["output"][-200:] or "no report")
    return results


def versions(python: str) -> dict[str, str]:
    """Of the peers that the interpreter has, and of torch."""
    names = [name for name in (*HOW, "torch") if name not in ("bare", "gradledger")]
    code = (
        "import importlib.metadata as m, json, sys\ngot = {}\nfor n in sys.argv[1:]:\n"
        "    try: got[n] = m.version(n)\n    except m.PackageNotFoundError: pass\nprint(json.dumps(got))"
    )
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"--python {python} does not run:\n{done.stderr[-500:]}")
    got: dict[str, str] = json.loads(done.stdout)
    return got


def collect(tool: str, given: argparse.Namespace, files: list[str], results: Results, save: Callable[[], None]) -> None:
    """Run a tool on the scripts that have no result yet, until the time is over."""
    until = time.monotonic() + 60 * given.minutes
    todo = [name for name in files[: given.sample] if name not in results or results[name].get("cpu") is None]
    if tool in STATIC:
        source = run_static(tool, given.python, given.folder, todo)
    elif tool == "gradledger":
        source = run_ours(given.folder, todo)
    else:
        source = run_dynamic(tool, given.python, given.folder, todo)
    for name, result in source:
        results[name] = result
        said = " ".join(sorted({f["rule"] for f in result["findings"]}))
        print(f"  {tool:16} {name:40} {result['cpu']:.2f} s  {said}", flush=True)
        save()
        if time.monotonic() > until:
            source.close()  # type: ignore[attr-defined]
            break


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--fixtures", action="store_true", help="the example programs of our own rules")
    parser.add_argument("--peers", default=",".join(HOW), help=f"of {', '.join(HOW)}; default all")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the peers (default: this one)")
    parser.add_argument("--json", type=Path, help="keep each result in this file, and use those that are there")
    parser.add_argument("--markdown", type=Path, help="write the table to this file, too")
    parser.add_argument("--again", action="store_true", help="forget the kept results of these peers")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop each tool after so long")
    parser.add_argument("--sample", type=int, default=None, help="of N scripts only, faulty and correct ones mixed")
    parser.add_argument("--ours", type=Path, help="findings of the audit from a run of tools/fastscore.py --json")
    given = parser.parse_args()
    if (given.folder is None) == (not given.fixtures):
        parser.error("name one folder, or --fixtures")
    given.folder = fastscore.FIXTURES if given.fixtures else given.folder.resolve()
    if not given.fixtures and not (given.folder / "manifest.jsonl").is_file():
        parser.error(f"{given.folder} has no manifest.jsonl; wanted a folder that tools/fastscore.py can score")
    given.peers = [name.strip() for name in given.peers.split(",") if name.strip()]
    if unknown := set(given.peers) - set(HOW):
        parser.error(f"--peers: {', '.join(sorted(unknown))} is none of {', '.join(HOW)}")
    return given


def main() -> None:
    """Run, count, print."""
    given = arguments()
    items = fastscore.fixtures() if given.fixtures else fastscore.manifest(given.folder)
    files = [item["file"] for k in range(PASSES) for item in items[k::PASSES]]
    kept: dict[str, Any] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    kept.setdefault("results", {})
    kept.setdefault("versions", {}).update(versions(given.python))
    for tool in given.peers:
        if tool not in ("bare", "gradledger") and tool not in kept["versions"]:
            raise SystemExit(f"{given.python} has no {tool}: pip install {tool}, or leave it out of --peers")

    def save() -> None:
        if given.json:
            given.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")

    if given.ours:
        kept["results"]["gradledger"] = {**read_ours(given.ours)}
    for tool in given.peers:
        results = kept["results"].setdefault(tool, {})
        if given.again and not (tool == "gradledger" and given.ours):
            results.clear()
        collect(tool, given, files, results, save)
    save()
    text = report(items, kept)
    print(text)
    if given.markdown:
        given.markdown.write_text(text + "\n", encoding="utf-8")


def report(items: list[dict[str, Any]], kept: dict[str, Any]) -> str:
    """Table and details of all results that there are."""
    counts = {}
    for tool in HOW:
        if done := kept["results"].get(tool):
            counts[tool] = rules.Count(tool)
            for item in items:
                if item["file"] in done:
                    counts[tool].add(item, done[item["file"]])
    return rules.markdown(counts, HOW, kept["versions"], len(items)) + "\n\n" + rules.details(counts)


if __name__ == "__main__":
    main()
