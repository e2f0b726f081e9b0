"""The package without its extra: it imports, and what needs more than torch and numpy says what to install."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
for name in ("scipy", "sklearn", "pyarrow", "safetensors", "av", "rich", "typer"):
    sys.modules[name] = None
import numpy as np
import gradledger.data as data
import gradledger.data.lerobot
from gradledger.data.split import split
schema = data.Schema("s", (data.Field("x", ("B",), (None,)),))
schema.require({"x": np.arange(5, dtype=np.float32)})
assert len(list(data.Loader([1, 2, 3], batch_size=2, rng_seed=0))) == 2
for call in (lambda: split({"id": [1, 2, 3]}), lambda: data.lerobot.write(__import__("pathlib").Path("x"), [], {
    "a": data.lerobot.Feature("float32", (1,))}, fps=1)):
    try:
        call()
    except data.DataError as error:
        print(error)
"""


def test_without_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "got no module 'scipy.sparse'" in first
    assert "pip install 'gradledger[data]'" in first
    assert "pyarrow for LeRobot data sets" in second
