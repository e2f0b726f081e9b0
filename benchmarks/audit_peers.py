"""The audit beside other tools, on the same scripts in one run: found, located, false alarms, CPU time.

    python benchmarks/audit_peers.py FOLDER --cache CACHE [--peers torchfix,torch-audit] [--markdown OUT]
                                     [--minutes M] [--sample N] [--traincheck N] [--again]
    python benchmarks/audit_peers.py --fixtures ...      the example programs of our own rules

FOLDER holds a manifest.jsonl as tools/fastscore.py reads it.  Each peer is installed by pip into an environment of its
own under CACHE, with the torch that this interpreter has.  Each script's result is kept there, too: a run that was
stopped goes on where it was, and one that is repeated only counts.

Each tool runs as its documentation asks:

    gradledger                  `gradledger audit`, no edit
    torchfix, torch-preflight   on the files, with their default rules; the program does not run
    torch-audit                 the documented one-line edit, `autopatch(model, optimizer=..., every_n_steps=1)`, made
                                for each optimizer when its model is first called: after the schedulers are built
    guardtower                  `audit(model, step, optimizer=...)` on the first batch of each optimizer, inside the
                                program's own backward, and `monitor` for the whole run
    traincheck                  trace of a correct run, inference, trace of the program, check: _peer_traincheck.py;
                                on the first N programs only (--traincheck N), a faulty one with its twin
    bare                        the program alone, for the CPU time

`_peer_rules.py` says which fault of the catalogue each rule of a peer stands for, and what is no false alarm.
Programs under gradledger, torch-audit, guardtower and alone run one after the other, script by script, in forked
children of processes that have imported torch and the tool: their CPU seconds, user and system, are without the
imports.  Those of a static tool are of whole processes over CHUNK files, divided by their number; those of traincheck
are of whole processes, and so is the bare program that they are compared with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import _peer_install as peers
import _peer_rules as rules  # puts tools/ on the path
import fastscore
from _alternate import commit
from _peer_results import Kept, Result, digest_of
from _peer_traincheck import TrainCheck

import gradledger

HERE = Path(__file__).resolve().parent
HOW = {
    "bare": "",
    "gradledger": "whole run, no edit",
    "torch-preflight": "static",
    "torchfix": "static",
    "torch-audit": "hooks, edit",
    "guardtower": "first step, edit",
    "traincheck": "trace against that of a correct run",
}
RUN_TOGETHER = ("bare", "gradledger", "torch-audit", "guardtower")  # those that run the program, in turns
CHUNK = 26  # files that a static tool is given at a time
LIMIT_S = 600.0  # wall; the machine may be loaded
Done = Generator[str, None, None]  # yields the name of a script when it is done
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


class Forked:
    """A worker that has imported a tool, and forks for each script; in the interpreter that has the tool."""

    def __init__(self, tool: str, python: Path, folder: Path) -> None:
        self._tool = tool
        self._worker = subprocess.Popen(
            [str(python), str(HERE / "_peer_worker.py"), tool, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
        )

    def __call__(self, name: str) -> Result:
        """The result of one script."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(name + "\n")
        self._worker.stdin.flush()
        answer = self._worker.stdout.readline()
        if not answer:
            raise SystemExit(f"{self._tool}: its worker ended at {name}, see the message above")
        result: Result = json.loads(answer)
        return result

    def close(self) -> None:
        """Let it end."""
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait()


class Ours:
    """The audit of this interpreter, forked likewise."""

    def __init__(self, folder: Path) -> None:
        import _forkserver

        _forkserver.preload()
        self._server, self._folder = _forkserver, folder

    def __call__(self, name: str) -> Result:
        """The result of one script."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        (done,) = self._server.run_all([self._server.Job(self._folder, name)], workers=1, timeout=LIMIT_S)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        broke = "" if done.report is not None else done.output.strip()[-200:] or "no report"
        return dict(findings=[_our_finding(f) for f in done.findings], cpu=seconds, broke=broke)

    def close(self) -> None:
        """Nothing is left running."""


def _our_finding(finding: dict[str, Any]) -> dict[str, Any]:
    lines = [line for line in (finding["line"], *finding["related_lines"]) if line]
    return dict(rule=finding["code"], severity=finding["severity"], lines=lines, message=finding["message"])


def say(tool: str, name: str, result: Result) -> None:
    """One line as a script is done."""
    seconds = "-" if result["cpu"] is None else f"{result['cpu']:.2f} s"
    said = sorted({f["rule"].partition(":")[0] for f in result["findings"]})
    print(f"  {tool:16} {name:40} {seconds:>9}  {' '.join(said)}  {result['broke']}".rstrip(), flush=True)


def run_together(runners: dict[str, Callable[[str], Result]], kept: dict[str, Kept], names: list[str]) -> Done:
    """Every runner on a script that it has no result of, in turns: what disturbs one disturbs its neighbours."""
    tools = list(runners)
    for k, name in enumerate(names):
        for tool in tools[k % len(tools) :] + tools[: k % len(tools)]:
            if name not in kept[tool].results:
                result = runners[tool](name)
                kept[tool].add(name, result)
                say(tool, name, result)
        yield name


def run_static_tools(given: argparse.Namespace, kept: dict[str, Kept], names: list[str]) -> Done:
    """The tools that read files."""
    for tool in (t for t in STATIC if t in given.peers):
        python = str(peers.interpreter(given.cache, tool))
        for name, result in run_static(tool, python, given.folder, kept[tool].missing(names)):
            kept[tool].add(name, result)
            say(tool, name, result)
            yield name


def run_dynamic_tools(given: argparse.Namespace, kept: dict[str, Kept], names: list[str]) -> Done:
    """The tools that run the program."""
    tools = [t for t in RUN_TOGETHER if t in given.peers and kept[t].missing(names)]
    runners: dict[str, Any] = {}
    try:
        for tool in tools:
            python = Path(sys.executable) if tool == "bare" else None
            runners[tool] = (
                Ours(given.folder)
                if tool == "gradledger"
                else Forked(tool, python or peers.interpreter(given.cache, tool), given.folder)
            )
        yield from run_together(runners, kept, names) if runners else ()
    finally:
        for runner in runners.values():
            runner.close()


def run_traincheck(given: argparse.Namespace, kept: dict[str, Kept], items: list[dict[str, Any]]) -> Done:
    """It is slow: a fixed part of the programs."""
    if "traincheck" not in given.peers:
        return
    results = kept["traincheck"]
    scripts = peers.interpreter(given.cache, "traincheck").parent
    tool = TrainCheck(scripts, given.folder, given.cache, Path(sys.executable))
    for item in items:
        reference = item["twin"] if item["code"] and item.get("twin") else item["file"]
        if item["file"] in results.results or (item["code"] and reference == item["file"]):
            continue
        for name, result in tool.results(item["file"], reference):
            results.add(name, result, beside=() if name == reference else (reference,))
            say("traincheck", name, result)
        yield item["file"]


def traincheck_part(items: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The first programs in an order that depends on their names alone, each faulty one followed by its twin."""
    by_file = {item["file"]: item for item in items}
    chosen: dict[str, dict[str, Any]] = {}
    for item in sorted(items, key=lambda i: hashlib.sha256(i["file"].encode()).hexdigest()):
        if len(chosen) >= count:
            break
        twin = by_file.get(item.get("twin") or "")
        for one in sorted([item, *([twin] if twin else [])], key=lambda i: not i["code"]):
            chosen.setdefault(one["file"], one)
    return list(chosen.values())


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--fixtures", action="store_true", help="the example programs of our own rules")
    parser.add_argument("--cache", type=Path, required=True, help="folder for environments and results")
    parser.add_argument("--peers", default=",".join(HOW), help=f"of {', '.join(HOW)}; default all")
    parser.add_argument("--markdown", type=Path, help="write the table to this file, too")
    parser.add_argument("--again", action="store_true", help="forget the kept results of these peers")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so long; the next run goes on")
    parser.add_argument("--sample", type=int, default=None, help="of N scripts only, faulty and correct ones mixed")
    parser.add_argument("--traincheck", type=int, default=24, help="programs that traincheck is run on (default 24)")
    given = parser.parse_args()
    if (given.folder is None) == (not given.fixtures):
        parser.error("name one folder, or --fixtures")
    given.folder = fastscore.FIXTURES if given.fixtures else given.folder.resolve()
    given.cache = given.cache.resolve()
    if not given.fixtures and not (given.folder / "manifest.jsonl").is_file():
        parser.error(f"{given.folder} has no manifest.jsonl; wanted a folder that tools/fastscore.py can score")
    given.peers = [name.strip() for name in given.peers.split(",") if name.strip()]
    if unknown := set(given.peers) - set(HOW):
        parser.error(f"--peers: {', '.join(sorted(unknown))} is none of {', '.join(HOW)}")
    return given


def open_kept(given: argparse.Namespace) -> tuple[dict[str, Kept], dict[str, str]]:
    """The kept results of each tool, and what its version is."""
    kept, said = {}, {}
    for tool in HOW:
        if tool == "gradledger":
            version = f"{digest_of(Path(gradledger.__file__).parent)} torch {peers.TORCH}"
            said[tool] = f"at {commit('audit', 'ledger', 'core')}"
        else:
            version = " ".join(peers.WANTED.get(tool, (f"torch=={peers.TORCH}",)))
            said[tool] = peers.WANTED[tool][0].partition("==")[2] if tool in peers.WANTED else ""
        path = given.cache / "results" / f"{tool}.jsonl"
        if given.again and tool in given.peers:
            path.unlink(missing_ok=True)
        kept[tool] = Kept(path, version, given.folder)
    return kept, said


def main() -> None:
    """Run, count, print."""
    given = arguments()
    items = fastscore.fixtures() if given.fixtures else fastscore.manifest(given.folder)
    kept, said = open_kept(given)
    names = [item["file"] for k in range(PASSES) for item in items[k::PASSES]][: given.sample]
    until = time.monotonic() + 60 * given.minutes
    for stage in (
        run_static_tools(given, kept, names),
        run_dynamic_tools(given, kept, names),
        run_traincheck(given, kept, traincheck_part(items, given.traincheck)),
    ):
        for _ in stage:
            if time.monotonic() > until:
                break
        stage.close()
    text = report(items, {tool: one.results for tool, one in kept.items()}, said)
    print(text)
    if given.markdown:
        given.markdown.write_text(text + "\n", encoding="utf-8")


def report(items: list[dict[str, Any]], results: dict[str, dict[str, Result]], versions: dict[str, str]) -> str:
    """Table and details of all results that there are."""
    counts = {}
    for tool in HOW:
        if done := results.get(tool):
            counts[tool] = rules.Count(tool)
            for item in items:
                if item["file"] in done:
                    counts[tool].add(item, done[item["file"]])
    return rules.markdown(counts, HOW, versions, len(items)) + "\n\n" + rules.details(counts)


if __name__ == "__main__":
    main()
