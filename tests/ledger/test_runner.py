"""A program under the runner against the same program under `python`, byte by byte; what the runner tells about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gradledger.core.errors import UsageError
from gradledger.ledger._runner import Target, resolve

# Stands for the command line: probes that go in with `colorsys`, a report beside the program's streams.
DRIVER = """
import sys
report, *rest = sys.argv[1:]
from gradledger.ledger._runner import leave, resolve, run
module = rest[0] == "-m"
rest = rest[module:]
calls = []
def before():
    calls.append("before")
    assert "colorsys" in sys.modules
    if report.endswith("broken"):
        raise RuntimeError("probe")
def after(outcome):
    calls.append("after")
    import json
    with open(report, "w") as file:
        sites = [[s.file.rpartition("/")[2], s.line, s.function] for s in outcome.sites]
        json.dump({**vars(outcome), "sites": sites, "calls": calls}, file)
leave(run(resolve(rest[0], rest[1:], module=module), before=before, after=after, once_loaded="colorsys"))
"""
HEADER = "import sys, colorsys\n"


class Pair:
    """Runs a command line of Python with and without the runner, in one folder, and compares."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = folder / "report"
        (folder / "driver.py").write_text(DRIVER)
        self.work = folder / "work"
        self.work.mkdir()

    def write(self, name: str, text: str) -> None:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def start(self, *words: str, flags: tuple[str, ...] = (), stdin: str = "", **env: str) -> tuple[str, str, int]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
        done = subprocess.run(
            [sys.executable, "-B", *flags, *words],
            cwd=self.work,
            env={**clean, **env},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout, done.stderr, done.returncode

    def same(self, *words: str, flags: tuple[str, ...] = (), stdin: str = "", **env: str) -> tuple[str, str, int]:
        """Both runs are equal; returns (stdout, stderr, exit code)."""
        bare = self.start(*words, flags=flags, stdin=stdin, **env)
        under = self.start(str(self.folder / "driver.py"), str(self.report), *words, flags=flags, stdin=stdin, **env)
        assert under == bare
        return bare

    def told(self) -> dict[str, object]:
        loaded: dict[str, object] = json.loads(self.report.read_text())
        return loaded


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


LOOK = """
import sys, os, pickle, __main__
print({k: str(v).split(" at 0x")[0] for k, v in list(globals().items())[:9]}, list(globals()))
print(sys.argv, sys.path, sys.orig_argv[1:], str(__main__).split(" at 0x")[0], vars(__main__) is globals())
class Here: pass
print(type(pickle.loads(pickle.dumps(Here()))) is Here, Here.__module__, __debug__, sys.flags.optimize)
print(open("near.txt").read(), sys.stdin.read(), sys.meta_path[-1])
print(sys.excepthook is sys.__excepthook__)
if __name__ == "__main__":
    print("main")
"""


@pytest.mark.parametrize(
    "words",
    [
        ("look.py",),
        ("./look.py", "a", "--b", "-c"),
        ("deep/../look.py", ""),
        ("link.py",),
        ("-m", "look", "x"),
        ("-m", "pack.look"),
        ("-m", "pack"),
        ("pack", "z"),
        ("./pack/",),
        ("packed.zip", "q"),
        ("deep/look.pyc", "1"),
    ],
    ids=" ".join,
)
def test_a_program_finds_the_world_as_python_makes_it(pair: Pair, words: tuple[str, ...]) -> None:
    pair.write("look.py", LOOK)
    pair.write("near.txt", "near")
    pair.write("pack/__init__.py", "")
    pair.write("pack/look.py", LOOK)
    pair.write("pack/__main__.py", LOOK)
    pair.write("deep/real.py", LOOK)
    (pair.work / "link.py").symlink_to("deep/real.py")
    with zipfile.ZipFile(pair.work / "packed.zip", "w") as packed:
        packed.writestr("__main__.py", LOOK)
    if words[0].endswith(".pyc"):
        compiling = "import py_compile; py_compile.compile('look.py', cfile='deep/look.pyc')"
        subprocess.run([sys.executable, "-c", compiling], cwd=pair.work, check=True, timeout=60)
    out, _, code = pair.same(*words, stdin="typed")
    assert code == 0
    assert "near typed" in out


@pytest.mark.parametrize(
    "flags", [("-O",), ("-OO",), ("-P",), ("-E", "-s"), ("-W", "error"), ("-X", "dev"), ("-u",)], ids=" ".join
)
def test_options_of_the_interpreter_keep_their_meaning(pair: Pair, flags: tuple[str, ...]) -> None:
    pair.write("look.py", LOOK)
    pair.write("near.txt", "near")
    pair.same("look.py", "a", flags=flags)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit(True)", 1),
        ("sys.exit(256)", 0),
        ("sys.exit(-1)", 255),
        ("sys.exit('text')", 1),
        ("sys.exit(2.5)", 1),
        ("sys.exit((1, 2))", 1),
        ("raise SystemExit", 0),
        ("raise SystemExit(7)", 7),
        ("exit(4)", 4),
        ("import os; print('lost'); os._exit(5)", 5),
        ("raise KeyboardInterrupt", -2),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -2),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import os; os.abort()", -6),
        ("1 / 0", 1),
        ("raise ValueError('bad') from KeyError('why')", 1),
        ("raise ExceptionGroup('both', [ValueError(1), TypeError(2)])", 1),
        ("class Odd(Exception):\n    def __str__(self): raise TypeError\nraise Odd", 1),
        ("def f(n):\n    return f(n + 1)\nf(0)", 1),
        ("n = 0\ndef f():\n    global n\n    n += 1\n    f()\ntry:\n    f()\nexcept RecursionError:\n    print(n)", 0),
        ("import missing_module_of_nobody", 1),
        ("import broken", 1),
        ("eval('1 +')", 1),
        ("try:\n    sys.exit(2)\nfinally:\n    print('finally')", 2),
        ("sys.excepthook = lambda *a: print('hook', a[0], a[2].tb_frame.f_code.co_name, a[2].tb_next)\n1 / 0", 1),
        ("def hook(*a): raise TypeError('hook')\nsys.excepthook = hook\n1 / 0", 1),
        ("sys.excepthook = lambda *a: sys.exit(8)\n1 / 0", 8),
        ("del sys.excepthook\n1 / 0", 1),
        ("sys.stderr = None\nsys.exit('nowhere')", 1),
        ("import traceback\nsys.excepthook = lambda *a: traceback.print_stack()\n1 / 0", 1),
    ],
)
def test_the_end_is_that_of_python(pair: Pair, body: str, code: int) -> None:
    at_exit = "lambda: print('at exit', '__file__' in globals(), hasattr(sys, 'last_value'))"
    pair.write("end.py", f"{HEADER}import atexit\natexit.register({at_exit})\nprint('before')\n{body}\n")
    pair.write("broken.py", "def f(:\n")
    _, _, got = pair.same("end.py")
    assert got == code


@pytest.mark.parametrize("words", [("-m", "end"), ("folder",)], ids=" ".join)
@pytest.mark.parametrize("body", ["1 / 0", "sys.exit('text')", "raise KeyboardInterrupt", "print('fine')"])
def test_the_end_of_modules_and_folders_too(pair: Pair, words: tuple[str, ...], body: str) -> None:
    text = f"{HEADER}import atexit\natexit.register(lambda: print('__file__' in globals()))\n{body}\n"
    pair.write("end.py", text)
    pair.write("folder/__main__.py", text)
    pair.same(*words)


@pytest.mark.parametrize(
    "source",
    [
        b"def f(:\n  pass\n",
        b"x = 1\n  y = 2\n",
        b"# coding: latin-1\nprint('\xe9')\n",
        b"\xef\xbb\xbfprint('bom')\n",
        b"from __future__ import annotations\ndef f(x: y): pass\nprint(f.__annotations__)\n",
        b"from __future__ import nothing\n",
        b"return 3\n",
        b"#!/usr/bin/env python\nprint('no newline at the end')",
        b"",
    ],
)
def test_sources_of_every_kind(pair: Pair, source: bytes) -> None:
    (pair.work / "odd.py").write_bytes(source)
    pair.same("odd.py")


THREADS = """
import threading, time, atexit
from concurrent.futures import ThreadPoolExecutor
atexit.register(print, "at exit")
def late():
    threading.main_thread().join()
    time.sleep(0.1)
    print("late", threading.main_thread().is_alive())
def fail():
    raise ValueError("in a thread")
for target in (fail, sys.exit, late):
    threading.Thread(target=target, name=target.__name__).start()
    time.sleep(0.05)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
pool = ThreadPoolExecutor(1)  # never shut down
print(pool.submit(str, 1).result())
threading.excepthook = lambda args: print("hook", args.exc_type, args.thread.name)
threading.Thread(target=fail, name="hooked").start()
"""


def test_threads_are_waited_for_as_python_waits(pair: Pair) -> None:
    pair.write("threads.py", HEADER + THREADS)
    out, err, _ = pair.same("threads.py")
    assert "late False\nat exit" in out
    assert "in a thread" in err


CHILDREN = """
import os, multiprocessing as mp
print("import", __name__, flush=True)
def work(x):
    return x * x, __name__, [m for m in sys.modules if m.startswith("gradledger")]
def fail():
    raise ValueError("in a child")
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [3]), flush=True)
    with mp.get_context("fork").Pool(1) as pool:
        print(pool.map(work, [4])[0][:2], flush=True)
    child = mp.get_context("fork").Process(target=fail, name="child")
    child.start(); child.join()
    print(child.exitcode, flush=True)
    for how in ("end", "exit", "error", "interrupt"):
        child = os.fork()
        if child == 0:
            print("in the child", how, flush=True)
            if how == "exit":
                sys.exit(6)
            if how == "error":
                1 / 0
            if how == "interrupt":
                raise KeyboardInterrupt
            break
        print(how, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("words", [("children.py",), ("-m", "children")], ids=" ".join)
def test_children_are_those_of_the_program_and_clean(pair: Pair, words: tuple[str, ...]) -> None:
    pair.write("children.py", HEADER + CHILDREN)
    out, _, code = pair.same(*words)
    assert "[(9, '__mp_main__', [])]" in out
    assert code == 0
    assert pair.told()["calls"] == ["before", "after"]


STACKS = """
import traceback, inspect, logging, warnings
logging.basicConfig(stream=sys.stdout, format="%(filename)s %(lineno)d %(message)s")
def f(level):
    traceback.print_stack(file=sys.stdout)
    print(len(inspect.stack()), [s.lineno for s in traceback.extract_stack()])
    logging.warning("here", stack_info=True)
    warnings.warn(f"level {level}", stacklevel=level)
    warnings.warn(f"level {level}", RuntimeWarning, level)
for level in (-1, 0, 1, 2, 3, 4, 99):
    f(level)
    f(level)
for wrong in ((), ("x", 3), ("x", UserWarning, "2")):
    try:
        warnings.warn(*wrong)
    except TypeError as error:
        print(error)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn(UserWarning("object"), stacklevel=2, source=[])
    print(caught[0].filename, caught[0].lineno, caught[0].source)
"""


@pytest.mark.parametrize("words", [("stacks.py",), ("-m", "stacks")], ids=" ".join)
def test_the_stack_begins_with_the_program(pair: Pair, words: tuple[str, ...]) -> None:
    pair.write("stacks.py", HEADER + STACKS)
    pair.same(*words)


# Libraries ask for the place of a module before anybody loads it.
SOME = """
import importlib.util, sys
print(len(sys.meta_path), importlib.util.find_spec("colorsys").name)
import colorsys
print(len(sys.meta_path), vars(colorsys.__loader__), vars(importlib.util.find_spec("sched").loader))
"""


def test_the_probes_go_in_when_the_program_has_loaded_torch(pair: Pair) -> None:
    pair.write("none.py", "print('nothing to watch')")
    pair.same("none.py")
    assert pair.told()["watched"] is False
    assert pair.told()["calls"] == ["after"]
    pair.write("some.py", SOME)
    out, _, _ = pair.same("some.py")
    assert "colorsys" in out
    assert pair.told()["watched"] is True
    assert pair.told()["calls"] == ["before", "after"]


RETRY = """
import sys, traceback
try:
    import colorsys
except Exception:
    traceback.print_exc()
open("colorsys/ready", "w").close()
import colorsys
print(colorsys.__spec__.origin == colorsys.__file__, vars(colorsys.__loader__).keys())
1 / 0
"""


def test_an_import_that_fails_first_may_be_tried_again(pair: Pair) -> None:
    pair.write("retry.py", RETRY)
    pair.write("colorsys/__init__.py", "import os\nif not os.path.exists('colorsys/ready'): 1 / 0\nprint('loaded')")
    bare = pair.start("retry.py")
    (pair.work / "colorsys" / "ready").unlink()
    under = pair.start(str(pair.folder / "driver.py"), str(pair.report), "retry.py")
    assert under == bare
    assert bare[1].count("ZeroDivisionError") == 2
    assert pair.told()["calls"] == ["before", "after"]


def test_an_error_in_the_probes_never_reaches_the_program(pair: Pair) -> None:
    pair.report = pair.folder / "broken"
    pair.write("fine.py", "import colorsys\nprint(colorsys.__name__)")
    pair.same("fine.py")
    assert pair.told()["watched"] is False
    assert "RuntimeError: probe" in str(pair.told()["watch_error"])


def test_the_outcome_names_the_error_and_the_lines_of_the_program(pair: Pair) -> None:
    pair.write("fails.py", f"{HEADER}import json\ndef g():\n    json.loads('{{')\ndef f():\n    g()\nf()\n")
    pair.same("fails.py")
    told = pair.told()
    assert told["exit_code"] == 1
    assert told["exception"] == "json.decoder.JSONDecodeError"
    assert str(told["message"]).startswith("Expecting property name")
    assert told["sites"] == [["fails.py", 7, "<module>"], ["fails.py", 6, "f"], ["fails.py", 4, "g"]]
    pair.write("wrong.py", "import json\nx = (\n")
    pair.same("wrong.py")
    assert pair.told()["exception"] == "SyntaxError"
    assert pair.told()["sites"] == [["wrong.py", 2, "<module>"]]
    pair.write("leaves.py", HEADER + "sys.exit('enough')")
    pair.same("leaves.py")
    assert (pair.told()["exit_code"], pair.told()["exception"], pair.told()["sites"]) == (1, None, [])
    pair.write("stopped.py", HEADER + "raise KeyboardInterrupt")
    pair.same("stopped.py")
    assert (pair.told()["exit_code"], pair.told()["signal"]) == (130, 2)


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("pack").mkdir()
    Path("pack/run.py").write_text("")
    Path("whole").mkdir()
    Path("whole/__main__.py").write_text("")
    assert resolve("train.py", ["a", "-m"]) == Target("script", "train.py", ("a", "-m"))
    assert resolve("whole") == Target("folder", "whole", ())
    assert resolve("pack.run", ["x"], module=True) == Target("module", "pack.run", ("x",))
    assert resolve("json.tool", module=True).kind == "module"
    for name, module, text in (
        ("absent.py", False, "absent.py, which does not exist"),
        ("pack", False, "holds no __main__.py.*name one of its scripts: run.py"),
        ("pack.run", False, "pack.run, which is no file.*write -m pack.run"),
        ("-", False, "standard input"),
        ("", False, "''"),
        ("nothing.here", True, "-m nothing.here, and neither"),
        ("", True, "-m , and neither"),
    ):
        with pytest.raises(UsageError, match=text):
            resolve(name, module=module)
