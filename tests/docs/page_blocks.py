"""Code blocks of a Markdown page, as a reader would copy them.

A fence's first word is its language. ``python`` blocks always run; ``bash`` blocks run when the fence says ``run``
(```` ```bash run ````), with ``exit=N`` when another exit code than 0 is what the page shows. Blocks of one page run in
order in one scratch folder that holds a copy of `examples/`, so a later block may use what an earlier one wrote. A
```` ```python continued ```` block is the rest of the program of the python block before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: where its body starts (1-based line), its language, its flags and its text."""

    page: str
    line: int
    language: str
    flags: frozenset[str]
    text: str

    @property
    def runs(self) -> bool:
        return self.language == "python" or (self.language == "bash" and "run" in self.flags)

    @property
    def exit_code(self) -> int:
        return next((int(flag.removeprefix("exit=")) for flag in self.flags if flag.startswith("exit=")), 0)


def blocks(text: str, *, page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found = []
    for match in FENCE.finditer(text):
        language, *flags = match["info"].split() or [""]
        line = text.count("\n", 0, match.start("body")) + 1
        if "continued" in flags:
            at = max(k for k, block in enumerate(found) if block.language == language)
            begun = found[at]
            gap = line - begun.line - begun.text.count("\n")  # so that a traceback's line is the page's line
            found[at] = replace(begun, text=begun.text + "\n" * gap + match["body"])
            continue
        found.append(Block(page, line, language, frozenset(flags), match["body"]))
    return found


def pages() -> list[Path]:
    """README.md, CONTRIBUTING.md and the hand-written pages directly under docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
