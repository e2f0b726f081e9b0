"""A page of docs/results made from the folder of a run: every number is looked up in it, as those of a card are."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradledger.evidence import bundle
from gradledger.evidence.references import fill

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN = """<!-- written by tools/{tool}.py from the folder of a run: edit {tool}.md -->

# {recipe}: every seed

    gradledger run {recipe} --jobs 2 --out {folder}
    python tools/{tool}.py {folder}
"""


@dataclass(frozen=True)
class Page:
    """tool: name of the program; its text, with places for numbers, lies beside it under the same name. folder: what
    the page's commands call it. figures: file of the folder -> name under docs/figures."""

    tool: str
    recipe: str
    folder: str
    figures: Mapping[str, str]

    def main(self) -> int:
        """The command line: `FOLDER`, and `--docs` for another place to write to. Returns the exit code."""
        parser = argparse.ArgumentParser(description=f"Write docs/results/{self.recipe}.md and its figures from a run.")
        parser.add_argument("folder", type=Path, help="what the run left, sealed")
        parser.add_argument("--docs", type=Path, default=DOCS)
        words = parser.parse_args()
        return self.write(words.folder, words.docs)

    def write(self, folder: Path, docs: Path) -> int:
        """Write page and figures; 1 for a folder that is not what was sealed. A figure that the run could not draw is
        left out."""
        faults = bundle.verify(folder)
        if faults:
            print("\n".join(map(str, faults)), file=sys.stderr)
            return 1
        text = Path(__file__).with_name(f"{self.tool}.md")
        lines = [line for line, _ in fill(folder, text.read_text(encoding="utf-8"), where=text.name)]
        for part in ("results", "figures"):
            (docs / part).mkdir(parents=True, exist_ok=True)
        for name, figure in self.figures.items():
            if (folder / name).exists():
                shutil.copyfile(folder / name, docs / "figures" / figure)
            else:
                print(f"no {name}: docs/figures/{figure} stays as it was", file=sys.stderr)
        begin = BEGIN.format(tool=self.tool, recipe=self.recipe, folder=self.folder)
        page = docs / "results" / f"{self.recipe}.md"
        page.write_text(begin + "\n" + "\n".join(lines) + "\n", encoding="utf-8")
        return 0
