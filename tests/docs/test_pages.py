"""Every code block that a page tells the reader to run is run, in order, as the reader would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from page_blocks import ROOT, Block, blocks, pages

PAGES = [page for page in pages() if any(b.runs for b in blocks(page.read_text(encoding="utf-8"), page=page.name))]


def execute(block: Block, folder: Path) -> None:
    """Run one block in `folder` with this interpreter's commands first on PATH; fail with its output."""
    if block.language == "python":
        # Padded so that a traceback's line is the page's line.
        script = folder / f"{Path(block.page).stem}_line_{block.line}.py"
        script.write_text("\n" * (block.line - 1) + block.text, encoding="utf-8")
        command = [sys.executable, str(script)]
    else:
        command = ["bash", "-euo", "pipefail", "-c", block.text]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "GRADLEDGER_HOME": str(folder / ".gradledger")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == block.exit_code, (
        f"{block.page}:{block.line}: exit code {done.returncode}, the page says {block.exit_code}\n{done.stdout}"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks(page.read_text(encoding="utf-8"), page=page.name):
        if block.runs:
            execute(block, tmp_path)


def test_the_readme_shows_something_that_runs() -> None:
    readme = blocks((ROOT / "README.md").read_text(encoding="utf-8"), page="README.md")
    assert {b.language for b in readme if b.runs} == {"bash", "python"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\nraise SystemExit(4)\n```\n", "page.md:2: exit code 4, the page says 0"),
        ("words\n\n```bash run exit=3\nexit 0\n```\n", "page.md:4: exit code 0, the page says 3"),
        ("```bash run\nfalse | true\n```\n", "page.md:2: exit code 1"),
    ],
)
def test_a_block_that_does_not_do_what_the_page_says_fails(text: str, says: str, tmp_path: Path) -> None:
    (block,) = blocks(text, page="page.md")
    with pytest.raises(AssertionError, match=says):
        execute(block, tmp_path)


def test_a_continued_block_is_the_rest_of_the_program(tmp_path: Path) -> None:
    text = "```python\nx = 1\n```\n\nwords\n\n```python continued\nassert x == 1\nx.y\n```\n"
    (block,) = blocks(text, page="p")
    with pytest.raises(AssertionError, match="line 9, in <module>"):
        execute(block, tmp_path)


def test_which_blocks_run() -> None:
    text = "```bash\nrm -r x\n```\n\n```text\nout\n```\n\n```python\nx = 1\n```\n\n```bash run exit=3\nexit 3\n```\n"
    found = blocks(text, page="p")
    assert [(b.line, b.language, b.runs, b.exit_code) for b in found] == [
        (2, "bash", False, 0),
        (6, "text", False, 0),
        (10, "python", True, 0),
        (14, "bash", True, 3),
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert missing == []


def test_the_report_in_the_readme_shows_the_examples_as_they_are() -> None:
    """Each marked line of the pasted report is that line of the example, and both planted faults are shown."""
    (report,) = (
        b.text for b in blocks((ROOT / "README.md").read_text(encoding="utf-8"), page="README.md") if "▸" in b.text
    )
    file = re.search(r"in (examples/\w+\.py)$", report, re.MULTILINE)
    assert file is not None
    source = (ROOT / file[1]).read_text(encoding="utf-8").splitlines()
    marked = re.findall(r"^ ▸ +(\d+) │ (.+)$", report, re.MULTILINE)
    assert len(marked) == len(re.findall(r"^\d+\. error ", report, re.MULTILINE)) == 2
    for line, text in marked:
        assert source[int(line) - 1].strip() == text.strip()
