"""Checkpoints: folders that are whole or refused, written so that a killed run or a full disk never costs the last
good one.

A checkpoint is a folder `step-000000012345` with one safetensors file a part, `facts.json`, and, written last,
`manifest.json` with size and SHA-256 of each file: safetensors and torch.save load a flipped byte without a word, the
manifest does not. The folder is built under a temporary name, every file and folder is fsynced, then it is renamed.
Loading takes the newest folder that passes; what it passed over is reported. No pickle anywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gradledger.core.errors import GradledgerError

FORMAT = "gradledger-checkpoint/1"
NAME = re.compile(r"step-(\d{12})")
FACTS, MANIFEST = "facts.json", "manifest.json"


class CheckpointError(GradledgerError):
    """A checkpoint could not be written, or none can be read."""

    slug = "checkpoint"


@dataclass(frozen=True)
class Rejected:
    """A folder that looks like a checkpoint and is none, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory.

    step: the number it was saved under. parts: part -> tensor name -> tensor. facts: what was given as `facts`.
    rejected: newer folders that were passed over.
    """

    path: Path
    step: int
    parts: dict[str, dict[str, torch.Tensor]]
    facts: dict[str, Any]
    rejected: tuple[Rejected, ...] = ()


def save(
    folder: Path,
    step: int,
    parts: Mapping[str, Mapping[str, torch.Tensor]],
    facts: Mapping[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """Write a checkpoint and then let go of the oldest good ones beyond `keep`.

    Args:
        folder: where the checkpoints of one run live; made if need be. One writer at a time.
        step: 0 or above, and above every step saved before that is to be kept: the newest is the one with the highest.
        parts: tensors by part and name; each part becomes one file. Tensors that share storage are written twice.
        facts: anything JSON holds.

    Returns:
        The new folder. Saving the same step again replaces it.

    Raises:
        CheckpointError: the disk is full, the file system refused, or `facts` is no JSON. What was there before is
        still
            there, and what was written of the new one is gone.
    """
    bad = [part for part in parts if not re.fullmatch(r"[A-Za-z0-9_-]+", part)]
    if step < 0 or step >= 10**12 or keep < 1 or bad:
        raise CheckpointError(
            got=f"step={step}, keep={keep}, parts={sorted(parts)}",
            wanted="a step of 0 to 12 digits, at least one to keep, part names of letters, digits, _ and -",
            where=f"train.checkpoint.save to {folder}",
            next_step="correct the arguments",
        )
    try:
        text = json.dumps(facts, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as cause:
        raise CheckpointError(
            got=f"facts that JSON cannot hold ({cause})",
            wanted="dictionaries with text keys, lists, text, finite numbers, true, false, null",
            where=f"train.checkpoint.save to {folder}",
            next_step="put arrays among the parts, and numbers that may be infinite into text",
        ) from cause
    final = folder / f"step-{step:012d}"
    building = folder / f"{final.name}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep_up(folder)
        building.mkdir()
        for part, tensors in parts.items():
            save_file(_own(tensors), building / f"{part}.safetensors")
        (building / FACTS).write_text(text, encoding="utf-8")
        files = {path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in _files(building)}
        manifest = {"format": FORMAT, "step": step, "files": files}
        (building / MANIFEST).write_text(json.dumps(manifest, sort_keys=True), encoding="utf-8")
        for path in _files(building):
            _fsync(path)
        _fsync(building)
        if final.exists():
            # A folder cannot be replaced in one move: the old one steps aside first, and is found again if we die here.
            final.rename(folder / f"{final.name}.old")
        building.rename(final)
        _fsync(folder)
    except (OSError, SafetensorError) as cause:
        _sweep_up(folder)
        size = sum(t.numel() * t.element_size() for tensors in parts.values() for t in tensors.values())
        last = next((path.name for path in _candidates(folder)), "none")
        raise CheckpointError(
            got=f"{type(cause).__name__}: {cause}",
            wanted=f"{size} bytes of tensors written",
            where=f"train.checkpoint.save to {final}",
            next_step=f"free space or choose another folder; the last checkpoint is {last}",
        ) from cause
    _sweep_up(folder)
    good = [path for path in _candidates(folder) if _complaint(path, deep=False) is None]
    for path in good[keep:]:
        shutil.rmtree(path, ignore_errors=True)
    return final


def load(folder: Path) -> Checkpoint:
    """Read the newest checkpoint under `folder` whose files are all as they were written.

    Raises:
        CheckpointError: there is none; the text says what was found and why each was refused.
    """
    rejected: list[Rejected] = []
    for path in _candidates(folder):
        complaint = _complaint(path, deep=True)
        if complaint is None:
            parts = {file.stem: load_file(file) for file in _files(path) if file.suffix == ".safetensors"}
            facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
            return Checkpoint(path, _step(path), parts, facts, tuple(rejected))
        rejected.append(Rejected(path, complaint))
    found = "; ".join(f"{one.path.name}: {one.reason}" for one in rejected)
    raise CheckpointError(
        got=found or "no checkpoint at all",
        wanted="at least one whole checkpoint",
        where=f"train.checkpoint.load from {folder}",
        next_step="start the run anew, or point to the folder that holds `step-...` folders",
    )


def _own(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each with a storage of its own, on the CPU: safetensors refuses what shares, and what is a view of more."""
    owned: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() != tensor.numel() * tensor.element_size():
            tensor = tensor.clone()
        taken.add(tensor.untyped_storage().data_ptr())
        owned[name] = tensor
    return owned


def _step(path: Path) -> int:
    match = NAME.match(path.name)
    return int(match.group(1)) if match else -1


def _candidates(folder: Path) -> list[Path]:
    """Folders by name, newest first; one that stepped aside (.old) comes after its namesake."""
    found = [path for path in folder.glob("step-*") if re.fullmatch(NAME.pattern + r"(\.old)?", path.name)]
    return sorted(found, key=lambda path: (-_step(path), path.suffix))


def _files(path: Path) -> Iterator[Path]:
    return iter(sorted(file for file in path.iterdir() if file.is_file()))


def _complaint(path: Path, *, deep: bool) -> str | None:
    """Why this folder is no checkpoint, or None. deep: the bytes of every file are looked at too."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            return f"the manifest is not of format {FORMAT}"
        if manifest["step"] != _step(path):
            return f"the manifest is of step {manifest['step']}"
        present = {file.name for file in _files(path)} - {MANIFEST}
        listed = manifest["files"]
        if present != set(listed) or FACTS not in listed:
            return f"files {sorted(present ^ set(listed))} are missing or not listed"
        for name, expected in listed.items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes, not {expected['bytes']}"
            if deep and _digest(path / name) != expected["sha256"]:
                return f"{name} is not what was written (SHA-256 differs)"
    except FileNotFoundError as missing:
        return f"{Path(missing.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as cause:
        return f"unreadable ({type(cause).__name__}: {cause})"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep_up(folder: Path) -> None:
    """Remove what a killed writer left: half-built folders, and the aside of a step whose new folder is whole."""
    if not folder.is_dir():
        return
    for path in folder.glob("step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("step-*.old"):
        whole = path.with_suffix("")
        if _complaint(whole, deep=False) is None:
            shutil.rmtree(path, ignore_errors=True)
        elif not whole.exists():
            # Loading finds it under either name, so a refusal here costs nothing.
            with contextlib.suppress(OSError):
                path.rename(whole)
