"""Reversible observation of one function or method: the original is called exactly once, with the very arguments given.

Public hooks come first; a patch is for points that have none.  What runs before and after is guarded: it may fail,
the program's call may not be changed by it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from torch.compiler import is_dynamo_compiling

from gradledger.ledger._jit import same_operation
from gradledger.ledger._recorder import Recorder

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], None]
Raised = Callable[[Any, BaseException, tuple[Any, ...], dict[str, Any]], None]
Undo = Callable[[], None]

_MISSING = object()


class Nest(threading.local):
    """For functions observed together: a call made inside another of them is torch's doing, and is passed on unseen."""

    inside = False


def observe(
    recorder: Recorder,
    owner: Any,
    name: str,
    *,
    before: Before | None = None,
    after: After | None = None,
    raised: Raised | None = None,
    nest: Nest | None = None,
    abroad: Callable[[], None] | None = None,
    skip: Callable[[tuple[Any, ...], dict[str, Any]], bool] | None = None,
) -> Undo:
    """Replace `owner.name` by a wrapper that calls `before(args, kwargs) -> state`, the original, then
    `after(state, result, args, kwargs)` or `raised(state, error, args, kwargs)`.  Returns the undo.

    For methods `args[0]` is the instance.  With `before` absent the state is None.  With `nest` only the outermost call
    is seen.  `skip` may say, without a guard and at once, that a call need not be looked at.  `abroad` is called
    instead of all others in a thread that is not watched.  Sites: inside the callbacks `_site.here(...)` skips every
    frame of this package by itself.
    """
    own = vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else _MISSING
    original = getattr(owner, name)
    where = f"{getattr(owner, '__name__', owner)}.{name}"

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():  # the compiler reads this as True and goes straight on to the original
            return original(*args, **kwargs)
        if skip is not None and skip(args, kwargs):
            return original(*args, **kwargs)
        state: Any = None
        if abroad is not None and recorder.abroad:
            abroad()
        if before is not None and recorder.enabled:
            with recorder.guard(where):
                state = before(args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if raised is not None and recorder.enabled:
                with recorder.guard(where):
                    raised(state, error, args, kwargs)
            raise
        if after is not None and recorder.enabled:
            with recorder.guard(where):
                after(state, result, args, kwargs)
        return result

    @functools.wraps(original)
    def outermost(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or nest is None or nest.inside or not recorder.enabled:
            return original(*args, **kwargs)
        nest.inside = True
        try:
            return wrapper(*args, **kwargs)
        finally:
            nest.inside = False

    installed = wrapper if nest is None else outermost
    setattr(owner, name, installed)
    same_operation(original, installed)

    def undo() -> None:
        if vars(owner).get(name) is installed:  # somebody may have patched over us: then leave theirs alone
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

    return undo


def together(*undos: Undo) -> Undo:
    """One undo for several, in reverse order."""

    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo
