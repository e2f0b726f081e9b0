"""Tracebacks and stacks as the unwatched program would show them.

Watching puts three kinds of extra frame between the lines of a program: our own; under a torch function mode every
Python function of torch runs twice (``F.mse_loss -> handle_torch_function -> our mode -> F.mse_loss``); and with a
global module hook installed ``Module.__call__`` takes its slow path, which has one more frame (``inner``).  `visible`
takes them away.

`install` gives that view to everything that looks through `traceback` or `inspect` (so to logging, warnings, thread
and worker errors as well).  `scrub` rewrites the traceback objects of one exception, for the printing that Python
does in C. Not covered: code that walks ``tb_next`` or ``f_back`` by hand, `sys._getframe` with a depth,
`faulthandler`.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

Undo = Callable[[], None]


class Spot(NamedTuple):
    """One entry of a stack: the frame, the bytecode offset it stands at, and the line shown for it."""

    frame: FrameType
    lasti: int
    line: int


# Taken from a code object, so that it is spelled as in every other code object of this package.
_LEDGER = os.path.dirname((lambda: None).__code__.co_filename)
_PACKAGE = os.path.dirname(_LEDGER)
_OURS = (
    _LEDGER + os.sep,
    os.path.join(_PACKAGE, "cli") + os.sep,
    os.path.join(_PACKAGE, "watch") + os.sep,
    os.path.join(_PACKAGE, "__main__.py"),
)
_OVERRIDES = os.path.join("torch", "overrides.py")
_MODULE = os.path.join("torch", "nn", "modules", "module.py")
_TORCH = f"{os.sep}torch{os.sep}"
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
_OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# The functions below which the program runs; whatever called them is not part of its stack.
bottom: set[int] = set()  # numbers of the code of our functions that run a program


def entry(function: Callable[..., Any]) -> None:
    """Name a function of ours that runs a program: its frame, and all frames above it, belong to no program."""
    bottom.add(id(function.__code__))


def is_ours(code: CodeType) -> bool:
    """Whether `code` is part of the watching (and never of the program)."""
    return code.co_filename.startswith(_OURS)


def _is_redispatch(code: CodeType) -> bool:
    return code.co_name == "handle_torch_function" and code.co_filename.endswith(_OVERRIDES)


def _is_slow_call(code: CodeType) -> bool:
    return code.co_name == "inner" and code.co_filename.endswith(_MODULE)


def _only_our_hooks(frame: FrameType) -> bool:
    """Whether the module call that runs in `frame` has no hooks but ours: unwatched, it would take the fast path."""
    module = frame.f_locals.get("self")
    if module is None or any(getattr(module, name, None) for name in _OWN_HOOKS):
        return False
    for name in _GLOBAL_HOOKS:
        for hook in frame.f_globals.get(name, {}).values():
            while isinstance(hook, functools.partial):
                hook = hook.func
            code = getattr(inspect.unwrap(hook), "__code__", None) or getattr(type(hook).__call__, "__code__", None)
            if code is None or not is_ours(code):
                return False
    return True


@functools.cache
def _fast_call(code: CodeType) -> tuple[int, int] | None:
    """(bytecode offset, line) of the direct ``return forward_call(*args, **kwargs)`` in ``Module._call_impl``."""
    for step in dis.get_instructions(code):
        if step.opname == "CALL_FUNCTION_EX" and step.positions is not None and step.positions.lineno is not None:
            return step.offset, step.positions.lineno
    return None


def _doubled(spots: list[Spot], outer: int, code: CodeType | None) -> int:
    """Where the first run of the function that runs again below our mode stands, looking outward from `outer`."""
    i = outer
    while i >= 0 and code is not None:
        if spots[i].frame.f_code is code:
            return i
        if _TORCH not in spots[i].frame.f_code.co_filename:
            break
        i -= 1
    return outer + 1


def visible(spots: list[Spot]) -> list[Spot]:
    """Those of `spots` (outermost first) that the unwatched program would have, with the lines it would show."""
    kept: list[Spot] = []
    i = len(spots) - 1
    while i >= 0:
        code = spots[i].frame.f_code
        if id(code) in bottom:
            break
        if is_ours(code):
            i -= 1
            if i >= 0 and _is_redispatch(spots[i].frame.f_code):
                i = _doubled(spots, i - 1, kept[-1].frame.f_code if kept else None) - 1
            continue
        if i and _is_slow_call(code) and _only_our_hooks(spots[i].frame):
            caller = spots[i - 1].frame
            fast = _fast_call(caller.f_code) if caller.f_code.co_name == "_call_impl" else None
            if fast is not None:
                kept.append(Spot(caller, *fast))
                i -= 2
                continue
        kept.append(spots[i])
        i -= 1
    kept.reverse()
    return kept


def _without_import_steps(spots: list[Spot]) -> list[Spot]:
    """Python takes its own steps of an import out of a traceback, but not above a frame of ours (see the runner)."""
    kept: list[Spot] = []
    for spot in spots:
        if is_ours(spot.frame.f_code):
            while kept and kept[-1].frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                kept.pop()
        kept.append(spot)
    return kept


def visible_traceback(tb: TracebackType | None) -> TracebackType | None:
    """`tb` without the frames of the watching; `tb` itself when there are none.  Nothing is changed in place."""
    spots: list[Spot] = []
    step = tb
    while step is not None:
        spots.append(Spot(step.tb_frame, step.tb_lasti, step.tb_lineno))
        step = step.tb_next
    kept = visible(_without_import_steps(spots))
    if len(kept) == len(spots):
        return tb
    rebuilt: TracebackType | None = None
    for spot in reversed(kept):
        rebuilt = TracebackType(rebuilt, *spot)
    return rebuilt


def visible_stack(frame: FrameType | None) -> list[Spot]:
    """The stack from `frame` outward, innermost first, without the frames of the watching."""
    spots: list[Spot] = []
    while frame is not None:
        spots.append(Spot(frame, frame.f_lasti, frame.f_lineno or 0))
        frame = frame.f_back
    spots.reverse()
    kept = visible(spots)
    kept.reverse()
    return kept


def scrub(error: BaseException) -> None:
    """Take the frames of the watching out of `error` and of every error it names as cause, context or member."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        tb = visible_traceback(one.__traceback__)
        if tb is not one.__traceback__:
            one.__traceback__ = tb
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


_lock = threading.Lock()
_users = 0
_restore: list[tuple[Any, str, Any, Any]] = []


def install() -> Undo:
    """Show the unwatched view in `traceback`, `inspect` and thread errors until the returned function is called.

    May be nested: the view goes when the last undo was called.
    """
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _replace_all()
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
                while _restore:
                    owner, name, original, replacement = _restore.pop()
                    if getattr(owner, name, None) is replacement:  # else somebody patched over us: theirs stays
                        setattr(owner, name, original)

    return undo


def _replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    original = getattr(owner, name, None)
    if original is None:  # a private function that this Python does not have: its callers use another one of these
        return
    replacement = functools.wraps(original)(make(original))
    setattr(owner, name, replacement)
    _restore.append((owner, name, original, replacement))


def _replace_all() -> None:
    _replace(traceback, "walk_tb", _walk_tb)
    _replace(traceback, "_walk_tb_with_full_positions", _walk_tb)
    _replace(traceback, "walk_stack", _walk_stack)
    _replace(inspect, "getinnerframes", _innerframes)
    _replace(inspect, "getouterframes", _outerframes)
    _replace(threading, "_make_invoke_excepthook", _invoke_excepthook)


def _walk_tb(original: Callable[[TracebackType | None], Iterable[Any]]) -> Callable[..., Iterator[Any]]:
    def walk_tb(tb: TracebackType | None) -> Iterator[Any]:
        yield from original(visible_traceback(tb))

    return walk_tb


def _walk_stack(original: Callable[..., Any]) -> Callable[..., Iterator[tuple[FrameType, int]]]:
    def walk_stack(f: FrameType | None) -> Iterator[tuple[FrameType, int]]:
        if f is None:
            f = sys._getframe(1)
            while f is not None and f.f_globals is traceback.__dict__:
                f = f.f_back
        for spot in visible_stack(f):
            yield spot.frame, spot.line

    return walk_stack


def _innerframes(original: Callable[..., Any]) -> Callable[..., Any]:
    def getinnerframes(tb: TracebackType | None, context: int = 1) -> Any:
        return original(visible_traceback(tb), context)

    return getinnerframes


def _outerframes(original: Callable[..., Any]) -> Callable[..., Any]:
    def getouterframes(frame: Any, context: int = 1) -> Any:
        if not isinstance(frame, FrameType):
            return original(frame, context)
        rebuilt: TracebackType | None = None  # a traceback carries the lines to show; read from its other end
        for spot in visible_stack(frame):
            rebuilt = TracebackType(rebuilt, *spot)
        return original_inner(rebuilt, context)[::-1] if rebuilt is not None else []

    original_inner: Callable[..., Any] = inspect.unwrap(inspect.getinnerframes)
    return getouterframes


def _invoke_excepthook(original: Callable[[], Callable[..., Any]]) -> Callable[[], Callable[..., Any]]:
    def make_invoke_excepthook() -> Callable[..., Any]:
        invoke = original()

        def invoke_excepthook(thread: threading.Thread) -> None:
            error = sys.exc_info()[1]
            if error is not None:
                scrub(error)
            invoke(thread)

        return invoke_excepthook

    return make_invoke_excepthook
