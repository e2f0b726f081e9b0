"""Compare every script of a folder with itself under the audit, bit for bit, as `gradledger audit --selfcheck` does.

    python tools/selfcheck.py FOLDER [--files a.py,b.py] [--skip N] [--every N] [--oracle EVERY] [--forked] [--json OUT]
    python tools/selfcheck.py --fixtures ...       the rules' own programs
    python tools/selfcheck.py --page PAGE.md A.json B.json ...      the page of several such runs

FOLDER holds a manifest.jsonl as for fastscore.py, else all of its scripts are taken but those that begin with an
underscore; --skip leaves out the first N, --every takes each N-th.  Each script runs in a scratch folder (beside the
folder's other files where there is no manifest), without and with the audit, and again without it where they differ.
--oracle has the oracle on in the audited run.  --forked imports torch once and forks for each run (see `_forked.py`):
what differs then is run again by the command itself, which decides.  Exit code 1 when one differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _forked
import fastscore

from gradledger.cli import _selfcheck
from gradledger.ledger._runner import resolve

ROOT = Path(__file__).resolve().parents[1]


def one(folder: Path, script: str, *, alone: bool, oracle: int, launch: _selfcheck.Launch) -> _selfcheck.Answer:
    """The comparison of one script, beside the other files of its folder unless `alone`."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work"
        if alone:
            work.mkdir()
            shutil.copyfile(folder / script, work / Path(script).name)
        else:
            shutil.copytree(folder, work, ignore=shutil.ignore_patterns("__pycache__"))
        before = Path.cwd()
        os.chdir(work)
        try:
            return _selfcheck.selfcheck(resolve(Path(script).name), oracle=oracle, launch=launch)
        finally:
            os.chdir(before)


def scripts(folder: Path) -> list[str]:
    """Those of the manifest, or all."""
    if (folder / "manifest.jsonl").exists():
        return [item["file"] for item in fastscore.manifest(folder)]
    if folder == fastscore.FIXTURES:
        return [item["file"] for item in fastscore.fixtures()]
    return sorted(path.name for path in folder.glob("*.py") if not path.name.startswith("_"))


def row(answer: _selfcheck.Answer, seconds: float, again: bool) -> dict[str, Any]:
    """One script, for the page."""
    told = dataclasses.asdict(answer)
    return told | {"same": answer.same, "seconds": round(seconds, 1), "by_the_command": again}


HEAD = """# Programs compared with themselves under the audit

Each program runs without and with the audit, as [`--selfcheck`](../reports.md#seen-to-be-unseen) does it: every line of
both streams, exit code, files, and after optimizer steps (the first 20, then every 50th) parameters, gradients, states
of optimizers and generators, at the end generators and modules, must be the same in every bit. What differs between two
runs without the audit is left out, by name. With `--forked` torch is imported once and each run is forked, so that all
begin with the same generators; what differs then is run again by the command itself, which decides. With `--oracle` the
audited run has [the oracle](../oracle.md) on.

A program counts as compared whatever it does; the columns after it say how much there was to see.

"""


def page(files: list[Path]) -> str:
    """Markdown: one table, then what has to be said of single programs."""
    lines = [
        f"| programs | {' | '.join(_COLUMNS.values())} | command |",
        "|---" * (len(_COLUMNS) + 2) + "|",
    ]
    notes: list[str] = []
    sums: Counter[str] = Counter()
    commits = set()
    for file in files:
        data = json.loads(file.read_text())
        rows = data["rows"]
        commits.add(data["commit"])
        count = Counter(
            compared=len(rows),
            same=sum(r["same"] for r in rows),
            differ=sum(not r["same"] for r in rows),
            partly=sum(any(kind["unsteady"] for kind in r["rows"]) for r in rows),
            watched=sum(r["facts"] > 0 for r in rows),
            steps=sum(r["steps"] > 0 for r in rows),
            explained=sum(r["explained"] for r in rows),
            bits=sum(kind["compared"] for r in rows for kind in r["rows"]),
        )
        sums.update(count)
        cells = " | ".join(str(count[name]) for name in _COLUMNS)
        lines.append(f"| {data['name']} | {cells} | `{data['command']}` |")
        notes += [note for r in rows for note in _notes(data["name"], r)]
    lines.append(f"| all | {' | '.join(str(sums[name]) for name in _COLUMNS)} | |")
    told_commits = ", ".join(sorted(commits))
    told = [f"Made by `tools/selfcheck.py --page`; commits: {told_commits}.", "", *lines]
    return HEAD + "\n".join([*told, "", *(notes or ["No program needs a note."])]) + "\n"


_COLUMNS = {
    "compared": "compared",
    "same": "same in every bit that repeats",
    "differ": "differ",
    "partly": "with bits that do not repeat",
    "watched": "facts recorded",
    "steps": "with optimizer steps",
    "explained": "iterations explained by the oracle",
    "bits": "digests and lines compared",
}


def _notes(where: str, told: dict[str, Any]) -> list[str]:
    """What a reader should know of one program."""
    name = f"- `{told['program']}` ({where}):"
    found = []
    if not told["same"]:
        found.append("**differs**: " + ", ".join(n for kind in told["rows"] for n in kind["differ"][:3]))
    unsteady = Counter(n.split(":")[0] for kind in told["rows"] for n in kind["unsteady"])
    generators = {n.split(":")[1].split(" at ")[0] for kind in told["rows"] for n in kind["unsteady"] if "random:" in n}
    if unsteady:
        parts = [f"{count} of {kind}" for kind, count in unsteady.items() if kind != "random"]
        parts += [f"the generator of {g}" for g in sorted(generators)]
        found.append("does not repeat without the audit either in " + ", ".join(parts))
    if told["facts"] == 0:
        found.append("left no report, or nothing was recorded")
    if told["exit_code"]:
        found.append(f"ends with exit code {told['exit_code']}, with and without")
    if told["by_the_command"]:
        found.append("forked runs differed, processes of their own decide")
    return [f"{name} {'; '.join(found)}"] if found else []


def commit() -> str:
    """Of this checkout; with a plus when the sources were changed since."""
    told = subprocess.run(["git", "log", "-1", "--format=%h"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src", "tools"], cwd=ROOT).returncode
    return f"{told or 'unknown'}{'+' if changed else ''}"


def main() -> int:
    """One line a script, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("more", type=Path, nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--fixtures", action="store_true")
    parser.add_argument("--files", default="")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--oracle", type=int, default=0)
    parser.add_argument("--forked", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.page:
        given.page.write_text(page([file for file in (given.folder, *given.more) if file]))
        return 0
    if (given.folder is None) != given.fixtures or given.more:
        parser.error("name one folder, or --fixtures")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = fastscore.FIXTURES if given.fixtures else given.folder.resolve()
    wanted = {name for name in given.files.split(",") if name}
    names = [name for name in scripts(folder) if not wanted or name in wanted][given.skip :: given.every]
    alone = given.fixtures or (folder / "manifest.jsonl").exists()
    name = "the rules' own programs" if given.fixtures else f"`{folder.name}`"
    options = " ".join(w for w in sys.argv[1:] if not w.startswith("--json") and w != str(given.json))
    head = {"name": name, "command": f"tools/selfcheck.py {options}", "commit": commit()}
    return run(folder, names, head, given, alone)


def run(folder: Path, names: list[str], head: dict[str, Any], given: argparse.Namespace, alone: bool) -> int:
    """Compare them all, printing as it goes."""
    if given.forked:
        _forked.prepare()
    rows: list[dict[str, Any]] = []
    bits = differ = partly = 0
    for script in names:
        begun = os.times()
        launch = _forked.launch if given.forked else _selfcheck.spawn
        answer = one(folder, script, alone=alone, oracle=given.oracle, launch=launch)
        again = given.forked and not answer.same
        if again:
            print(f"{script:44} differs when forked:\n{_selfcheck.render(answer)}", flush=True)
            answer = one(folder, script, alone=alone, oracle=given.oracle, launch=_selfcheck.spawn)
        answer = dataclasses.replace(answer, program=script)
        now = os.times()
        seconds = now.children_user + now.children_system - begun.children_user - begun.children_system
        bits += sum(kind.compared for kind in answer.rows)
        differ += not answer.same
        unsteady = [name for kind in answer.rows for name in kind.unsteady]
        partly += bool(unsteady)
        rows.append(row(answer, seconds, again))
        note = f"  does not repeat: {', '.join(unsteady[:3])}" if unsteady else ""
        note += "" if answer.facts else "  nothing recorded"
        verdict = "same" if answer.same else "DIFFERS"
        explained = f"{answer.explained} explained" if given.oracle else ""
        print(f"{script:44} {verdict}  {answer.steps} steps  {seconds:.1f} s {explained}{note}", flush=True)
        if not answer.same:
            print(_selfcheck.render(answer), flush=True)
        if given.json:
            given.json.write_text(json.dumps(head | {"rows": rows}, indent=1))
    print(
        f"{len(rows)} programs, {len(rows) - differ} the same in every bit that repeats ({bits} digests and lines "
        f"compared), {differ} differ; in {partly} something does not repeat without the audit either"
    )
    return 1 if differ or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
