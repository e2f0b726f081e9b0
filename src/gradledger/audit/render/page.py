"""The manual page of a rule as Markdown: its docstring, then its example programs."""

from __future__ import annotations

import re
from pathlib import Path

from gradledger.audit.registry import LoadedRule

_MARK = re.compile(r"\s*# gradledger: expect [A-Z0-9-]+\s*$")


def render(loaded: LoadedRule) -> str:
    """Title, severity, page and examples; ends without a line end."""
    rule = loaded.rule
    head = f"# {rule.key} {rule.name}\n\n{rule.summary}\n\n*{rule.family}, {rule.severity}*"
    parts = [head, _shifted(loaded.page)]
    for stem, title in (
        ("bad", "Program with the fault"),
        ("good", "Program without it"),
        ("near_miss", "Looks like it, is correct"),
    ):
        path = loaded.fixtures / f"{stem}.py"
        if path.is_file():
            parts.append(f"## {title}\n\n```python\n{_code(path, rule.key)}\n```")
    parts.append(f"Accept it at a line: `# gradledger: allow[{rule.key}] reason`")
    return "\n\n".join(parts)


def _code(path: Path, key: str) -> str:
    lines = []
    for line in path.read_text(encoding="utf-8").rstrip().splitlines():
        lines.append(_MARK.sub(f"  # <- {key}", line))
    return "\n".join(lines)


def _shifted(page: str) -> str:
    # the page has its title already; sections stand one level below it, whatever level the author chose
    page = re.sub(r"\A# (.*)", r"**\1**", page)
    return re.sub(r"^#+ ", "## ", page, flags=re.MULTILINE)
