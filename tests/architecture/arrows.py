"""The arrows of the house as data, and the scan that finds imports against them.

Every import counts, also one inside a function or under ``TYPE_CHECKING``: the arrows say what a package knows about,
not only what it loads. Imports by literal name through ``importlib.import_module`` and ``__import__`` count too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = "gradledger"

# Who may import whom inside gradledger. Every package may import itself, `_version` and `core` (the shared vocabulary:
# errors, sites, events); what is not a key here has no place in the house yet.
ARROWS: dict[str, frozenset[str]] = {
    "_version": frozenset(),
    "core": frozenset(),
    "sweep": frozenset({"core"}),
    "ledger": frozenset({"core"}),
    "audit": frozenset({"core"}),
    "data": frozenset({"core"}),
    "evidence": frozenset({"core"}),
    "train": frozenset({"core", "data"}),
    "rl": frozenset({"core", "train"}),
    "watch": frozenset({"core", "ledger", "audit"}),
    "pytest_plugin": frozenset({"core", "watch"}),
    "integrations": frozenset({"core", "watch"}),
    "recipes": frozenset({"core", "rl", "evidence", "train", "data", "sweep"}),
    "__main__": frozenset({"cli"}),
    "cli": frozenset({"core", "watch", "recipes", "evidence", "audit", "ledger", "sweep", "data"}),
}

# What each package may import from outside the standard library. A package that is not a key may import anything.
THIRD_PARTY: dict[str, frozenset[str]] = {
    "_version": frozenset(),
    "core": frozenset(),
    "audit": frozenset({"rich"}),
    "ledger": frozenset({"torch", "numpy"}),
    "watch": frozenset({"torch", "numpy"}),
    "pytest_plugin": frozenset({"pytest"}),
    "integrations": frozenset({"lightning", "transformers", "IPython"}),
    "__main__": frozenset(),
    "cli": frozenset({"typer", "rich"}),
}

# Never from these, whatever else a package may import.
FORBIDDEN: dict[str, frozenset[str]] = {"evidence": frozenset({"torch"})}

# User programs that the tests run, no part of the package that is imported.
NOT_SCANNED = ("audit/fixtures/", "recipes/breaks/")


@dataclass(frozen=True)
class Import:
    """One import statement: the dotted name it asks for and the line it stands on."""

    target: str
    line: int


def imports_of(tree: ast.Module, *, package: str) -> Iterator[Import]:
    """Yield each import of a module that lies in `package` (dotted), relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                kept = parts[: len(parts) - node.level + 1]
                base = ".".join([*kept, base] if base else kept)
            if base == ROOT:  # `from gradledger import watch` asks for a part of the house, not for the house
                for alias in node.names:
                    yield Import(f"{ROOT}.{alias.name}", node.lineno)
            else:
                yield Import(base, node.lineno)
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            literal = first.value if isinstance(first, ast.Constant) else None
            if name in ("import_module", "__import__") and isinstance(literal, str) and not literal.startswith("."):
                yield Import(literal, node.lineno)


def breaches(source: Path) -> list[str]:
    """Every import under `source` (the folder that holds the package) against the tables, as ``file:line: why``."""
    house = source / ROOT
    found: list[str] = []
    for file in sorted(house.rglob("*.py")):
        inside = file.relative_to(house)
        if any(inside.as_posix().startswith(skipped) for skipped in NOT_SCANNED):
            continue
        part = inside.parts[0].removesuffix(".py")
        if part == "__init__":
            part = "_version"  # the package's own face may know no more than the version
        where = file.relative_to(source).as_posix()
        if part not in ARROWS:
            found.append(f"{where}:1: '{part}' is in no row of ARROWS; add a row that says what it may import")
            continue
        package = ".".join([ROOT, *inside.parts[:-1]])
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        for item in imports_of(tree, package=package):
            why = _breach(part, item.target)
            if why:
                found.append(f"{where}:{item.line}: {why}")
    return found


def _breach(part: str, target: str) -> str | None:
    top, _, rest = target.partition(".")
    if top == ROOT:
        other = rest.partition(".")[0]
        if not other or other in (part, "_version", "__version__") or other in ARROWS[part]:
            return None
        allowed = ", ".join(sorted(ARROWS[part])) or "nothing"
        return f"{part} imports {other} ({target}); it may import {allowed}"
    if top in sys.stdlib_module_names:
        return None
    if top in FORBIDDEN.get(part, frozenset()):
        return f"{part} imports {top}, which it must never load"
    if part in THIRD_PARTY and top not in THIRD_PARTY[part]:
        allowed = ", ".join(sorted(THIRD_PARTY[part])) or "nothing"
        return f"{part} imports {top}; beside the standard library it may import {allowed}"
    return None


def definitions_in_faces(source: Path) -> list[str]:
    """Statements in ``__init__.py`` files that are not a docstring, a re-export (``X as X``) or ``__all__``."""
    found: list[str] = []
    for file in sorted((source / ROOT).rglob("__init__.py")):
        if any(file.relative_to(source / ROOT).as_posix().startswith(skipped) for skipped in NOT_SCANNED):
            continue
        where = file.relative_to(source).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        for i, node in enumerate(tree.body):
            if i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                continue
            if isinstance(node, ast.ImportFrom) and all(alias.asname == alias.name for alias in node.names):
                continue
            if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["__all__"]:
                continue
            found.append(f"{where}:{node.lineno}: a package face only re-exports (from ... import X as X)")
    return found
