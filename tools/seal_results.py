"""Write docs/results/seal_scout.md and its figures from a run: `python tools/seal_results.py runs/seal`.

Every number of the page is looked up in the folder, as those of a card are; nothing is typed by hand.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from gradledger.evidence import bundle
from gradledger.evidence.references import fill

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIGURES = ("crops", "leak", "shortcut", "risk", "worst", "curves")
BEGIN = """<!-- written by tools/seal_results.py from the folder of a run: edit seal_results.md -->

# seal_scout: every seed

    gradledger run seal_scout --workers 2 --out runs/seal
    python tools/seal_results.py runs/seal
"""
TEXT = Path(__file__).with_suffix(".md")  # with places for numbers


def main(folder: Path) -> int:
    """Refuse a folder that is not what was sealed; write page and figures."""
    faults = bundle.verify(folder)
    if faults:
        print("\n".join(map(str, faults)), file=sys.stderr)
        return 1
    lines = [line for line, _ in fill(folder, TEXT.read_text(encoding="utf-8"), where=TEXT.name)]
    for name in FIGURES:
        shutil.copyfile(folder / f"{name}.png", DOCS / "figures" / f"seal_{name}.png")
    (DOCS / "results" / "seal_scout.md").write_text(BEGIN + "\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
