"""Tests that fork, in an interpreter of their own: a child inherits each lock that a thread of its parent holds."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CHILD = """\
import json, pathlib, runpy, sys
file, name, arguments = sys.argv[1:]
# the module's name is not __main__, and what it defines stays alive while the test runs
space = runpy.run_path(file, run_name=name)
space[name].__wrapped__(**{key: pathlib.Path(value) for key, value in json.loads(arguments).items()})
"""


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a fresh process, with two minutes to end; its arguments may be paths only (`tmp_path`)."""

    @functools.wraps(test)
    def outside(**arguments: Path) -> None:
        words = [test.__code__.co_filename, test.__name__, json.dumps({k: str(v) for k, v in arguments.items()})]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), *sys.path)))},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return outside
