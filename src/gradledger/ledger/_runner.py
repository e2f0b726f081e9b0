"""Runs a script, a module or a folder as ``__main__``, exactly as ``python`` would.

The process belongs to the program: ``sys.argv``, ``sys.path[0]`` and ``sys.modules["__main__"]`` are set for it and
stay, so that pickling, spawned workers (which import ``__main__`` again by its path, unwatched) and exit handlers
work as they do without us.  Nothing is imported on the program's behalf: the probes go in when the program itself has
imported torch, so that what it does before that (thread counts in the environment, for instance) still has its
effect.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import io
import os
import pkgutil
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Literal, NoReturn

from gradledger.core.errors import UsageError
from gradledger.core.site import Frame
from gradledger.ledger import _frames, _once_loaded, _warnings
from gradledger.ledger._site import is_user_code


@dataclass(frozen=True)
class Target:
    """What to run: `name` as typed, `argv` the program's own arguments (without its name)."""

    kind: Literal["script", "module", "folder"]
    name: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    `exit_code` is what a shell would see from ``python`` (0 to 255; 130 after an uncaught KeyboardInterrupt, which also
    sets `signal`: see `leave`).  `exception` and `message` describe the uncaught error, None for none and for
    SystemExit.  `sites` is its traceback without the lines of Python and torch, innermost last.  `watched` says whether
    the probes went in (they do not in a program that never imports torch); `watch_error` is the traceback of an
    installation that failed.
    """

    exit_code: int
    exception: str | None = None
    message: str | None = None
    sites: tuple[Frame, ...] = ()
    signal: int | None = None
    watched: bool = False
    watch_error: str | None = None


def resolve(name: str, argv: Sequence[str] = (), *, module: bool = False) -> Target:
    """What `name` stands for: a module with `module`, else a file, or a folder or zip file that holds ``__main__.py``.

    Runs nothing of the program.  Raises UsageError when there is nothing to run.
    """
    if module:
        top = name.partition(".")[0]
        found = top and (
            top in sys.builtin_module_names or importlib.machinery.PathFinder.find_spec(top, [os.getcwd(), *sys.path])
        )
        if not found:
            raise UsageError(
                got=f"-m {name}, and neither {os.getcwd()} nor this environment has a module {top!r}",
                wanted="the dotted name of a module that `python -m` can run",
                where="the program to audit",
                next_step="run from the folder that holds the package, or install it into this environment",
            )
        return Target("module", name, tuple(argv))
    problem = _problem(name)
    if problem is not None:
        raise UsageError(
            got=problem[0],
            wanted="a Python script, a folder or zip file with __main__.py, or -m package.module",
            where="the program to audit",
            next_step=problem[1],
        )
    return Target("folder" if pkgutil.get_importer(name) is not None else "script", name, tuple(argv))


def _problem(name: str) -> tuple[str, str] | None:
    """(what was got, what to do next) for a path that cannot be run."""
    if name in ("", "-"):
        return f"{name!r}", "name a file: a program that is read from standard input cannot be audited"
    if not os.path.exists(name):
        guess = name.replace(".", os.sep)
        if not name.endswith(".py") and (os.path.exists(f"{guess}.py") or os.path.isdir(guess)):
            return f"{name}, which is no file", f"write -m {name}"
        return f"{name}, which does not exist in {os.getcwd()}", "check the path, or change to its folder"
    if not os.access(name, os.R_OK):
        return f"{name}, which may not be read", f"allow it: chmod u+r {name}"
    importer = pkgutil.get_importer(name)
    if importer is not None and importer.find_spec("__main__") is None:
        scripts = sorted(entry for entry in os.listdir(name) if entry.endswith(".py")) if os.path.isdir(name) else []
        hint = f"name one of its scripts: {', '.join(scripts[:6])}" if scripts else "name a script"
        return f"{name}, which holds no __main__.py", hint
    return None


def run(
    target: Target,
    *,
    before: Callable[[], None],
    after: Callable[[Outcome], None],
    once_loaded: str = "torch",
) -> Outcome:
    """Run `target` in this process; return when it, and every thread that Python would wait for, has ended.

    `before` installs the probes.  It is called once: when the program has imported `once_loaded`, or right before the
    program's first line if that is loaded already; never, if the program does not import it.  An error in it does not
    reach the program.  `after` is called with the outcome once the program has ended and its traceback is printed; exit
    handlers run later, when the process ends (see `leave`).  Both are skipped in a child that the program forks: such a
    child ends inside this function, as it would under ``python``.
    """
    _frames.install()  # both stay to the end of the process: exit handlers, too, may print tracebacks and warnings
    _warnings.install()
    arm = _Arm(once_loaded, before)
    owner = os.getpid()
    main = _take_over(target)
    arm.set()
    error: BaseException | None = None
    # The frames below the program are ours: it shall be able to go as deep as without them.
    own = _depth()
    if target.kind == "script":  # one function more, and Python 3.11 counts the call of exec() too
        own += 1 if sys.version_info >= (3, 12) else 2
    sys.setrecursionlimit(sys.getrecursionlimit() + own)
    try:
        if target.kind == "script":
            _run_script(target, main)
        else:
            runpy._run_module_as_main(  # type: ignore[attr-defined]
                target.name if target.kind == "module" else "__main__", target.kind == "module"
            )
    except BaseException as caught:
        error = caught
    arm.unset()
    exit_code, interrupt, left = _conclude(error)
    if target.kind == "script" and not left:  # as Python does, except on its way out
        main.__dict__.pop("__file__", None)
        main.__dict__.pop("__cached__", None)
    _wait_for_threads()
    if os.getpid() != owner:
        _end(exit_code, interrupt)
    name, message, sites = _describe(error)
    outcome = Outcome(exit_code, name, message, sites, interrupt, arm.called, arm.failure)
    error = None
    after(outcome)
    return outcome


_frames.entry(run)


def leave(outcome: Outcome, exit_code: int | None = None) -> NoReturn:
    """End the process as the program ended: with its exit code (or `exit_code`), or by its KeyboardInterrupt.

    The interrupt, whose traceback is printed already, is raised once more and has to reach the top of the process:
    what Python makes of it at its very end (a signal or the code 1) is then its own affair, as without us.
    """
    if outcome.signal is not None and exit_code is None:
        error = getattr(sys, "last_value", None)
        sys.excepthook = lambda *_: None
        raise error if isinstance(error, KeyboardInterrupt) else KeyboardInterrupt
    sys.exit(outcome.exit_code if exit_code is None else exit_code)


def _take_over(target: Target) -> ModuleType:
    """Give the process to the program: streams, hooks, argv, path, and a fresh ``__main__``."""
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    first = "-m" if target.kind == "module" else target.name
    sys.argv[:] = [first, *target.argv]
    command = ["-m", target.name] if target.kind == "module" else [target.name]
    sys.orig_argv[:] = [*_interpreter(sys.orig_argv), *command, *target.argv]

    if target.kind == "folder":
        folder: str | None = _absolute(target.name)
    elif sys.flags.safe_path:
        folder = None
    elif target.kind == "module":
        folder = os.getcwd()
    else:
        folder = os.path.dirname(os.path.realpath(target.name))
    if not sys.flags.safe_path:  # then Python put a folder of its own there: that of this command
        del sys.path[0]
    if folder is not None:
        sys.path.insert(0, folder)

    main = ModuleType("__main__")
    main.__dict__.update(__loader__=importlib.machinery.BuiltinImporter, __annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    return main


def _depth() -> int:
    """How many frames there are, from the caller's outward."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def _interpreter(command: list[str]) -> list[str]:
    """The first part of a command line of Python: the interpreter and its options."""
    end = 1
    while end < len(command) and command[end].startswith("-") and not command[end].startswith(("-m", "-c", "--")):
        end += 2 if command[end] in ("-W", "-X") else 1
    return command[:end]


def _absolute(name: str) -> str:
    """The absolute path as Python spells it: on POSIX it is not normalised."""
    return os.path.abspath(name) if os.name == "nt" else os.path.join(os.getcwd(), name)


def _run_script(target: Target, main: ModuleType) -> None:
    path = _absolute(target.name)
    names = main.__dict__
    names["__file__"], names["__cached__"] = path, None
    with io.open_code(path) as stream:
        source = stream.read()
    code: CodeType | None = None
    if path.endswith(".pyc"):
        code = pkgutil.read_code(io.BytesIO(source))
        names["__loader__"] = importlib.machinery.SourcelessFileLoader("__main__", path)
    else:
        names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    try:
        if code is None:
            code = compile(source, path, "exec", dont_inherit=True)
        exec(code, names)
    finally:
        _flush()


_frames.entry(_run_script)


def _conclude(error: BaseException | None) -> tuple[int, int | None, bool]:
    """Print what Python prints about the end of a program; returns (exit code, signal or None, left by SystemExit)."""
    if error is None:
        return 0, None, False
    if isinstance(error, SystemExit):
        return _exit_status(error), None, True
    _frames.scrub(error)
    kind, tb = type(error), error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, tb
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook = getattr(sys, "excepthook", None)
    try:
        if hook is None:
            sys.stderr.write("sys.excepthook is missing\n")
            sys.__excepthook__(kind, error, tb)
        else:
            hook(kind, error, tb)
    except SystemExit as nested:
        return _exit_status(nested), None, True
    except BaseException as nested:
        _frames.scrub(nested)
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(nested), nested, nested.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(kind, error, tb)
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT, int(signal.SIGINT), False
    return 1, None, False


_frames.entry(_conclude)


def _exit_status(error: SystemExit) -> int:
    """The exit code of a SystemExit; what is neither a number nor None is printed, and the code is then 1."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    try:
        if sys.stderr is None:
            os.write(2, f"{code}\n".encode())
        else:
            print(code, file=sys.stderr)
    except Exception:
        pass  # as in Python: a text that cannot be printed does not change the exit
    return 1


def _flush() -> None:
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except Exception:
            pass  # Python reports a stream that cannot be flushed at its very end, and so it will here


def _wait_for_threads() -> None:
    """What Python does next: wait for threads that are not daemons.  A second call, at the real end, does nothing."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:
        _frames.scrub(error)
        sys.unraisablehook(sys.UnraisableHookArgs((type(error), error, error.__traceback__, None, threading)))  # type: ignore


def _end(exit_code: int, killed_by: int | None) -> NoReturn:
    """End this process now, after its exit handlers, by the signal if one is given."""
    atexit._run_exitfuncs()
    _flush()
    if killed_by is not None:
        signal.signal(killed_by, signal.SIG_DFL)
        os.kill(os.getpid(), killed_by)
    os._exit(exit_code)


_frames.entry(_end)


def _describe(error: BaseException | None) -> tuple[str | None, str | None, tuple[Frame, ...]]:
    if error is None or isinstance(error, SystemExit):
        return None, None, ()
    kind = type(error)
    prefix = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    name = prefix + kind.__qualname__
    try:
        message = str(error)
    except Exception:
        message = f"<{name} cannot be shown as text>"
    sites = tuple(
        Frame(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_user_code(frame.f_code)
    )
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        sites += (Frame(error.filename, error.lineno, "<module>"),)
    return name, message, sites


class _Arm:
    """Calls `before` once, when the module `name` has been loaded.  Leaves no trace on it or on the import system."""

    def __init__(self, name: str, before: Callable[[], None]) -> None:
        self.called = False
        self.failure: str | None = None
        self._name, self._before = name, before
        self._owner = os.getpid()
        self._undos: list[Callable[[], None]] = []

    def set(self) -> None:
        self._undos += [_once_loaded.listen(), _once_loaded.when(self._name, self._call)]

    def unset(self) -> None:
        while self._undos:
            self._undos.pop()()

    def _call(self, _: ModuleType) -> None:
        if self.called or self.failure is not None or os.getpid() != self._owner:
            return
        self.called = True
        undo = _warnings.install()  # once more, now that torch is loaded: it has to learn about our `warnings.warn`
        try:
            self._before()
        except Exception:
            self.called, self.failure = False, traceback.format_exc()
        finally:
            undo()
