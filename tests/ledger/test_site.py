"""From the stack to a line of the program: functions made anew, chains of callers, tools around the program."""

from __future__ import annotations

import gc
import sys
from types import CodeType
from typing import Any

import pytest

from gradledger.core.site import Site
from gradledger.ledger import _frames, _site


def made(name: str, lines: int) -> Any:
    """A function of a program of its own, which says where it stands after so many empty lines."""
    space: dict[str, Any] = {"here": _site.here}
    exec(compile("\n" * lines + f"def {name}(): return here(0)", "/tmp/program.py", "exec"), space)
    return space[name]


def test_functions_made_anew_have_their_own_lines_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_site, "MAX_CODES", 30)
    for number in range(200):
        site = made(f"f{number}", number)()
        assert (site.file, site.line, site.function) == ("/tmp/program.py", number + 1, f"f{number}")
    assert len(_site._codes) == len(_site._user_code) <= 30


def test_numbers_stay_with_the_code_they_were_given_to() -> None:
    """A function that is gone must not lend its number, and with that its place, to the next one."""
    for number in range(20):
        function = made("function", number)
        assert function().line == number + 1
        del function
        gc.collect()  # (it stands in a circle with its globals)


def test_equal_functions_at_two_lines_of_a_caller_are_two_sites() -> None:
    inner = made("inner", 0)

    def outer() -> tuple[Site, Site]:
        one = inner()
        return one, inner()

    a, b = outer()
    assert a.key() == b.key()
    assert a.callers[0].line + 1 == b.callers[0].line
    assert outer()[0] is not a  # (called from another line)


def test_callers_end_where_a_program_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = made("inner", 0)

    def program() -> Site:
        return inner()

    def runs() -> Site:
        return program()

    monkeypatch.setattr(_frames, "bottom", set(_frames.bottom))
    _site._learn(runs.__code__, False)
    _frames.entry(runs)
    assert [f.function for f in runs().callers] == ["program"]
    assert [f.function for f in program().callers][:2] == ["program", "test_callers_end_where_a_program_is_run"]


def test_a_tool_that_sets_itself_aside_is_no_part_of_the_program() -> None:
    inner = made("inner", 0)

    def tool() -> Site:
        _site.set_aside(sys._getframe())
        return inner()

    codes: list[CodeType] = []
    frame = sys._getframe()
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back  # type: ignore[assignment]
    try:
        assert tool().callers == ()
    finally:
        for code in codes:
            _site._user_code.pop(id(code), None)
