"""docs/why.md leads from a program's symptom to the code that the audit names, by its two numbers and by its words.

The programs under why/ were written from symptoms, not from rules.  Each puts the page's two functions into its loop,
as a reader would.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gradledger.audit import registry
from gradledger.cli.commands.ledger import _kinds
from gradledger.watch import watch
from page_blocks import ROOT, blocks

PAGE = (ROOT / "docs" / "why.md").read_text(encoding="utf-8")
PROGRAMS = Path(__file__).parent / "why"
CODE = re.compile(r"\[(GL-[A-Z]\d\d)\]\(rules/\1\.md\)")
Measured = list[tuple[float, float]]


@dataclass(frozen=True)
class Row:
    section: str
    codes: tuple[str, ...]
    text: str


def rows() -> Iterator[Row]:
    section = ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("|---"):
            yield Row(section, tuple(CODE.findall(line)), line)


def row(section: str, seen: str) -> Row:
    """The one row of a section that begins like this."""
    (found,) = (r for r in rows() if r.section == section and r.text.startswith(f"| {seen}"))
    return found


def near(ratio: float) -> Callable[[Measured], bool]:
    return lambda measured: all(r == pytest.approx(ratio, rel=2e-3) and c > 0.999 for r, c in measured)


def some_far(measured: Measured) -> bool:
    sound = [(r, c) for r, c in measured if r == pytest.approx(1) and c == pytest.approx(1)]
    return bool(sound) and all(r > 2 and c < 0.5 for r, c in measured if (r, c) not in sound)


@dataclass(frozen=True)
class Trial:
    """`numbers`: begins the row of the table of ratios that the measured numbers match (`matches`); `section`, `seen`:
    the row of the symptom; `finding`: what the audit names (none: nothing); `words`: what holds of the program's own
    values, as the row tells the reader to look."""

    program: str
    numbers: str
    matches: Callable[[Measured], bool]
    section: str
    seen: str
    finding: tuple[str, int] | None
    argv: tuple[str, ...] = ()
    words: Callable[[dict[str, Any]], bool] = lambda _: True


MULTIPLE, GROWING, NONE, WORSE = (
    "A constant multiple",
    "A growing multiple",
    "No gradient at all",
    "Fast at first, then worse",
)
TRIALS = (
    Trial("accumulated", "another", near(4), MULTIPLE, "k, with k micro-batches", ("GL-G08", 26)),
    Trial("counted_twice", "another", near(2), MULTIPLE, "2, and one reverse pass", ("GL-G07", 24)),
    Trial("scaled", "another", near(1024), MULTIPLE, "a number that the program multiplies", None),
    Trial("branch", "1 in some steps", some_far, GROWING, "1 in the steps of one line", ("GL-G01", 27)),
    Trial("detached", "1 | 1", near(1), NONE, "only some layers", ("GL-G20", 17)),
    Trial(
        "after_validation",
        "1 | 1",
        near(1),
        WORSE,
        "after the first validation",
        ("GL-E02", 30),
        words=lambda end: end["mode"] == [True] * 8 + [False] * 16 and end["losses"][1] < 0.7 * end["losses"][0],
    ),
    Trial(
        "target",
        "1 | 1",
        near(1),
        WORSE,
        "Q-values grow without bound, and the target is the network",
        ("GL-T04", 49),
        argv=("object",),
        words=lambda end: end["same_object"],
    ),
    Trial(
        "target",
        "1 | 1",
        near(1),
        WORSE,
        "Q-values grow without bound, and the target is another object",
        ("GL-T03", 52),
        argv=("memory",),
        words=lambda end: not end["same_object"] and end["same_memory"],
    ),
    Trial(
        "target",
        "1 | 1",
        near(1),
        WORSE,
        "Q-values drift",
        ("GL-T01", 37),
        argv=("attached",),
        words=lambda end: not end["same_memory"] and end["target_has_gradient"],
    ),
)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: "-".join((trial.program, *trial.argv)))
def test_a_symptom_leads_to_the_code_that_the_audit_names(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = next(b for b in blocks(PAGE, page="why.md") if b.language == "python").text
    (tmp_path / "measured.py").write_text(functions.split("torch.manual_seed")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "measured", raising=False)
    program = PROGRAMS / f"{trial.program}.py"
    monkeypatch.setattr(sys, "argv", [str(program), *trial.argv])

    with watch() as seen:
        end = runpy.run_path(str(program))

    sys.modules.pop("measured", None)
    named = row("First measure one gradient", trial.numbers)
    anchor = trial.section.lower().replace(",", "").replace(" ", "-")
    assert trial.matches(end["measured"]), end["measured"]
    assert f"(#{anchor})" in named.text or (trial.section == WORSE and "#the-gradient-is-right" in named.text)
    assert trial.words(end)
    symptom = row(trial.section, trial.seen)
    found = [(finding.key, finding.site.line) for finding in seen.findings]
    if trial.finding is None:
        assert found == []
        assert symptom.codes == ()
    else:
        assert trial.finding in found
        assert trial.finding[0] in symptom.codes


def test_every_rule_stands_on_the_page_and_every_code_of_the_page_is_a_rule() -> None:
    assert set(re.findall(r"GL-[A-Z]\d\d", PAGE)) == {loaded.rule.key for loaded in registry.load().rules}


def test_the_kinds_that_the_page_asks_the_ledger_for_exist() -> None:
    asked = re.findall(r"gradledger ledger \w+ --kind (\S+?)[` ]", PAGE.replace("\n", " "))
    assert len(asked) >= 5
    for kinds in asked:
        assert _kinds([kinds]) == set(kinds.split(","))
