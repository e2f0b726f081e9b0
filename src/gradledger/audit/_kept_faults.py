"""What is wrong with the flags of the end that a memory keeps, in words: of the wrong step, or always set."""

from __future__ import annotations

from gradledger.audit import _let_go, _mixed_ends, _n_steps, _time_limits
from gradledger.audit._loop_faults import Fault


def of_mixed_ends(file: str, _line: int) -> Fault | None:
    """A transition over several steps with a flag and a next state of two of them."""
    mixed = _mixed_ends.mixed_ends(file)
    if mixed is None:
        return None
    message = (
        f"a transition over several steps is kept with {mixed.flag} of its first step and {mixed.successor} of its "
        "last: where the episode ends in between, the value of the terminal state is bootstrapped."
    )
    return Fault(mixed.line, mixed.lines, message, f"keep {mixed.flag} of the last step")


def of_kept(file: str, _line: int) -> Fault | None:
    """A sum over several steps that runs on through ends, flags that do not come to the memory, or are always set."""
    return _window(file) or _let_go_of(file) or _always(file)


def _window(file: str) -> Fault | None:
    window = _n_steps.past_ends(file) or _n_steps.over_windows(file)
    if window is None:
        return None
    message = (
        f"this sum over several steps asks for no end on its way: `{window.flag}` is read for the last step only (line "
        f"{window.flag_line}).  A window with an end inside takes rewards of the next episode, and bootstraps from it."
    )
    return Fault(window.line, (window.flag_line,), message, f"stop the sum at the first step with `{window.flag}`")


def _let_go_of(file: str) -> Fault | None:
    gone = _let_go.let_go(file)
    if gone is None:
        return None
    message = (
        f"`{gone.flag}` is bound to a new array here, while the memory keeps the one that it gave (line {gone.called}, "
        f"where the result is dropped): that holds the flags of line {gone.written}, and ends at later steps of a "
        "window bootstrap."
    )
    return Fault(gone.line, (gone.written, gone.called), message, f"write into it: `{gone.flag}[:] = ...`")


def _always(file: str) -> Fault | None:
    always = _time_limits.written_always(file)
    if always is None:
        return None
    message = (
        f"the memory is told here that the episode ended, whatever `{always.name}` says: it is given (line "
        f"{always.called}) and never read, and an interrupted episode is taken for a finished one."
    )
    return Fault(always.line, (always.called,), message, f"write `{always.name}`")
