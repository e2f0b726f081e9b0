"""Checkpoints as files: which folders are there, whether each is whole, what its manifest says.  No torch.

`train.checkpoint` writes and loads them; this is what can be said of one without its tensors.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradledger.core.files import file_digest

FORMAT = "gradledger-checkpoint/1"
NAME = re.compile(r"step-(\d{12})")
FACTS, MANIFEST, LATEST = "facts.json", "manifest.json", "LATEST"


def step_of(path: Path) -> int:
    """The step in a folder's name; -1 where it is none of ours."""
    match = NAME.match(path.name)
    return int(match.group(1)) if match else -1


def candidates(folder: Path) -> list[Path]:
    """Folders by name, newest first; one that stepped aside (.old) comes after its namesake."""
    found = [path for path in folder.glob("step-*") if re.fullmatch(NAME.pattern + r"(\.old)?", path.name)]
    return sorted(found, key=lambda path: (-step_of(path), path.suffix))


def files(path: Path) -> Iterator[Path]:
    """The files of one checkpoint, by name."""
    return iter(sorted(file for file in path.iterdir() if file.is_file()))


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of one checkpoint folder: format, step, files, about, parent."""
    manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def seal(manifest: dict[str, Any]) -> str:
    """The hash of a manifest's other entries, which it holds as `self`: nothing else vouches for the manifest."""
    text = json.dumps({key: value for key, value in manifest.items() if key != "self"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def complaint(path: Path, *, deep: bool) -> str | None:
    """Why this folder is no checkpoint, or None. deep: the bytes of every file are looked at too."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            return f"the manifest is not of format {FORMAT}"
        if manifest.get("self") != seal(manifest):
            return "the manifest is not what was written (its own SHA-256 differs)"
        if manifest["step"] != step_of(path):
            return f"the manifest is of step {manifest['step']}"
        present = {file.name for file in files(path)} - {MANIFEST}
        listed = manifest["files"]
        if present != set(listed) or FACTS not in listed:
            return f"files {sorted(present ^ set(listed))} are missing or not listed"
        for name, expected in listed.items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes, not {expected['bytes']}"
            if deep and file_digest(path / name) != expected["sha256"]:
                return f"{name} is not what was written (SHA-256 differs)"
    except FileNotFoundError as missing:
        return f"{Path(missing.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as cause:
        return f"unreadable ({type(cause).__name__}: {cause})"
    return None
