"""pyproject.toml, constraints.txt, Makefile and .ci/run agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS: dict[str, str] = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
}
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NAMED = [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]


@pytest.mark.parametrize("requirement", sorted(set(NAMED)))
def test_each_dependency_is_pinned_inside_its_own_range(requirement: str) -> None:
    wanted = Requirement(requirement)
    pinned = PINS.get(canonicalize_name(wanted.name))
    assert pinned is not None, f"{wanted.name} has no line in constraints.txt"
    assert wanted.specifier.contains(pinned)


def test_the_base_installation_is_light() -> None:
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == {"torch", "numpy", "rich", "typer"}
    assert PINS["torch"] == "2.13.0"
    assert "torchvision" not in PINS


def test_ci_runs_what_a_developer_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "exec make test" in script.read_text(encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    shown = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    ours = re.compile(r"\.venv/bin/(ruff|mypy|python -m compileall)")
    steps = [line for line in shown.stdout.splitlines() if ours.match(line)]
    tests = ".venv/bin/python -m compileall -q src && .venv/bin/python -m pytest -n 3 --dist loadscope"
    assert steps == [".venv/bin/ruff check .", ".venv/bin/mypy --strict src/", tests]


def test_the_licence_is_the_one_declared() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
