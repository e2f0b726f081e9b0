"""Transitions over several steps whose flag and next state are of two different ones, read from the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradledger.audit._mixed_ends import Mixed, mixed_ends


def read(tmp_path: Path, *lines: str) -> Mixed | None:
    file = tmp_path / "program.py"
    file.write_text("\n".join(("def keep(self, window, rows, total):", *(f"    {line}" for line in lines))) + "\n")
    return mixed_ends(str(file))


@pytest.mark.parametrize(
    "lines",
    [
        ("rows.append((window[0].s, window[0].a, total, window[-1].next_state, window[0].done))",),
        ("first, last = window[0], window[-1]", "rows.push(first.s, first.a, total, last.next_obs, first.terminated)"),
        ("s, a, _, _, done = window[0]", "_, _, _, s2, _ = window[-1]", "rows.append((s, a, total, s2, done))"),
        ("rows.append(dict(s=self.w[0]['s'], a=self.w[0]['a'], s2=self.w[-1]['next'], d=self.w[0]['done']))",),
        ("done = window[0]['done']", "rows.append((window[0]['s'], total, window[-1]['next_state'], 1.0 - done))"),
    ],
)
def test_the_flag_of_the_first_beside_the_state_of_the_last(lines: tuple[str, ...], tmp_path: Path) -> None:
    found = read(tmp_path, *lines)
    assert found is not None
    assert found.line == 1 + len(lines)


@pytest.mark.parametrize(
    "lines",
    [
        ("rows.append((window[0].s, window[0].a, total, window[-1].next_state, window[-1].done))",),
        ("done = any(step.done for step in window)", "rows.append((window[0].s, 0, 0.0, window[-1].next_state, done))"),
        ("rows.append((window[0].s, window[0].a, total, window[0].next_state, window[0].done))",),
        ("rows.append((window[0].s, window[0].a, total, other[-1].next_state, window[0].done))",),
        ("s, a, _, _, done = window[0]", "_, _, _, s2, done = window[-1]", "rows.append((s, a, total, s2, done))"),
        ("s, a, r, s2, done = window[0]", "for step in window:", "    s2, done = step[3], step[4]",
         "rows.append((s, a, total, s2, done))"),
    ],
)  # fmt: skip
def test_flag_and_state_of_one_step(lines: tuple[str, ...], tmp_path: Path) -> None:
    assert read(tmp_path, *lines) is None


def test_fields_are_known_by_what_the_step_gave(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "Row = namedtuple('Row', 's a r x z')\n"
        "def act(env, window, s, a):\n"
        "    x, r, z = env.step(a)\n"
        "    window.append(Row(s, a, r, x, z))\n"
        "def keep(window, rows):\n"
        "    head, tail = window[0], window[-1]\n"
        "    rows.append((head.s, head.a, 0.0, tail.x, head.z))\n"
    )
    found = mixed_ends(str(file))
    assert found is not None
    assert (found.line, found.flag, found.successor) == (7, "`z`", "`x`")
