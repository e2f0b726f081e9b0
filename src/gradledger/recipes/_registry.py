"""The recipes, found by one scan of this folder; what they are is read from their text, without importing them.

A recipe is a file whose name has no underscore in front and that declares ``RECIPE = Recipe(...)`` in literals. So
listing them costs milliseconds and needs neither torch nor what a recipe would import.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gradledger.core.errors import UsageError

FOLDER = Path(__file__).parent
TEMPLATES = FOLDER / "templates"  # what `gradledger new` writes


@dataclass(frozen=True)
class Recipe:
    """What a recipe says of itself.

    presets: name -> one sentence. default_preset: the one without ``--preset``. extra: of ``pip install
    'gradledger[EXTRA]'``, for what it imports beyond the base installation. name, summary: filled in by the scan, from
    the file's name and the first line of its docstring.
    """

    presets: Mapping[str, str]
    default_preset: str
    extra: str = ""
    name: str = field(default="", kw_only=True)
    summary: str = field(default="", kw_only=True)


def recipes(folder: Path = FOLDER) -> dict[str, Recipe]:
    """All recipes by name.

    Raises:
        UsageError: a file declares RECIPE in a way that cannot be read without running it.
    """
    found = {}
    for path in sorted(folder.glob("*.py")):
        if not path.name.startswith("_"):
            recipe = _read(path)
            if recipe is not None:
                found[path.stem] = recipe
    return found


def find(name: str) -> Recipe:
    """The recipe of that name; dashes may stand for underscores, and case does not matter.

    Raises:
        UsageError: there is none; the text names the nearest and lists all.
    """
    known = recipes()
    wanted = name.casefold().replace("-", "_").removesuffix(".py")
    if wanted in known:
        return known[wanted]
    near = [one for one in known if one.startswith(wanted)] or difflib.get_close_matches(wanted, known, n=1)
    raise UsageError(
        got=f"recipe {name!r}",
        wanted=f"one of: {', '.join(known)}",
        where="gradledger run",
        next_step=f"did you mean `gradledger run {near[0]}`?" if near else "`gradledger run --list` describes them",
    )


def load(recipe: Recipe) -> Any:
    """The module of a recipe.

    Raises:
        UsageError: something that it needs is not installed; the text says how to get it.
    """
    try:
        return importlib.import_module(f"gradledger.recipes.{recipe.name}")
    except ModuleNotFoundError as missing:
        if not missing.name or missing.name.partition(".")[0] == "gradledger":
            raise  # a fault of ours, not of the installation
        raise UsageError(
            got=f"no module {missing.name!r}",
            wanted=f"what the recipe {recipe.name} imports",
            where="gradledger run",
            next_step=f"pip install 'gradledger[{recipe.extra}]'" if recipe.extra else f"pip install {missing.name}",
        ) from missing


def offered(recipe: Recipe, name: str) -> Any:
    """A function that the recipe's module may have beside `main`: ``experiment``, ``repredict``.

    Raises:
        UsageError: it has none, or cannot be loaded.
    """
    found = getattr(load(recipe), name, None)
    if not callable(found):
        raise UsageError(
            got=f"the recipe {recipe.name}, which has no function {name!r}",
            wanted="a recipe that can be repeated in this way",
            where="gradledger.recipes",
            next_step="`gradledger verify` checks the folder without it",
        )
    return found


def _read(path: Path) -> Recipe | None:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        if not isinstance(target, ast.Name) or target.id != "RECIPE":
            continue
        call = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        own = {one.name for one in fields(Recipe)} - {"name", "summary"}
        try:
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "Recipe" or call.args:
                raise ValueError(f"RECIPE = {ast.unparse(call) if call else '...'}")
            given = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            if not given.keys() <= own or given.get("default_preset") not in given.get("presets", {}):
                raise ValueError(f"RECIPE with {given}")
        except ValueError as error:
            raise UsageError(
                got=str(error),
                wanted="Recipe(presets={...}, default_preset='...') with keywords and literals only",
                where=f"{path}:{node.lineno}",
                next_step="write the values out: the file is read here without running it",
            ) from None
        summary = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
        return Recipe(**given, name=path.stem, summary=summary)
    return None
