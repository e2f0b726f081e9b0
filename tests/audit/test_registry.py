"""The scan for rules: what counts as one, what breaks, how one is looked up."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from gradledger.audit import registry
from gradledger.audit.rule import Rule, key_of
from gradledger.core.errors import RuleError, UsageError


def module(**names: Any) -> ModuleType:
    made = ModuleType("g99_example")
    made.__dict__.update({"init": dict, "update": print, "finish": list, **names})
    return made


RULE = Rule("G99", "example", "modules", "s")


def test_a_module_that_keeps_the_contract() -> None:
    assert registry.check("g99_example", module(RULE=RULE)) is RULE


@pytest.mark.parametrize(
    ("stem", "names", "message"),
    [
        ("g99_example", {"RULE": None}, "wanted a constant RULE of type Rule"),
        ("g98_example", {"RULE": RULE}, "wanted a file name that begins with g99_"),
        ("g99_example", {"RULE": RULE, "finish": None}, "got no function finish"),
    ],
)
def test_a_module_that_does_not(stem: str, names: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        registry.check(stem, module(**names))


@pytest.mark.parametrize("word", ["G1", "g1", "G01", "GL-G01", "gl-g1", " GL-G01 "])
def test_spellings_of_a_code(word: str) -> None:
    assert key_of(word) == "GL-G01"


@pytest.mark.parametrize("word", ["", "G", "1", "GG1", "GL-", "missing-zero-grad"])
def test_what_is_no_code(word: str) -> None:
    with pytest.raises(ValueError, match="is not a rule code"):
        key_of(word)


def test_every_rule_is_found_by_code_key_and_name() -> None:
    loaded = registry.load()
    assert loaded.rules
    for one in loaded.rules:
        for word in (one.rule.code, one.rule.key, one.rule.name, one.rule.key.lower()):
            assert loaded.find(word) is one


def test_an_unknown_word_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="`gradledger rules` lists every code and name"):
        registry.load().find("no-such-rule")


def test_judging_needs_no_torch() -> None:
    code = (
        "import sys; from gradledger.audit import registry, engine; registry.load(); engine.audit([]);"
        "bad = [m for m in ('torch', 'numpy', 'rich', 'typer') if m in sys.modules]; sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
