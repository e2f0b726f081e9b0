"""Checkpoints: folders that are whole or refused, written so that a killed run or a full disk never costs the last
good one.

A checkpoint is a folder `step-000000012345` with one safetensors file a part, `facts.json`, and, written last,
`manifest.json` with size and SHA-256 of each file: safetensors and torch.save load a flipped byte without a word, the
manifest does not. It also holds the shape and dtype of each tensor, the hashes of what decided the run, and the
checkpoint before this one. The folder is built under a temporary name, every file and the folder are fsynced, all at
once so that the disk is waited for once, then it is renamed, and `LATEST` beside it is replaced by its name. Loading
takes the newest folder that passes, whatever `LATEST` says (that is for people and scripts); what it passed over is
reported. No pickle anywhere.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

try:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from gradledger.train._hashed import ChangedError, save_hashed
except ModuleNotFoundError as cause:
    if cause.name != "safetensors":
        raise
    raise ModuleNotFoundError(
        "gradledger.train keeps checkpoints in safetensors, which is missing. Next: pip install 'gradledger[data]'",
        name="safetensors",
    ) from cause

from gradledger.core.checkpoints import (
    FACTS,
    FORMAT,
    LATEST,
    MANIFEST,
    candidates,
    complaint,
    read_manifest,
    seal,
    step_of,
)
from gradledger.core.checkpoints import files as files_of
from gradledger.core.errors import GradledgerError
from gradledger.core.files import file_digest, fsync


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
    about: the hashes of what decided the run, as they were given to `save`. rejected: newer folders that were passed
    over.
    """

    path: Path
    step: int
    parts: dict[str, dict[str, torch.Tensor]]
    facts: dict[str, Any]
    rejected: tuple[Rejected, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)


class Beside(Protocol):
    """Other processes that write files of their own into a checkpoint, see `train.ranks`."""

    def begin(self, building: Path) -> None: ...

    def collect(self, building: Path) -> dict[str, dict[str, Any]]: ...


def save(
    folder: Path,
    step: int,
    parts: Mapping[str, Mapping[str, torch.Tensor]],
    facts: Mapping[str, Any],
    *,
    keep: int = 2,
    about: Mapping[str, str] | None = None,
    beside: Beside | None = None,
) -> Path:
    """Write a checkpoint and then let go of the oldest good ones beyond `keep`.

    Args:
        folder: where the checkpoints of one run live; made if need be. One writer at a time.
        step: 0 or above, and above every step saved before that is to be kept: the newest is the one with the highest.
        parts: tensors by part and name; each part becomes one file. Tensors that share storage are written twice.
        facts: anything JSON holds.
        keep: good checkpoints to leave, this one included; 1 or above.
        about: hashes of what decides the run, such as {"config": ..., "split": ..., "code": ...}.
        beside: who else writes into it: is told once the folder is there, and then asked for what it wrote.

    Returns:
        The new folder. Saving the same step again replaces it.

    Raises:
        CheckpointError: the disk is full, the file system refused, another thread wrote a tensor meanwhile, or `facts`
            is no JSON. What was there before is still there, and what was written of the new one is gone.
    """
    begun = prepare(folder, step, parts, facts, keep=keep, about=about, beside=beside)
    with ThreadPoolExecutor(8, "gradledger-checkpoint") as pool:
        return begun.write(parts, pool)


@dataclass(frozen=True)
class Begun:
    """A save of which everything but the tensors is known."""

    folder: Path
    step: int
    facts: str
    keep: int
    about: Mapping[str, str]
    beside: Beside | None

    @property
    def final(self) -> Path:
        """The folder that it becomes."""
        return self.folder / f"step-{self.step:012d}"

    def write(self, parts: Mapping[str, Mapping[str, torch.Tensor]], pool: Executor) -> Path:
        """The rest of `save`."""
        folder, final = self.folder, self.final
        building = folder / f"{final.name}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _sweep_up(folder)
            before = next((path for path in candidates(folder) if path.name != final.name), None)
            building.mkdir()
            if self.beside is not None:
                self.beside.begin(building)
            told = {
                "format": FORMAT,
                "step": self.step,
                "about": dict(self.about),
                "parent": None if before is None else _parent(before),
            }
            pointer = _write(building, parts, self.facts, told, self.beside, pool)
            if final.exists():
                # No move replaces a folder: the old one steps aside first, and is found again if we die here.
                final.rename(folder / f"{final.name}.old")
            building.rename(final)
            _point(folder, pointer)
            fsync(folder)
        except ChangedError as cause:
            _sweep_up(folder)
            raise CheckpointError(
                got=f"tensors that another thread wrote while they were being saved: {cause}",
                wanted="one state of the run",
                where=f"train.checkpoint.save to {final}",
                next_step="save between two steps, or hand over copies",
            ) from cause
        except (OSError, SafetensorError) as cause:
            _sweep_up(folder)
            size = sum(map(_bytes, parts.values()))
            last = next((path.name for path in candidates(folder)), "none")
            raise CheckpointError(
                got=f"{type(cause).__name__}: {cause}",
                wanted=f"{size} bytes of tensors written",
                where=f"train.checkpoint.save to {final}",
                next_step=f"free space or choose another folder; the last checkpoint is {last}",
            ) from cause
        _sweep_up(folder)
        good = [path for path in candidates(folder) if complaint(path, deep=False) is None]
        for path in good[self.keep :]:
            _remove(path)
        return final


def prepare(
    folder: Path,
    step: int,
    parts: Collection[str],
    facts: Mapping[str, Any],
    *,
    keep: int = 2,
    about: Mapping[str, str] | None = None,
    beside: Beside | None = None,
) -> Begun:
    """Look at the arguments of `save` and write nothing yet; `facts` may change afterwards.

    Raises:
        CheckpointError: one of them cannot be.
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
    return Begun(folder, step, text, keep, dict(about or {}), beside)


def load(folder: Path, *, parts: Callable[[str], bool] = lambda name: True) -> Checkpoint:
    """Read the newest checkpoint under `folder` whose files are all as they were written.

    Args:
        parts: which to read, by name; the bytes of all are compared with what was written.

    Raises:
        CheckpointError: there is none; the text says what was found and why each was refused.
    """
    rejected: list[Rejected] = []
    for path in candidates(folder):
        try:
            return replace(read(path, parts=parts), rejected=tuple(rejected))
        except CheckpointError as damaged:
            rejected.append(Rejected(path, damaged.got))
    found = "; ".join(f"{one.path.name}: {one.reason}" for one in rejected)
    raise CheckpointError(
        got=found or "no checkpoint at all",
        wanted="at least one whole checkpoint",
        where=f"train.checkpoint.load from {folder}",
        next_step="start the run anew, or point to the folder that holds `step-...` folders",
    )


def read(path: Path, *, parts: Callable[[str], bool] = lambda name: True) -> Checkpoint:
    """Read one checkpoint folder, as `load` does.

    Raises:
        CheckpointError: it is not what was written; `got` is the reason.
    """
    wrong = complaint(path, deep=True)
    if wrong is not None:
        raise CheckpointError(
            got=wrong, wanted="a whole checkpoint", where=str(path), next_step="take the one before it: load() does"
        )
    files = [file for file in files_of(path) if file.suffix == ".safetensors" and parts(file.stem)]
    facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
    about = read_manifest(path).get("about", {})
    return Checkpoint(path, step_of(path), {file.stem: load_file(file) for file in files}, facts, (), about)


def write_part(building: Path, part: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """One more part of a checkpoint that another process is writing, on the disk; its entry of the manifest."""
    path = building / f"{part}.safetensors"
    with ThreadPoolExecutor(1, "gradledger-checkpoint") as pool:
        digest = save_hashed(_own(tensors), path, pool)
        path.chmod(_usual_mode(building))
        fsync(path)
        return {path.name: {**_told(tensors), "bytes": path.stat().st_size, "sha256": digest()}}


def _write(
    building: Path,
    parts: Mapping[str, Mapping[str, torch.Tensor]],
    facts: str,
    told: dict[str, Any],
    beside: Beside | None,
    pool: Executor,
) -> Path | None:
    """Every file of a checkpoint, the manifest included, on the disk; gives the file that is to become `LATEST`.

    With threads, tensors are hashed while they are written, files are fsynced while the next one is written, and nobody
    waits for one fsync before the next begins: a journalling file system commits those that wait together as one.
    """
    files: dict[str, dict[str, Any]] = {}
    path = building / FACTS
    path.write_text(facts, encoding="utf-8")
    mode = _usual_mode(building)
    files[path.name] = {}
    hashed: dict[str, Callable[[], str]] = {path.name: pool.submit(file_digest, path).result}
    synced = [pool.submit(fsync, path)]
    # Small ones do not wait behind hashes; of the others the largest is first, since its hash takes longest.
    sizes = {part: _bytes(tensors) for part, tensors in parts.items()}
    for part in sorted(parts, key=lambda part: (sizes[part] > 2**20, -sizes[part])):
        tensors = parts[part]
        path = building / f"{part}.safetensors"
        hashed[path.name] = save_hashed(_own(tensors), path, pool)
        path.chmod(mode)
        synced.append(pool.submit(fsync, path))
        files[path.name] = _told(tensors)
    pointer = _pointer(building)
    if beside is not None:
        files |= beside.collect(building)
    for name, digest in hashed.items():
        files[name] |= {"bytes": (building / name).stat().st_size, "sha256": digest()}
    manifest = told | {"files": files}
    manifest["self"] = seal(manifest)
    (building / MANIFEST).write_text(json.dumps(manifest, sort_keys=True), encoding="utf-8")
    synced += [pool.submit(fsync, building / MANIFEST), pool.submit(fsync, building)]
    for one in synced:
        one.result()
    return pointer


def _parent(path: Path) -> dict[str, str | None]:
    """The checkpoint before: its name and the hash of its manifest, which holds the hashes of its files."""
    manifest = path / MANIFEST
    return {"name": path.name, "sha256": file_digest(manifest) if manifest.exists() else None}


def _pointer(building: Path) -> Path | None:
    """The file that becomes `LATEST`, on the disk; None where the disk has no room for it."""
    pointer = building.with_name(f"{LATEST}.tmp")
    try:
        pointer.write_text(building.stem + "\n", encoding="utf-8")
        fsync(pointer)
    except OSError:
        return None
    return pointer


def _point(folder: Path, pointer: Path | None) -> None:
    """Let LATEST name the new checkpoint, in one move; where that fails, no LATEST is better than an old one."""
    try:
        if pointer is None:
            raise FileNotFoundError(LATEST)
        pointer.replace(folder / LATEST)
    except OSError:
        for path in (folder / f"{LATEST}.tmp", folder / LATEST):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _own(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """On the CPU, each with a storage of its own: safetensors takes no views, and overlooks a lazy conjugate."""
    owned: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() != tensor.numel() * tensor.element_size():
            tensor = tensor.clone()
        taken.add(tensor.untyped_storage().data_ptr())
        owned[name] = tensor
    return owned


def _told(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {"tensors": {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()}}


def _usual_mode(building: Path) -> int:
    """What the umask leaves of a file in this folder; safetensors lets nobody else read its files."""
    return building.stat().st_mode & 0o666


def _bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _sweep_up(folder: Path) -> None:
    """Remove what a killed writer left: half-built folders, and the aside of a step whose new folder is whole."""
    if not folder.is_dir():
        return
    for path in folder.glob("step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / f"{LATEST}.tmp").unlink(missing_ok=True)
    for path in folder.glob("step-*.old"):
        whole = path.with_suffix("")
        if complaint(whole, deep=False) is None:
            _remove(path)
        elif not whole.exists():
            # Loading finds it under either name, so a refusal here costs nothing.
            with contextlib.suppress(OSError):
                path.rename(whole)


def _remove(path: Path) -> None:
    """Its name goes first: who dies while deleting leaves nothing that looks like a checkpoint and is half of one."""
    with contextlib.suppress(OSError):
        path = path.rename(path.with_name(f"{path.name}.tmp"))
    shutil.rmtree(path, ignore_errors=True)
