"""Lines on which the result of another line is cut off, read off the source."""

from __future__ import annotations

from pathlib import Path

from gradledger.audit._cuts import cut_after
from gradledger.core.site import Site

SOURCE = """\
def forward(self, state, goal):
    code, other = self.encoder(goal)
    kept = code + state.detach()
    a = (code * 2).detach()
    b = [other.numpy(), kept]
    code = code.tolist()
    return a, b

def elsewhere(code):
    return code.detach()
"""


def lines(tmp_path: Path, line: int) -> list[int]:
    file = tmp_path / "program.py"
    file.write_text(SOURCE)
    return [site.line for site in cut_after(Site(str(file), line, "forward"))]


def test_names_that_the_line_gives_are_followed_within_its_function(tmp_path: Path) -> None:
    assert lines(tmp_path, 2) == [4, 5, 6]


def test_what_comes_before_the_line_and_other_names_do_not_count(tmp_path: Path) -> None:
    assert lines(tmp_path, 3) == []
    assert lines(tmp_path, 4) == []
    assert cut_after(Site("", 0, "")) == []
