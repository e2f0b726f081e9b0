"""Programs that act in an environment, told by what they take from a `step`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradledger.audit._acting import acts
from gradledger.core.site import Frame, Site


def site(path: Path, *callers: Path) -> Site:
    return Site(str(path), 1, "train", callers=tuple(Frame(str(c), 1, "main") for c in callers))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("s, r, done, info = env.step(a)", True),
        ("s, r, end, cut, info = self.envs.step(a)", True),
        ("s, r, done = step(a)", True),
        ("state[0], r, d, _ = env.step(a)", True),
        ("loss, norm = trainer.step(batch)", False),
        ("optimizer.step()", False),
        ("out = env.step(a)", False),
        ("a, b, c = env.stepped(a)", False),
    ],
)
def test_what_a_step_gives(tmp_path: Path, line: str, expected: bool) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"{line}\n")
    assert acts(site(file)) is expected


def test_the_file_that_calls_may_be_the_one_that_acts(tmp_path: Path) -> None:
    learner, main = tmp_path / "learner.py", tmp_path / "main.py"
    learner.write_text("loss.backward()\n")
    main.write_text("s, r, done, info = env.step(a)\n")
    assert not acts(site(learner))
    assert acts(site(learner, main))
