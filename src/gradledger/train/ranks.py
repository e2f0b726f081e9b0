"""One checkpoint of a run on several ranks: what is the same on all of them once, what is a rank's own beside it.

Ranks of a data-parallel run hold equal weights and moments, but random streams, positions of samplers and the buffers
of normalisation of their own. Rank 0 tells the hash of each of its tensors; every other rank writes those of its own
that differ into files of its own; rank 0 writes the rest, and the manifest last, with the hashes of all files. Whoever
loads puts the two together. Nothing is assumed of what is equal: it is compared.
"""

from __future__ import annotations

import datetime
import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gradledger.core.errors import GradledgerError
from gradledger.train import checkpoint
from gradledger.train.checkpoint import Checkpoint, CheckpointError

Parts = Mapping[str, Mapping[str, torch.Tensor]]
Told = Mapping[str, Any]
_KINDS = ("models", "optimizers", "others")


class RanksError(GradledgerError):
    """The ranks of a run did not act together."""

    slug = "ranks"


class Ranks:
    """The ranks of a run and how they talk: over gloo, whatever the gradients go over."""

    def __init__(self, wait_s: float) -> None:
        """Called on every rank, after `init_process_group`.

        Raises:
            RanksError: there is no process group.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise RanksError(
                got="ranks=True without a process group",
                wanted="torch.distributed.init_process_group before RunState",
                where="train.RunState",
                next_step="initialise it first, or leave ranks=True out where there is one process",
            )
        self._wait_s = wait_s
        self._group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=wait_s))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def everyones(self, value: Any) -> list[Any]:
        """What each rank gave, by rank."""
        found: list[Any] = [None] * self.world
        self._together(lambda: dist.all_gather_object(found, value, group=self._group))
        return found

    def the_firsts(self, value: Any) -> Any:
        """What rank 0 gave; the others' value is not looked at."""
        held = [value]
        self._together(lambda: dist.broadcast_object_list(held, src=0, group=self._group))
        return held[0]

    def _together(self, call: Any) -> None:
        try:
            call()
        except RuntimeError as cause:
            raise RanksError(
                got=f"rank {self.rank} alone after {self._wait_s:g} s ({str(cause).splitlines()[0]})",
                wanted=f"all {self.world} ranks in the same call",
                where="train.RunState with ranks=True",
                next_step="call save and load on every rank, not under `if rank == 0`; look for a rank that has died",
            ) from cause


def here() -> tuple[int, int]:
    """(rank, world) of this process; (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def refuse_sharded(name: str, module: nn.Module) -> None:
    """A parameter of which each rank holds a piece is not what its name says on any of them.

    Raises:
        RanksError: the module holds one (FSDP2, tensor parallel).
    """
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import DTensor

    pieces = [key for key, parameter in module.named_parameters() if isinstance(parameter, DTensor)]
    if pieces:
        raise RanksError(
            got=f"{name}.{pieces[0]} and {len(pieces) - 1} more in pieces over the ranks (DTensor)",
            wanted="whole parameters on each rank, as DistributedDataParallel keeps them",
            where="train.RunState",
            next_step="save sharded models with torch.distributed.checkpoint, and the rest of the run with this",
        )


def save(
    ranks: Ranks,
    folder: Path,
    step: int,
    captured: tuple[Parts, Told] | GradledgerError,
    facts: Mapping[str, Any],
    **more: Any,
) -> Path:
    """`checkpoint.save` for all ranks together; each calls it. more: `keep` and `about`.

    Args:
        captured: what this rank holds, or why it cannot be captured, which all ranks then raise.
        facts: of the checkpoint but for `state`, which is made here of what the ranks hold.

    Raises:
        CheckpointError: some rank could not write, or rank 0 does not see what another one wrote. RanksError: a rank
            did not come. In either case on every rank, and what was there before is still there.
    """
    first = ranks.the_firsts(_first(captured) if ranks.rank == 0 else None)
    own, said = _own(ranks, captured, first)
    everyone = ranks.everyones(said)
    wrong = [f"rank {rank}: {one}" for rank, one in enumerate(everyone) if isinstance(one, str)]
    if wrong:
        wanted = "a state that can be saved, of the same things on every rank"
        raise _error("; ".join(wrong), wanted, folder, "register the same names in RunState on every rank")
    if ranks.rank:
        return _beside(ranks, own, folder)
    assert not isinstance(captured, GradledgerError)  # it would be among what is wrong
    parts, told = captured
    others = _Others(ranks)
    state = {**told, "ranks": [None, *everyone[1:]]}
    try:
        made = checkpoint.save(folder, step, parts, {**facts, "state": state}, beside=others, **more)
    except RanksError:
        raise  # nobody is left to tell
    except Exception as error:
        others.settle()
        ranks.the_firsts(("failed", error.got if isinstance(error, GradledgerError) else repr(error)))
        raise
    ranks.the_firsts(("done", str(made)))
    return made


def load(ranks: Ranks, folder: Path) -> Checkpoint:
    """The newest whole checkpoint as rank 0 sees it, with the parts that are this rank's.

    Raises:
        CheckpointError: there is none, or this rank does not see it; on every rank.
    """
    mine: Checkpoint | None = None
    told: Any = None
    if ranks.rank == 0:
        try:
            mine = checkpoint.load(folder, parts=lambda name: not name.startswith("rank-"))
            told = ("done", str(mine.path.resolve()))
        except GradledgerError as error:
            told = ("failed", error.got)
    verdict, said = ranks.the_firsts(told)
    if verdict == "failed":
        next_step = "start the run anew, or point to the folder that holds `step-...` folders"
        raise _error(said, "at least one whole checkpoint", folder, next_step)
    wrong = []
    if mine is None:
        own = _prefix(ranks.rank)
        try:
            mine = checkpoint.read(Path(said), parts=lambda name: name.startswith(own) or not name.startswith("rank-"))
        except (CheckpointError, OSError) as error:
            wrong = [str(error)]
    bad = agreed(ranks, wrong)
    if bad or mine is None:
        next_step = "give every rank the same path on a disk that all share"
        raise _error("; ".join(bad), "one folder that all ranks see", folder, next_step)
    return mine


def of_rank(saved: Checkpoint, rank: int) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """(parts, told) of one rank: what all share, with what is its own in its place."""
    told = saved.facts["state"]
    parts = {name: dict(tensors) for name, tensors in saved.parts.items() if not name.startswith("rank-")}
    if rank == 0:
        return parts, told
    own = told["ranks"][rank]
    for name, absent in own["absent"].items():
        parts[name] = {key: tensor for key, tensor in parts.get(name, {}).items() if key not in absent}
    prefix = _prefix(rank)
    for name, tensors in saved.parts.items():
        if name.startswith(prefix):
            parts.setdefault(name.removeprefix(prefix), {}).update(tensors)
    changed = own["changed"]
    merged = {kind: {**told[kind], **changed[kind]} for kind in _KINDS}
    return parts, {**merged, "counters": changed["counters"], "random": changed["random"]}


@dataclass(frozen=True)
class _First:
    """What rank 0 holds: hashes by part and name, and what it tells beside the tensors."""

    hashes: dict[str, dict[str, str]]
    told: Told


def _first(captured: tuple[Parts, Told] | GradledgerError) -> _First | None:
    if isinstance(captured, GradledgerError):
        return None  # the others go on to say what is wrong with them, if anything is
    parts, told = captured
    return _First({name: {key: _hash(t) for key, t in tensors.items()} for name, tensors in parts.items()}, told)


def _own(
    ranks: Ranks, captured: tuple[Parts, Told] | GradledgerError, first: _First | None
) -> tuple[dict[str, dict[str, torch.Tensor]], Any]:
    """(tensors that are this rank's own, what it tells), or ({}, why it cannot be saved)."""
    if isinstance(captured, GradledgerError):
        return {}, str(captured)
    if first is None or ranks.rank == 0:
        return {}, None
    parts, told = captured
    odd = sorted(f"{kind} {name}" for kind in _KINDS for name in told[kind].keys() ^ first.told[kind].keys())
    if odd:
        return {}, f"{', '.join(odd)} only here or only on rank 0"
    own: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensors in parts.items():
        known = first.hashes.get(name, {})
        differ = {key: tensor for key, tensor in tensors.items() if known.get(key) != _hash(tensor)}
        if differ:
            own[_prefix(ranks.rank) + name] = differ
    absent = {
        name: sorted(known.keys() - parts.get(name, {}).keys())
        for name, known in first.hashes.items()
        if known.keys() - parts.get(name, {}).keys()
    }
    changed: dict[str, Any] = {
        kind: {name: one for name, one in told[kind].items() if first.told[kind][name] != one} for kind in _KINDS
    }
    changed |= {"counters": told["counters"], "random": told["random"]}
    return own, {"changed": changed, "absent": absent}


def _beside(ranks: Ranks, own: Parts, folder: Path) -> Path:
    """What a rank other than 0 does while rank 0 writes."""
    verdict, said = ranks.the_firsts(None)
    if verdict == "write":
        files: dict[str, Any] = {}
        wrong = None
        try:
            for name, tensors in own.items():
                files |= checkpoint.write_part(Path(said), name, tensors)
        except Exception as error:  # whatever it is, rank 0 must not wait for it
            wrong = f"rank {ranks.rank}, {type(error).__name__}: {error}"
        ranks.everyones((files, wrong))
        verdict, said = ranks.the_firsts(None)
    if verdict == "failed":
        next_step = "see what rank 0 says; the checkpoint before this one is still there"
        raise _error(said, "a checkpoint of all ranks", folder, next_step)
    return Path(said)


class _Others:
    """The other ranks, as `checkpoint.save` sees them on rank 0."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._pending = ranks, False

    def begin(self, building: Path) -> None:
        """The folder is there: let them write."""
        self._pending = True
        self._ranks.the_firsts(("write", str(building.resolve())))

    def collect(self, building: Path) -> dict[str, dict[str, Any]]:
        """What they wrote, as entries of the manifest."""
        self._pending = False
        every = self._ranks.everyones(({}, None))
        wrong = [one for _, one in every if one]
        files = {name: told for given, _ in every for name, told in given.items()}
        lost = [
            name
            for name, told in files.items()
            if not (building / name).is_file() or (building / name).stat().st_size != told["bytes"]
        ]
        if lost:
            wrong.append(f"rank 0 does not see {', '.join(lost)}")
        if wrong:
            raise OSError("; ".join(wrong) + " (all ranks write into one folder that all of them see)")
        return files

    def settle(self) -> None:
        """After a failure: they may be waiting to tell what they wrote."""
        if self._pending:
            self._pending = False
            self._ranks.everyones(({}, None))


def _prefix(rank: int) -> str:
    return f"rank-{rank:05d}-"


def _hash(tensor: torch.Tensor) -> str:
    held = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{held.dtype} {list(held.shape)} ".encode())
    if held.numel():
        digest.update(held.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def misfits(told: Told, *, together: bool) -> list[str]:
    """Why the random states of this checkpoint are not those of the ranks that are here."""
    rank, world = here()
    saved_rank, saved_world = told.get("process", (0, 1))
    if together != ("ranks" in told):
        given = "by all ranks together (ranks=True)" if "ranks" in told else f"by rank {saved_rank} for itself"
        return [f"it was saved {given} and this run has ranks={together}"]
    if world != saved_world:
        return [f"it holds the states of {saved_world} ranks and here are {world}"]
    if not together and rank != saved_rank:
        # All would go on with the random numbers of one, and nobody would see it.
        return [f"it holds the random states of rank {saved_rank} alone and this is rank {rank}: pass ranks=True"]
    return []


def agreed(ranks: Ranks | None, wrong: Iterable[str]) -> list[str]:
    """What is wrong on any rank, each line with its rank where there are several."""
    if ranks is None:
        return list(wrong)
    return [f"rank {rank}: {text}" for rank, texts in enumerate(ranks.everyones(list(wrong))) for text in texts]


def _error(got: str, wanted: str, folder: Path, next_step: str) -> CheckpointError:
    return CheckpointError(got=got, wanted=wanted, where=f"train.ranks in {folder}", next_step=next_step)
