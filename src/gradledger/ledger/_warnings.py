"""Warnings at the place, and with the once-per-place memory, that they have in the unwatched program.

Two doors lead into Python's warnings.  `warnings.warn` counts frames (`stacklevel`): it is wrapped, and the count is
corrected for frames that only the watching adds.  C code (torch's own warnings among them) names the running Python
frame, which is ours when it was us who called the C function: then the filters that Python asks for are, for this one
question, a single filter that swallows the warning and issues it again at the line of the program.  The program's own
filter list is never touched.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from gradledger.ledger._frames import Spot, is_ours, visible_stack
from gradledger.ledger._jit import same_operation

Undo = Callable[[], None]

_original_warn: Callable[..., None] = warnings.warn
_EXHAUSTED = 1 << 30  # a stacklevel beyond any stack: Python then names the module "sys"


def _internal(frame: FrameType) -> bool:
    """The frames that `stacklevel` does not count."""
    name = frame.f_code.co_filename
    return "importlib" in name and "_bootstrap" in name


def _target(start: FrameType, level: int) -> tuple[int, Spot | None]:
    """What `level` means in the unwatched program, for a warning that `start` issues.

    Returns the stacklevel that reaches the same frame from one frame further in, and the spot when it would show
    another line than its frame stands at (then only naming the line helps).
    """
    stack = visible_stack(start)
    if not stack or stack[0].frame is not start or _internal(start):
        return level + 1, None
    counted = [spot for spot in stack if not _internal(spot.frame)]
    if level > len(counted):
        return _EXHAUSTED, None
    target, raw, frame = counted[level - 1], 2, start
    while frame is not target.frame and frame.f_back is not None:
        frame = frame.f_back
        raw += not _internal(frame)
    return raw, target if target.line != frame.f_lineno else None


def warn(*args: Any, **kwargs: Any) -> None:
    """Stands for `warnings.warn` while a program is watched."""
    level = kwargs.get("stacklevel", args[2] if len(args) > 2 else 1)
    if isinstance(level, int) and not _compiling():
        level, spot = (2, None) if level <= 1 else _target(sys._getframe(1), level)
        if spot is not None and (args or "message" in kwargs):
            message = args[0] if args else kwargs["message"]
            category = args[1] if len(args) > 1 else kwargs.get("category")
            source = args[3] if len(args) > 3 else kwargs.get("source")
            category = type(message) if isinstance(message, Warning) else category or UserWarning
            _issue_at(spot, message, category, source)
            return
        if len(args) > 2:
            args = (*args[:2], level, *args[3:])
        elif args or "message" in kwargs:
            kwargs["stacklevel"] = level
    _original_warn(*args, **kwargs)


for _name in ("__module__", "__name__", "__qualname__", "__doc__"):
    setattr(warn, _name, getattr(_original_warn, _name))
warn.__wrapped__ = _original_warn  # type: ignore[attr-defined]


class _Text:
    """Stands where a filter has its message pattern; Python shows it the text of the warning."""

    def match(self, text: str) -> bool:
        _pending.text = text
        return True


class _Catch(type):
    """Stands where a filter has its category; Python asks whether the category of the warning is one of these."""

    def __subclasscheck__(cls, category: type) -> bool:
        _issue_again(_pending.text, category)
        return True


class _AnyWarning(metaclass=_Catch):
    pass


_pending = threading.local()
_SWALLOW: list[Any] = [("ignore", _Text(), _AnyWarning, None, 0)]


def _issue_again(text: str, category: type) -> None:
    """Issue at the innermost line of the program what C code would have put on a line of ours.

    Raises what the program's filters make of it ("error").
    """
    stack = visible_stack(sys._getframe(1))
    if stack:
        _issue_at(stack[0], text, category, None)
    else:
        warnings.warn_explicit(text, category, "sys", 1, "sys")


def _issue_at(spot: Spot, message: Any, category: type, source: Any) -> None:
    names = spot.frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        spot.frame.f_code.co_filename,
        spot.line,
        names.get("__name__") or "<string>",
        names.setdefault("__warningregistry__", {}),
        source=source,
    )


_PASSING = {warn.__code__, _issue_again.__code__, _issue_at.__code__}


class _Filters:
    """The attribute `warnings.filters`: the program's list, except to C code that asks from a frame of ours."""

    def __get__(self, module: Any, owner: Any = None) -> Any:
        code = sys._getframe(1).f_code
        if is_ours(code) and code not in _PASSING:
            return _SWALLOW
        return module.__dict__["filters"]

    def __set__(self, module: ModuleType, value: Any) -> None:
        module.__dict__["filters"] = value


class _Warnings(ModuleType):
    filters = _Filters()


_Warnings.__name__ = _Warnings.__qualname__ = "module"


def _compiling() -> bool:
    """Whether torch's compiler reads the code that runs now; torch's own function once torch is loaded."""
    return False


_lock = threading.Lock()
_users = 0


def install() -> Undo:
    """Put warnings where the unwatched program has them until the returned function is called.  May be nested."""
    global _users, _compiling
    if "torch.compiler" in sys.modules:
        _compiling = sys.modules["torch.compiler"].is_dynamo_compiling
    with _lock:
        _users += 1
        if _users == 1:
            warnings.warn = warn
            warnings.__class__ = _Warnings
    same_operation(_original_warn, warn)
    done = False

    def undo() -> None:
        global _users
        nonlocal done
        with _lock:
            if done:
                return
            done = True
            _users -= 1
            if _users == 0:
                if warnings.warn is warn:  # else somebody patched over us: theirs stays, and goes on through us
                    warnings.warn = _original_warn
                if warnings.__class__ is _Warnings:
                    warnings.__class__ = ModuleType  # type: ignore[assignment]

    return undo
