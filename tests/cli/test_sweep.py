"""`gradledger sweep plan|verify` as a user runs it: tables, proofs, exit codes, and what is said of every mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

# Parses its arguments and prints, as training scripts do when they are imported.
NET = """\
import argparse
import sys
import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=64)
hidden = parser.parse_args().hidden
print("hidden", hidden, sys.argv[0], __name__)


def block():
    return nn.Sequential(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.GELU(), nn.Dropout(0.1))


def make():
    torch.manual_seed(0)
    net = nn.Sequential(*[block() for _ in range(6)], nn.Linear(hidden, 4))
    return net, torch.randn(512, hidden), torch.randn(512, 4), F.mse_loss


if __name__ == "__main__":
    raise SystemExit("this is no run of the script")
"""
PARAMETERS, BUFFERS = 6 * 4 + 2, 6 * 3

# Factories that do not load torch: mistakes that are found before there is a model.
LIGHT = """\
import sys


def raises():
    return deeper()


def deeper():
    raise ValueError("no data in /nowhere")


def three():
    return [], 1, 2


def swapped():
    return [], len, 1, 2


def single():
    return object()


def needs(hidden, *, depth=3):
    return hidden


def leaves():
    sys.exit(3)


NUMBER = 7
"""

CASES = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

X, Y = torch.ones(4, 8), torch.zeros(4, 8)


def chain(n=4):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(n)]


def fine():
    return chain(), X, Y, F.mse_loss


# Its weight's gradient depends on how often this copy of the weight was run forward.
RUNS = {}


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        RUNS[scale.data_ptr()] = RUNS.get(scale.data_ptr(), 0) + 1
        return x * scale

    @staticmethod
    def backward(ctx, d_out):
        x, scale = ctx.saved_tensors
        twice = RUNS[scale.data_ptr()] > 1
        return d_out * scale, (d_out * x).sum(0) * (1.5 if twice else 1.0)


class Sly(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return Counting.apply(x, self.scale)


def sly():
    first, *rest = chain()
    return [first, Sly(), *rest], X, Y, F.mse_loss


calls = 0


def hidden_counter(output, y):
    global calls
    calls += 1
    return F.mse_loss(output, y) * (1 + 0.1 * (calls % 7))


def counter():
    return chain(), X, Y, hidden_counter


def noise(x):
    return x + torch.from_numpy(np.random.randn(*x.shape)).float()


def noisy():
    first, *rest = chain()
    return [first, noise, *rest], X, Y, F.mse_loss


def crash(x):
    return x.no_such_thing


def crashing():
    return [nn.Linear(8, 8), crash], X, Y, F.mse_loss


def shapes():
    return {"first": nn.Linear(8, 8), "second": nn.Linear(7, 8)}, X, Y, F.mse_loss


def meta():
    return chain(), X.to("meta"), Y, F.mse_loss


def no_module():
    return 7, X, Y, F.mse_loss


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.layer(x)


def own_forward():
    return Own(), X, Y, F.mse_loss


def vector():
    return chain(), X, Y, lambda output, y: (output - y).square()


def number():
    return chain(), X, Y, lambda output, y: 0.5


def one_argument():
    return chain(), X, Y, lambda output: output.sum()
"""

# Runs the command once per line of words, each in a fork, so that torch is loaded once for all.
DRIVER = """\
import json, os, sys, tempfile, traceback
import torch
from gradledger import sweep
from gradledger.cli.main import entry

torch.optim.SGD([torch.ones(1, requires_grad=True)])  # the first optimizer of a process loads half of torch
results = {}
for name, words in json.load(sys.stdin).items():
    streams = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
    child = os.fork()
    if not child:
        for number, stream in enumerate(streams, 1):
            os.dup2(stream.fileno(), number)
        sys.argv[:] = ["gradledger", "sweep", *words]
        code = 0
        try:
            entry()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for stream in streams:
        stream.seek(0)
    results[name] = [code, *[stream.read().decode() for stream in streams]]
json.dump(results, sys.stdout)
"""

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def command(tmp_path: Path) -> Run:
    """`gradledger sweep` in a scratch folder that holds net.py, light.py and cases.py."""
    for name, text in (("net", NET), ("light", LIGHT), ("cases", CASES)):
        (tmp_path / f"{name}.py").write_text(text)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("gradledger"))
        return subprocess.run(
            [program, "sweep", *words], cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=300, check=False
        )

    return run


def test_plan_prints_table_picture_and_bytes_in_80_columns(command: Run, tmp_path: Path) -> None:
    done = command("plan", "net.py:make", "--budget", "40%", "--json", "plan.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hidden 64 net.py net\n")
    document = json.loads((tmp_path / "plan.json").read_text())
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.search(r"^ +3  3 +(keep|recompute)", done.stdout, re.MULTILINE)
    assert "█" in done.stdout
    assert "^ peak" in done.stdout or "peak" in done.stdout.split("+", 1)[1]
    number = document["budget"]["bytes"]
    assert number == document["keep_peak_bytes"] * 40 // 100
    assert f"budget 40% is {number:,}".replace(",", " ") in done.stdout
    assert document["predicted_peak_bytes"] <= number
    assert "(" in document["plan"]
    assert f"plan {document['plan']}" in done.stdout
    assert [block["name"] for block in document["blocks"]] == ["0", "1", "2", "3", "4", "5", "6", "loss"]
    assert all(block["record_seconds"] > 0 for block in document["blocks"])


def test_verify_proves_equality_and_holds_the_measured_peak_against_the_budget(command: Run, tmp_path: Path) -> None:
    words = ("--budget", "45%", "--steps", "2", "--args", "--hidden 48", "--json", "proof.json")
    done = command("verify", "net.py:make", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hidden 48 net.py net\nequal bit for bit over 2 step(s)")
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert proof["compared"] == {
        "losses": 2,
        "gradients": 2 * PARAMETERS,
        "nones": 0,
        "parameters": 2 * PARAMETERS,
        "buffers": 2 * BUFFERS,
        "random_states": 2,
    }
    assert (proof["verdict"], proof["equal"], proof["first_difference"], proof["exit_code"]) == ("equal", True, None, 0)
    assert proof["budget"]["kept"] is True
    assert 0 < proof["peak_bytes"] <= proof["budget"]["bytes"] < proof["plain_peak_bytes"]
    # all that the plain step must hold at once: per block the outputs of Linear, BatchNorm, GELU and the mask
    assert proof["plain_peak_bytes"] > 6 * 4 * 512 * 48 * 4
    assert proof["seconds"]["sweep"] > 0 < proof["seconds"]["plain"]
    assert (
        len(proof["seconds"]["sweep_each"]) == len(proof["seconds"]["plain_each"]) == proof["seconds"]["repeats"] >= 3
    )
    assert {p.name for p in tmp_path.iterdir()} - {"__pycache__"} == {"net.py", "light.py", "cases.py", "proof.json"}


def test_a_package_with_relative_imports_by_file_and_by_name(command: Run, tmp_path: Path) -> None:
    inner = tmp_path / "pkg" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text("")
    (inner.parent / "layers.py").write_text("from torch import nn\nlayer = lambda: nn.Linear(8, 8)\n")
    (inner / "beside.py").write_text("import torch.nn.functional as F\nloss = F.mse_loss\n")
    text = "import torch\nfrom ..layers import layer\nfrom .beside import loss\n"
    factory = (
        "class Task:\n"
        "    @staticmethod\n"
        "    def make():\n"
        "        return [layer(), layer()], torch.ones(2, 8), torch.zeros(2, 8), loss\n"
    )
    (inner / "net.py").write_text(f"{text}import beside  # as a script finds it\n{factory}")
    (inner / "named.py").write_text(f"{text}import net_beside_the_folder  # as python -m finds it\n{factory}")
    (tmp_path / "net_beside_the_folder.py").write_text("")
    by_file = command("verify", "pkg/inner/net.py:Task.make")
    assert by_file.returncode == 0, by_file.stderr
    by_name = command("verify", "pkg.inner.named:Task.make", "--engine", "autograd", "--plan", "0 (1) 2")
    assert by_name.returncode == 0, by_name.stderr
    assert "\nautograd " in by_name.stdout
    assert by_name.stdout.endswith("plan 0 (1) 2\n")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "lihgt.py:three",
            "lihgt.py, which is not there (looked from {here}), wanted a Python file. Next: did you mean",
        ),
        ("nomodule.sub:make", "nor this environment has a module 'nomodule'"),
        ("light.py", "got 'light.py', wanted FILE.py:FACTORY or package.module:FACTORY"),
        ("light.py:thre", "got thre, which light.py does not define"),
        ("light.py:thre", "did you mean light.py:three?"),
        ("light:NUMBER", "got NUMBER, a int"),
        ("light.py:three", "got 3 values (list, int, int) from three(), wanted four: (model_or_blocks, x, y, loss_fn)"),
        ("light.py:single", "got a object from single(), wanted four values"),
        ("light.py:swapped", "give the four in this order: (model_or_blocks, x, y, loss_fn)"),
        ("light.py:needs", "needs, which cannot be called without arguments (missing a required argument: 'hidden')"),
        ("light.py:leaves", "SystemExit(3): the program ended itself"),
        ("typo.py:make", "importing typo.py: got SyntaxError"),
    ],
)
def test_a_target_that_gives_no_problem(command: Run, tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "typo.py").write_text("def make(:\n    pass\n")
    done = command("verify", target, "--json", "out.json")
    assert done.returncode == 2
    assert message.format(here=tmp_path.resolve()) in done.stderr
    assert done.stderr.count("gradledger: ") == 1
    assert "Traceback" not in done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["verdict"], document["exit_code"]) == ("cannot be swept", 2)
    assert document["reason"] in done.stderr


def test_a_factory_that_raises_is_shown_from_its_own_line_on(command: Run, tmp_path: Path) -> None:
    done = command("plan", "light.py:raises")
    assert done.returncode == 2
    trace, _, message = done.stderr.partition("gradledger: ")
    assert trace.startswith("Traceback (most recent call last):\n")
    assert re.findall(r'File "(.+)", line (\d+), in (\w+)', trace) == [
        (str(tmp_path / "light.py"), "5", "raises"),
        (str(tmp_path / "light.py"), "9", "deeper"),
    ]
    assert trace.endswith("ValueError: no data in /nowhere\n")
    assert message.startswith("[program] calling raises(): got ValueError: no data in /nowhere")


def test_options_that_cannot_be_meant(command: Run) -> None:
    for words, message in (
        (("--json", "no/such/folder/x.json"), "a file in a folder that exists"),
        (("--steps", "0"), "--steps"),
        (("--engine", "other"), "--engine"),
        (("--args", "'open"), "close the quotation marks"),
    ):
        done = command("verify", "light.py:three", *words)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


# name: words, exit code, what is said
TABLE: dict[str, tuple[tuple[str, ...], int, str]] = {
    "unequal": (
        ("verify", "cases.py:sly", "--plan", "0 (1) 2 3 4 5", "--json", "unequal.json"),
        1,
        "gradient of 1.scale",
    ),
    "the same block kept": (("verify", "cases.py:sly"), 0, "equal bit for bit"),
    "over the budget": (
        ("verify", "cases.py:fine", "--plan", "0 1 2 3 4", "--budget", "1kB", "--json", "over.json"),
        1,
        "OVER by ",
    ),
    "a planner by name": (("verify", "cases.py:fine", "--plan", "recompute_all"), 0, "plan (0) (1) (2) (3) 4"),
    "hidden counter": (("verify", "cases.py:counter"), 2, "a model that is not repeatable"),
    "replay under min": (
        ("plan", "cases.py:noisy", "--budget", "min"),
        2,
        "block 1 (1:noise) may not be recomputed: numpy",
    ),
    "replay under a plan": (("verify", "cases.py:noisy", "--plan", "0 (1) 2 3 4 5"), 2, "numpy's random state moves"),
    "replay, kept": (("verify", "cases.py:noisy"), 0, "block 1:noise may not be recomputed: numpy"),
    "device": (("verify", "cases.py:meta"), 2, "got x on the meta device"),
    "no module": (("plan", "cases.py:no_module"), 2, "got int, wanted nn.Sequential"),
    "forward of its own": (("plan", "cases.py:own_forward"), 2, "got Own, a module whose forward"),
    "shapes": (
        ("verify", "cases.py:shapes"),
        2,
        "block 1 (second) of 2, given (4, 8) float32 on cpu: got RuntimeError",
    ),
    "a block that raises": (("plan", "cases.py:crashing"), 2, "[program] block 1 (1:crash) of 2"),
    "a loss of many elements": (("plan", "cases.py:vector"), 2, "take its sum or mean"),
    "a loss without a graph": (("plan", "cases.py:number"), 2, "the loss: got a float"),
    "a loss of one argument": (("plan", "cases.py:one_argument"), 2, "takes 1 positional argument but 2 were given"),
    "budget text": (("verify", "cases.py:fine", "--budget", "25 %%"), 2, "got budget='25 %%'"),
    "budget too small": (("plan", "cases.py:fine", "--budget", "1"), 2, "the smallest feasible budget"),
    "plan text": (("verify", "cases.py:fine", "--plan", "0 (1 2"), 2, "[plan]"),
    "plan of another chain": (("verify", "cases.py:fine", "--plan", "0 1"), 2, "got 2 blocks, wanted 5 blocks"),
    "planner": (("plan", "cases.py:fine", "--planner", "best"), 2, "got 'best', wanted one of budget, every_k"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command answers to every line of TABLE: exit code, both streams, and the documents it wrote."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "cases.py").write_text(CASES)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps({name: words for name, (words, _, _) in TABLE.items()}),
        cwd=folder,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    found["documents"] = {p.name: json.loads(p.read_text()) for p in folder.glob("*.json")}
    return found


@pytest.mark.parametrize("name", TABLE)
def test_what_the_command_says_of_a_model(answers: dict[str, Any], name: str) -> None:
    _, wanted, message = TABLE[name]
    code, out, err = answers[name]
    assert code == wanted, out + err
    said = err if wanted == 2 else out
    assert message in " ".join(said.split())
    assert err.count("gradledger: ") == (1 if wanted == 2 else 0)
    trace = err.partition("gradledger: ")[0]
    if name == "a block that raises":
        assert re.findall(r", line \d+, in (\w+)", trace) == ["crash"]
    else:
        assert trace == ""


def test_the_document_names_the_first_difference_and_the_bytes_over_the_budget(answers: dict[str, Any]) -> None:
    unequal, over = answers["documents"]["unequal.json"], answers["documents"]["over.json"]
    assert (unequal["verdict"], unequal["equal"], unequal["exit_code"]) == ("unequal", False, 1)
    assert unequal["first_difference"].startswith("gradient of 1.scale: 8 of 8 entries differ")
    assert (over["verdict"], over["equal"], over["budget"]["kept"], over["exit_code"]) == (
        "over the budget",
        True,
        False,
        1,
    )
    assert over["peak_bytes"] > over["budget"]["bytes"]


def test_help_names_both_verbs(command: Run) -> None:
    words = command("--help").stdout
    assert "plan" in words
    assert "verify" in words
    assert "--budget" in command("verify", "--help").stdout
