"""Modules noticed when they are loaded: each loading, only those, and nothing is left behind."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gradledger.ledger import _once_loaded
from gradledger.ledger._once_loaded import listen, when


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; what is loaded from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write(folder: Path, name: str, text: str = "value = 1\n") -> None:
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()


def test_each_loading_is_noticed_and_only_those(folder: Path) -> None:
    write(folder, "awaited_one")
    write(folder, "awaited_not")
    seen: list[ModuleType] = []
    undo = when("awaited_one", seen.append)
    assert importlib.util.find_spec("awaited_one") is not None  # a question, no loading
    importlib.import_module("awaited_not")
    assert seen == []
    one = importlib.import_module("awaited_one")
    assert seen == [one]
    assert vars(one.__loader__).keys() == vars(sys.modules["awaited_not"].__loader__).keys()
    importlib.import_module("awaited_one")
    assert seen == [one]
    importlib.reload(one)
    assert seen == [one, one]
    undo()
    importlib.reload(one)
    assert seen == [one, one]


def test_what_is_loaded_already_is_told_at_once(folder: Path) -> None:
    seen: list[ModuleType] = []
    when("json", seen.append)()
    assert seen == [sys.modules["json"]]


def test_a_loading_that_fails_is_none(folder: Path) -> None:
    write(folder, "awaited_bad", "1 / 0\n")
    seen: list[ModuleType] = []
    undo = when("awaited_bad", seen.append)
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("awaited_bad")
    assert seen == []
    write(folder, "awaited_bad", "value = 12345\n")
    assert importlib.import_module("awaited_bad") is seen[0]
    undo()


def test_one_waits_for_what_is_half_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for safetensors.torch, which imports torch first: the probes go in before it has defined anything."""
    seen: list[int] = []
    begins = "import awaited_begin\nawaited_begin.call()\nvalue = 1\n"
    write(folder, "awaited_begin", "call = None\n")
    write(folder, "awaited_half", begins)
    monkeypatch.setattr(_once_loaded, "AWAITED", ("awaited_half",))
    undos = [listen()]

    def call() -> None:
        undos.append(when("awaited_half", lambda module: seen.append(module.value)))
        assert seen == []

    vars(importlib.import_module("awaited_begin"))["call"] = call
    importlib.import_module("awaited_half")
    assert seen == [1]
    for undo in undos:
        undo()


def test_one_loader_of_an_archive_serves_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(folder / "many.zip", "w") as archive:
        archive.writestr("awaited_zipped.py", "import other_zipped\n")
        archive.writestr("other_zipped.py", "import awaited_zipped\n")
    monkeypatch.syspath_prepend(str(folder / "many.zip"))
    seen: list[str] = []
    undo = when("awaited_zipped", lambda module: seen.append(module.__name__))
    importlib.util.find_spec("awaited_zipped")
    importlib.import_module("other_zipped")
    assert seen == ["awaited_zipped"]
    undo()


def test_nothing_is_left_behind(folder: Path) -> None:
    before, finders = vars(importlib.machinery.PathFinder)["find_spec"], list(sys.meta_path)
    one, two = when("json", lambda _: None), listen()
    assert vars(importlib.machinery.PathFinder)["find_spec"] is not before
    assert sys.meta_path == finders
    one()
    one()
    assert vars(importlib.machinery.PathFinder)["find_spec"] is not before
    two()
    assert vars(importlib.machinery.PathFinder)["find_spec"] is before
