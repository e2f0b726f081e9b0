"""A process for one run of a script, forked from one that has imported torch already: nearly all of a short run's time.

`launch` stands in for `gradledger.cli._selfcheck.spawn`.  What it starts is `python SCRIPT`, or `gradledger audit ...
SCRIPT`, but for three things: torch and this package are loaded before the first line, every process begins with the
same generator states and the same seed of hashes (so more of two runs has to be equal), and what a program looks up in
its own stack ends in this file.  A difference found here counts only once the command itself has shown it too.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import os
import random
import signal
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import _forkserver

from gradledger.cli import _bits
from gradledger.cli._selfcheck import Start

TIMEOUT_S = 600
_PATH = list(sys.path)


def prepare() -> None:
    """Import once what every script needs."""
    _forkserver.preload()
    import numpy.random  # noqa: F401


def launch(start: Start) -> int:
    """Fork, run, wait; the exit code, negative for a signal.  A run that takes longer than TIMEOUT_S is killed."""
    sys.stdout.flush()
    sys.stderr.flush()
    broken, drawn = start.out.with_name("broken"), random.getstate()
    pid = os.fork()
    if not pid:
        try:
            random.setstate(drawn)  # Python seeds this generator anew in each forked process
            _child(start)
        finally:  # whatever happens: the rest of this tool is the parent's
            broken.write_text(traceback.format_exc())
            os._exit(70)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if broken.exists():
                raise RuntimeError(f"{' '.join(start.words)} was not run: {broken.read_text()}")
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"{' '.join(start.words)} ran longer than {TIMEOUT_S} s")
        time.sleep(0.005)


def _child(start: Start) -> NoReturn:
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # scratch folders of this tool outlive its children
    given = start.out.with_name("in")
    given.write_bytes(start.stdin)
    with given.open("rb") as stdin, start.out.open("wb") as out, start.err.open("wb") as err:
        for number, stream in enumerate((stdin, out, err)):
            os.dup2(stream.fileno(), number)
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    _begin()
    words = list(start.words)
    sys.path[:] = ["", *(folder for folder in _PATH if os.path.abspath(folder) != os.path.dirname(__file__))]
    if words[:1] == ["-m"]:
        from gradledger.cli.commands.audit import main

        run: Any = main
        given_words = words[3:]
    else:
        run, given_words = _script, words
    code: Any = 0
    try:
        run(given_words)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(type(error), error, _of_the_program(error))
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not isinstance(code, int) and code is not None:
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _begin() -> None:
    """What `_bits.begin` does in a process that has not loaded torch."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    bits = _bits.Bits(os.environ.pop(_bits.VARIABLE))
    before = os.environ.pop(_bits.PATH_BEFORE)
    del os.environ["PYTHONPATH"]
    if before:
        os.environ["PYTHONPATH"] = before
    atexit.register(bits.at_end)
    register_optimizer_step_post_hook(bits.after_step)


def _script(words: list[str]) -> None:
    """As ``python words...`` would."""
    path = os.path.join(os.getcwd(), words[0])
    sys.argv[:] = words
    sys.orig_argv[:] = [sys.orig_argv[0], *words]
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    main = ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__loader__=loader, __annotations__={}, __builtins__=builtins, __file__=path, __cached__=None)
    sys.modules["__main__"] = main
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)


def _of_the_program(error: BaseException) -> Any:
    """The traceback from the program's first line on."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    error.__traceback__ = tb
    return tb
