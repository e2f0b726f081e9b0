"""What an import really loads, seen in a fresh interpreter."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import gradledger.audit


def loaded_by(code: str) -> set[str]:
    """The top-level packages in `sys.modules` after `code` ran in a fresh interpreter."""
    report = "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


AUDIT_MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(gradledger.audit.__path__, "gradledger.audit.")
    if ".fixtures" not in info.name
)


def test_import_gradledger_loads_neither_torch_nor_numpy() -> None:
    assert not {"torch", "numpy", "rich", "typer"} & loaded_by("import gradledger; gradledger.__version__")


def test_import_audit_loads_no_torch() -> None:
    assert not {"torch", "numpy", "rich"} & loaded_by("import gradledger.audit")


def test_no_module_of_the_audit_loads_torch() -> None:
    assert not {"torch", "numpy"} & loaded_by("\n".join(f"import {name}" for name in AUDIT_MODULES))


def test_core_loads_the_standard_library_only() -> None:
    code = """
import pkgutil
import gradledger.core as core
for module in pkgutil.iter_modules(core.__path__, "gradledger.core."):
    __import__(module.name)
"""
    extra = loaded_by(code) - set(sys.stdlib_module_names) - loaded_by("pass") - {"gradledger"}
    assert extra == set()


@pytest.mark.parametrize("module", ["gradledger", "gradledger.audit", "gradledger.watch"])
def test_the_library_needs_torch_and_numpy_only(module: str) -> None:
    """With every other dependency of the command line and of the extras out of reach, the import still works."""
    absent = ["rich", "typer", "click", "tensordict", "gymnasium", "pytest", "hypothesis"]
    code = f"import sys\nfor name in {absent!r}: sys.modules[name] = None\nimport {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_package_is_typed() -> None:
    assert (Path(gradledger.audit.__file__).parents[1] / "py.typed").is_file()
