"""The hooks that other repositories may use name commands that there are."""

from __future__ import annotations

from pathlib import Path

import yaml
from typer.testing import CliRunner

from gradledger.cli._app import build

HOOKS = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


def test_every_hook_is_a_command() -> None:
    assert [hook["id"] for hook in HOOKS] == ["gradledger-audit", "gradledger-checkpoint"]
    for hook in HOOKS:
        program, *words = hook["entry"].split()
        assert program == "gradledger"
        assert hook["pass_filenames"] is False  # a program is run, files are not looked at one by one
        done = CliRunner().invoke(build(), [*words, "--help"])
        assert done.exit_code == 0, done.output
