"""From the running stack to a `Site`: the innermost frame that a user of torch would call their own code."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType

from gradledger.core.site import NOWHERE, Frame, Site
from gradledger.ledger import _frames

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = tuple(
    os.path.realpath(p) + os.sep for p in {sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"]}
)
# The installed command that started us is no part of the program.
_COMMAND = os.path.join(os.path.abspath(sysconfig.get_path("scripts")), "gradledger")
# Libraries below the training loop: a line inside them is never the line to edit.
_PLUMBING = (
    "torch", "numpy", "functorch", "tensordict", "torchgen", "accelerate", "_pytest", "pluggy", "rich", "typer", "click"
)  # fmt: skip
MAX_CALLERS = 5
MAX_SITES = 20_000
MAX_CODES = 50_000

# By `id`, since the hash of a code object is made of all that is in it, each time; `_codes` keeps the numbers theirs.
_user_code: dict[int, bool] = {}
_codes: list[CodeType] = []
_sites: dict[tuple[tuple[int, int], ...], Site] = {}


def _is_user_file(name: str) -> bool:
    if name.startswith("<") and not name.startswith(("<ipython", "<stdin>", "<string>")):
        return False
    real = os.path.abspath(name)
    if real.startswith(_COMMAND):
        return False
    if real.startswith(_HERE) and not real.startswith(_HERE + "recipes"):
        return False
    for marker in (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"):
        if marker in real:
            package = real.split(marker, 1)[1].split(os.sep, 1)[0]
            return package.removesuffix(".py") not in _PLUMBING
    return not real.startswith(_STDLIB)


def is_user_code(code: CodeType) -> bool:
    """Whether `code` belongs to the program (or to a training library it uses), not to torch, Python or this
    package."""
    known = _user_code.get(id(code))
    return _learn(code, _is_user_file(code.co_filename)) if known is None else known


def _learn(code: CodeType, user: bool) -> bool:
    if len(_codes) >= MAX_CODES:  # of a program that makes its functions anew all the time
        _user_code.clear()
        _sites.clear()
        _codes.clear()
    _codes.append(code)
    _user_code[id(code)] = user
    return user


def set_aside(frame: FrameType | None) -> None:
    """Frames of a tool that runs programs: this one and all above it are no part of them."""
    while frame is not None:
        _learn(frame.f_code, False)
        frame = frame.f_back


def here(skip: int = 1) -> Site:
    """The site of the code that called the caller; `skip` frames of ours are stepped over without a look.

    Returns NOWHERE when no frame of user code is on the stack (for instance at interpreter exit).
    """
    try:
        frame: FrameType | None = sys._getframe(skip + 1)
    except ValueError:
        return NOWHERE
    known = _user_code.get  # walked at every watched operation, through all the frames of a data loader: no call each
    while frame is not None:
        code = frame.f_code
        user = known(id(code))
        if user or (user is None and is_user_code(code)):
            return of(frame)
        frame = frame.f_back
    return NOWHERE


def built_at(made: object) -> Site:
    """The user's line that is building `made` right now: the first frame that is not its own `__init__`."""
    frame = user_frame(1)
    while frame is not None:
        code = frame.f_code
        if is_user_code(code):
            own = code.co_name == "__init__" and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is made
            if not own:
                return of(frame)
        frame = frame.f_back
    return NOWHERE


def of(frame: FrameType) -> Site:
    """The site of a frame of user code.

    The same chain of user frames at the same instructions is the same site: looked up, not built again.
    """
    known = _user_code.get
    is_user_code(frame.f_code)  # known from now on, and kept
    chain: list[tuple[int, int]] = [(id(frame.f_code), frame.f_lasti)]
    frames = [frame]
    up = frame.f_back
    while up is not None and len(chain) <= MAX_CALLERS:
        code = up.f_code
        user = known(id(code))
        if user is None:
            user = is_user_code(code)
        if user:
            chain.append((id(code), up.f_lasti))
            frames.append(up)
        elif id(code) in _frames.bottom:
            break
        up = up.f_back
    key = tuple(chain)
    site = _sites.get(key)
    if site is None:
        if len(_sites) >= MAX_SITES:
            _sites.clear()
        site = _sites[key] = _build(frames)
    return site


def _build(frames: list[FrameType]) -> Site:
    code = frames[0].f_code
    callers = tuple(Frame(f.f_code.co_filename, f.f_lineno or 0, f.f_code.co_name) for f in frames[1:])
    in_init = any(f.f_code.co_name == "__init__" for f in frames)
    first = 0 if code.co_name == "<module>" else code.co_firstlineno
    return Site(code.co_filename, frames[0].f_lineno or 0, code.co_name, first, in_init, callers)


def mark(skip: int = 1) -> tuple[int, int] | None:
    """The instruction of user code that runs: as good as a line for telling calls apart, and cheaper than a site."""
    frame: FrameType | None = sys._getframe(skip + 1)
    while frame is not None:
        code = frame.f_code
        user = _user_code.get(id(code))
        if user or (user is None and is_user_code(code)):
            return id(code), frame.f_lasti
        frame = frame.f_back
    return None


def way(skip: int = 1, most: int = 3) -> tuple[tuple[int, int], ...]:
    """The instructions of user code that run, innermost first: two calls on one line are two ways to the same site."""
    found: list[tuple[int, int]] = []
    frame = user_frame(skip + 1)
    while frame is not None and len(found) < most:
        if is_user_code(frame.f_code):
            found.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def user_frame(skip: int = 1) -> FrameType | None:
    """The innermost frame of user code itself (for a look at the arguments of the function that runs)."""
    frame: FrameType | None = sys._getframe(skip + 1)
    known = _user_code.get
    while frame is not None:
        code = frame.f_code
        user = known(id(code))
        if user or (user is None and is_user_code(code)):
            break
        frame = frame.f_back
    return frame
