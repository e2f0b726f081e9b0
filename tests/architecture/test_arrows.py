"""What may import what: the tables in `arrows.py` against the source, and proof that the scan can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from arrows import ARROWS, ROOT, breaches, definitions_in_faces

SOURCE = Path(__file__).parents[2] / "src"


def test_no_import_runs_against_the_arrows() -> None:
    assert breaches(SOURCE) == []


def test_package_faces_only_re_export() -> None:
    assert definitions_in_faces(SOURCE) == []


def test_the_scan_sees_the_house() -> None:
    parts = {
        path.name.removesuffix(".py")
        for path in (SOURCE / ROOT).iterdir()
        if path.name not in ("__init__.py", "__pycache__")
    }
    assert {"core", "ledger", "audit", "cli"} <= parts
    assert parts - {"py.typed"} <= set(ARROWS)


def test_the_arrows_have_no_cycle() -> None:
    seen: dict[str, int] = {}

    def depth(part: str, path: tuple[str, ...] = ()) -> int:
        assert part not in path, f"cycle: {' -> '.join((*path, part))}"
        if part not in seen:
            seen[part] = 1 + max((depth(other, (*path, part)) for other in ARROWS[part]), default=0)
        return seen[part]

    assert all(depth(part) > 0 for part in ARROWS)


def test_apart_are_the_ledger_the_audit_the_sweep_and_training() -> None:
    for part in ("train", "rl", "data", "sweep"):
        assert not ARROWS[part] & {"audit", "ledger"}, f"{part} must not know that it is watched"
    for one, other in (
        ("audit", "ledger"),
        ("ledger", "audit"),
        ("sweep", "ledger"),
        ("ledger", "sweep"),
        ("train", "sweep"),
    ):
        assert other not in ARROWS[one]
    faces = {"cli", "watch", "recipes"}
    outermost = faces | {"pytest_plugin", "integrations", "__main__"}
    assert [part for part in set(ARROWS) - outermost if ARROWS[part] & faces] == []


# One planted breach each: the file, its text, the line it stands on and a piece of the message.
PLANTED = {
    "audit knows the ledger": ("audit/rules/g01.py", "import ast\n\nimport gradledger.ledger\n", 3, "imports ledger"),
    "audit loads torch": (
        "audit/engine.py",
        "def f():\n    import torch.nn as nn\n    return nn\n",
        2,
        "imports torch",
    ),
    "audit loads numpy": ("audit/engine.py", "from numpy import mean\n", 1, "imports numpy"),
    "ledger knows the audit": ("ledger/sink.py", "from gradledger import audit\n", 1, "imports audit"),
    "a relative import": ("ledger/probes/fills.py", "from ...audit import engine\n", 1, "imports audit"),
    "core is not alone": ("core/events.py", "import torch\n", 1, "core imports torch"),
    "core knows a package": ("core/site.py", "from gradledger.ledger import x\n", 1, "it may import nothing"),
    "a library knows the command line": ("ledger/a.py", "from gradledger.cli.main import entry\n", 1, "imports cli"),
    "an import by name": ("audit/x.py", "import importlib\nimportlib.import_module('torch')\n", 2, "imports torch"),
    "under TYPE_CHECKING": (
        "audit/y.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor\n",
        3,
        "imports torch",
    ),
    "the face loads more": ("__init__.py", "from gradledger.watch import watch as watch\n", 1, "imports watch"),
    "a stranger": ("helpers.py", "import os\n", 1, "is in no row of ARROWS"),
    "evidence loads torch": ("evidence/stats.py", "import torch\n", 1, "must never load"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_breach_is_named_with_file_and_line(name: str, tmp_path: Path) -> None:
    file, text, line, message = PLANTED[name]
    planted = tmp_path / ROOT / file
    planted.parent.mkdir(parents=True)
    planted.write_text(text, encoding="utf-8")
    found = breaches(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(f"{ROOT}/{file}:{line}: ")
    assert message in found[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/site.py", "import os.path\nfrom gradledger.core import errors\nfrom . import ids\n"),
        ("ledger/probes/fills.py", "import torch\nfrom ...core.events import Fill\nfrom .._recorder import Recorder\n"),
        ("cli/commands/audit.py", "import typer\nfrom gradledger.watch import watch\nfrom ...audit import engine\n"),
        ("audit/fixtures/g01/bad.py", "import torch\n"),
        ("train/loop.py", "import torch\nimport anything\nfrom gradledger.data import loader\n"),
    ],
)
def test_what_the_arrows_allow_passes(file: str, text: str, tmp_path: Path) -> None:
    allowed = tmp_path / ROOT / file
    allowed.parent.mkdir(parents=True)
    allowed.write_text(text, encoding="utf-8")
    assert breaches(tmp_path) == []


def test_a_definition_in_a_face_is_named(tmp_path: Path) -> None:
    face = tmp_path / ROOT / "core" / "__init__.py"
    face.parent.mkdir(parents=True)
    face.write_text('"""Doc."""\n\nfrom gradledger.core.site import Site as Site\n\nLIMIT = 3\n', encoding="utf-8")
    assert definitions_in_faces(tmp_path) == [
        f"{ROOT}/core/__init__.py:5: a package face only re-exports (from ... import X as X)"
    ]
