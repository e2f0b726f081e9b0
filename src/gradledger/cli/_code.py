"""The code that made a folder: a recipe that its results name, or a file that the caller names.

Nothing in a folder chooses a file that is run: a folder comes from anyone.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from gradledger.core.errors import UsageError


def function(folder: Path, name: str, *, code: str | None) -> Any:
    """The function `name` of the recipe of a folder, or of the file `code`.

    Raises:
        UsageError: no such folder, recipe, file or function.
    """
    if code is not None:
        module: Any = _imported(Path(code))
        found = getattr(module, name, None)
        if not callable(found):
            raise _refused(f"no function {name!r} in {code}", "one", name, f"add def {name}(...) to it")
        return found
    from gradledger.recipes._registry import find, offered

    return offered(find(_recipe(folder, name)), name)


def _recipe(folder: Path, verb: str) -> str:
    path = folder / "results.json"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refused(f"{path}: {type(error).__name__}", "the results of a run", verb, "check the folder") from error
    recipe = told.get("recipe") if isinstance(told, dict) else None
    if not isinstance(recipe, str):
        raise _refused(
            f"{path} without the name of a recipe", "one, or --code FILE.py", verb, "name the program with --code"
        )
    return recipe


def _imported(path: Path) -> ModuleType:
    """A file as a module of its own name, so that other processes import it too."""
    name, full = path.stem, path.resolve()
    there = sys.modules.get(name)
    if there is not None and Path(getattr(there, "__file__", None) or "").resolve() != full:
        raise _refused(f"--code {path}", "a file whose name is no module that is loaded", "--code", "rename the file")
    if not full.is_file():
        raise _refused(f"no file {path}", "a Python file", "--code", "check the path")
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise _refused(f"--code {path}", "a Python file", "--code", "check the path")
    sys.path.insert(0, str(full.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _refused(
            f"{type(error).__name__}: {error}", "a file that can be imported", str(path), "mend it"
        ) from error
    return module


def _refused(got: str, wanted: str, where: str, next_step: str) -> UsageError:
    return UsageError(got=got, wanted=wanted, where=where, next_step=next_step)
