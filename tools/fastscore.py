"""Score the audit on a folder of scripts, quickly: torch is imported once and each script runs in a forked child.

    python tools/fastscore.py FOLDER [--only G1,T3] [--files a.py,b.py] [--jobs 2] [--timeout 120] [-v] [--json OUT]
    python tools/fastscore.py --fixtures [--only G1,T3] ...     every rule's own bad, good and near-miss programs

FOLDER holds a manifest.jsonl; each line: {"file", "code" (null: a correct program), "line" [accepted lines],
"also" [further codes that are true of the script], "bugs" [{"code", "line"}] for scripts with several faults, "twin"}.
A fault is *found* when a finding of its code is present, *located* when the line of such a finding or one of its
related lines is an accepted one.  An error or warning on a correct program, or of a code that is not true of a faulty
one, is a *false alarm*.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _forkserver

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "src" / "gradledger" / "audit" / "fixtures"
MARK = re.compile(r"# gradledger: expect (GL-[A-Z]\d+)")


def short(code: str) -> str:
    """ "GL-G01" -> "G1"."""
    match = re.fullmatch(r"(?:GL-)?([A-Z])0*(\d+)", code.strip().upper())
    return f"{match[1]}{int(match[2])}" if match else code


@dataclass
class Score:
    """What was missed, found elsewhere, alarmed wrongly, or gave no report at all."""

    missed: list[str] = field(default_factory=list)
    unlocated: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    per_code: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    clean: int = 0
    clean_alarmed: int = 0

    @property
    def perfect(self) -> bool:
        """Every fault located, no false alarm, a report for every script."""
        return not (self.missed or self.unlocated or self.alarms or self.broken)

    def add(self, item: dict[str, Any], result: _forkserver.Result) -> None:
        """Count one script."""
        name = item["file"]
        if result.report is None:
            last = "timeout" if result.timed_out else result.output.strip()[-300:]
            self.broken.append(f"{name} (exit code {result.exit_code}): {last}")
        bugs = item.get("bugs") or ([{"code": item["code"], "line": item.get("line", [])}] if item["code"] else [])
        true = {short(b["code"]) for b in bugs} | {short(c) for c in item.get("also", [])}
        for bug in bugs:
            self._bug(name, bug, result.findings, bug.get("note") or item.get("note", ""))
        wrong = [f for f in result.findings if f["severity"] in ("error", "warning") and short(f["code"]) not in true]
        if not bugs:
            self.clean += 1
            self.clean_alarmed += bool(wrong)
        for f in wrong:
            self.alarms.append(f"{name}: {f['code']} {f['severity']} line {f['line']}: {f['message']}")

    def _bug(self, name: str, bug: dict[str, Any], findings: list[dict[str, Any]], note: str) -> None:
        code = short(bug["code"])
        counts = self.per_code[code]
        counts["n"] += 1
        hits = [f for f in findings if short(f["code"]) == code]
        if not hits:
            self.missed.append(f"{name} {code} lines {bug['line']}: {note}")
            return
        counts["found"] += 1
        lines = {line for f in hits for line in (f["line"], *f["related_lines"])}
        if lines & set(bug["line"]):
            counts["located"] += 1
        else:
            self.unlocated.append(f"{name} {code}: got {sorted(x for x in lines if x)}, accepted {bug['line']}")

    def text(self) -> str:
        """For the terminal."""
        parts = []
        for title, rows in (
            ("MISSED", self.missed),
            ("FOUND BUT NOT LOCATED", self.unlocated),
            ("FALSE ALARMS", self.alarms),
            ("NO REPORT", self.broken),
        ):
            if rows:
                parts.append(f"{title} ({len(rows)})\n" + "\n".join(f"  {row}" for row in rows))
        order = sorted(self.per_code, key=lambda c: (c[0], int(c[1:]) if c[1:].isdigit() else 0))
        parts.append(
            "per code (located/found/all): "
            + "  ".join(
                f"{c} {self.per_code[c]['located']}/{self.per_code[c]['found']}/{self.per_code[c]['n']}" for c in order
            )
        )
        total = Counter[str]()
        for counts in self.per_code.values():
            total.update(counts)
        parts.append(
            f"faults {total['n']}: found {total['found']}, located {total['located']}; correct programs {self.clean}: "
            f"with a false alarm {self.clean_alarmed}; false alarms in all {len(self.alarms)}; "
            f"no report {len(self.broken)}"
        )
        return "\n\n".join(parts)


def manifest(folder: Path) -> list[dict[str, Any]]:
    """The scripts of a folder."""
    text = (folder / "manifest.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def fixtures(folder: Path = FIXTURES) -> list[dict[str, Any]]:
    """Manifest of the rules' own programs: `bad*.py` has its fault at the marked lines, everything else is correct."""
    items = []
    for path in sorted(folder.glob("*/*.py")):
        own = short(path.parent.name)
        bugs: dict[str, list[int]] = {}
        if path.stem.startswith("bad"):
            bugs[own] = []
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                for match in MARK.finditer(line):
                    bugs.setdefault(short(match[1]), []).append(number)
        items.append(
            {
                "file": path.relative_to(folder).as_posix(),
                "code": own if bugs else None,
                "rule": own,
                "bugs": [{"code": c, "line": lines} for c, lines in bugs.items()],
            }
        )
    return items


def chosen(items: list[dict[str, Any]], only: str, files: str) -> list[dict[str, Any]]:
    """Items with one of the codes `only` (and their twins), or named in `files`."""
    if files:
        names = [f.strip() for f in files.split(",")]
        items = [i for i in items if any(i["file"] == n or i["file"].startswith(n.removesuffix("*")) for n in names)]
    if only:
        want = {short(c) for c in only.split(",")}
        keep = {
            i["file"]
            for i in items
            if {short(c) for c in (i["code"], i.get("rule"), *(b["code"] for b in i.get("bugs") or [])) if c} & want
        }
        items = [i for i in items if i["file"] in keep or i.get("twin") in keep]
    return items


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--fixtures", action="store_true", help="score the rules' own programs")
    parser.add_argument("--only", default="", help="codes, separated by commas")
    parser.add_argument("--files", default="", help="file names or beginnings, separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--json", type=Path, help="write every report to this file")
    parser.add_argument("-v", "--verbose", action="store_true", help="show each script's findings as it ends")
    parser.add_argument("--output", action="store_true", help="with -v: what the script printed, too")
    a = parser.parse_args()
    if (a.folder is None) == (not a.fixtures):
        parser.error("name one folder, or --fixtures")
    folder = FIXTURES if a.fixtures else a.folder.resolve()
    items = chosen(fixtures(folder) if a.fixtures else manifest(folder), a.only, a.files)
    if not items:
        parser.error("no script is left to score")
    _forkserver.preload()
    by_file = {item["file"]: item for item in items}
    jobs = [_forkserver.Job(folder, name, copy_all=not a.fixtures) for name in by_file]
    results: dict[str, _forkserver.Result] = {}
    for result in _forkserver.run_all(jobs, workers=a.jobs, timeout=a.timeout):
        results[result.job.script] = result
        if a.verbose:
            show(result, a.output)
    score = Score()
    for name, item in by_file.items():
        score.add(item, results[name])
    if a.json:
        rows = {
            n: {
                "exit_code": r.exit_code,
                "seconds": round(r.seconds, 3),
                "report": r.report,
                "output": r.output[-4000:],
                "replayed": r.replayed,
            }
            for n, r in results.items()
        }
        a.json.write_text(json.dumps({"items": items, "results": rows}, indent=1), encoding="utf-8")
    if a.verbose:
        print()
    failures = Counter(f for r in results.values() if r.report for f in r.report["run"]["failures"])
    failed = Counter(
        f"{n['code']}: {n['reason']}"
        for r in results.values()
        if r.report
        for n in r.report["not_checked"]
        if "itself failed" in n["reason"] or "cannot be used" in n["reason"]
    )
    for text, count in (failures + failed).most_common(15):
        print(f"OUR OWN FAILURE in {count} scripts: {text}")
    for name, r in results.items():
        if r.replayed:
            print(f"THE STORED RUN OF {name} IS JUDGED OTHERWISE: {r.replayed[:1500]}")
    print(score.text())
    return 0 if score.perfect else 1


def show(result: _forkserver.Result, output: bool) -> None:
    """One script's outcome."""
    print(f"{result.job.script}  exit {result.exit_code}  {result.seconds:.1f} s")
    for f in result.findings:
        place = f"line {f['line']} related {f['related_lines']} x{f['count']}"
        print(f"    {f['code']} {f['severity']} {place}: {f['message']}")
    if result.report is None or output:
        print("    | " + result.output.strip()[-3000:].replace("\n", "\n    | "))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
