"""Compare every script of a folder with itself under the audit, bit for bit, as `gradledger audit --selfcheck` does.

    python tools/selfcheck.py FOLDER [--files a.py,b.py] [--json OUT]

FOLDER holds a manifest.jsonl as for fastscore.py.  Each script runs in a scratch folder that holds it alone, without
and with the audit (and again without it where they differ).  Exit code 1 when one differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fastscore

from gradledger.cli import _selfcheck
from gradledger.ledger._runner import resolve


def one(script: Path) -> _selfcheck.Answer:
    """The comparison of one script."""
    with tempfile.TemporaryDirectory() as name:
        shutil.copyfile(script, Path(name) / script.name)
        before = Path.cwd()
        os.chdir(name)
        try:
            return _selfcheck.selfcheck(resolve(script.name))
        finally:
            os.chdir(before)


def main() -> int:
    """One line a script, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wanted = {name for name in given.files.split(",") if name}
    rows: list[dict[str, Any]] = []
    bits = differ = partly = 0
    for item in fastscore.manifest(given.folder):
        if wanted and item["file"] not in wanted:
            continue
        answer = one(given.folder / item["file"])
        bits += sum(row.compared for row in answer.rows)
        differ += not answer.same
        unsteady = [name for row in answer.rows for name in row.unsteady]
        partly += bool(unsteady)
        rows.append(dataclasses.asdict(answer) | {"same": answer.same})
        verdict = "same" if answer.same else "DIFFERS"
        note = f"  does not repeat: {', '.join(unsteady[:3])}" if unsteady else ""
        print(f"{item['file']:44} {verdict}  {answer.steps} steps{note}", flush=True)
        if not answer.same:
            print(_selfcheck.render(answer), flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))
    print(
        f"{len(rows)} programs, {len(rows) - differ} the same in every bit that repeats ({bits} digests and lines "
        f"compared), {differ} differ; in {partly} something does not repeat without the audit either"
    )
    return 1 if differ or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
