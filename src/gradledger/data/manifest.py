"""`split.json`: which sample is on which side and why, under a hash of the whole, and the checks that it holds."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.data.errors import SplitError
from gradledger.data.split import ALGORITHM, PURGED, Split, positions

FORMAT = "gradledger-split/1"


@dataclass(frozen=True)
class Manifest:
    """A split on record. Everything with one entry a sample is in the order of the samples.

    ids: unique. groups: component. sides, reasons: see `Split`. hashes: content of each sample, () when not known.
    keys: group key -> the value of each sample as text, None where it has none.
    """

    ids: tuple[str, ...]
    groups: tuple[int, ...]
    sides: tuple[str, ...]
    reasons: tuple[str, ...]
    hashes: tuple[str, ...]
    keys: dict[str, tuple[str | None, ...]]
    shares: dict[str, float]
    tolerance: float
    rng_seed: int
    algorithm: str = ALGORITHM

    def indices(self, side: str) -> NDArray[np.int64]:
        """Positions of the samples of one side.

        Raises:
            SplitError: there is no such side.
        """
        return positions(self.sides, side, self.shares, where="Manifest.indices")

    def fingerprint(self, side: str) -> str:
        """SHA-256 of the ids of a side: what statistics carry to say on which samples they were fitted."""
        return fingerprint([self.ids[at] for at in self.indices(side)])

    @property
    def sha256(self) -> str:
        """Hash of the whole record."""
        return hashlib.sha256(_canonical(self)).hexdigest()

    def counts(self) -> dict[str, int]:
        """Samples on each side."""
        return {side: self.sides.count(side) for side in [*self.shares, PURGED]}

    def problems(self) -> list[str]:
        """What is wrong with the split as recorded, all of it: [] when it holds."""
        sizes = {len(self.ids), len(self.groups), len(self.sides), len(self.reasons)}
        sizes |= {len(self.hashes)} if self.hashes else set()
        sizes |= {len(values) for values in self.keys.values()}
        if len(sizes) != 1:
            return [f"columns of {sorted(sizes)} entries, not of one length"]
        found = []
        twice = len(self.ids) - len(set(self.ids))
        if twice:
            found.append(f"{twice} ids are there twice, for example {_twice(self.ids)!r}")
        unknown = sorted(set(self.sides) - set(self.shares) - {PURGED})
        if unknown:
            found.append(f"unknown sides {', '.join(unknown)}")
        found += _on_two_sides("group", self.groups, self.sides)
        for name, values in self.keys.items():
            found += _on_two_sides(name, values, self.sides)
        if self.hashes:
            found += _on_two_sides("content", self.hashes, self.sides)
        kept = sum(side != PURGED for side in self.sides)
        purged = any(side == PURGED for side in self.sides)
        for side, share in self.shares.items():
            held = self.sides.count(side) / max(kept, 1)
            if side not in self.sides:
                found.append(f"side {side} is empty")
            elif not purged and abs(held - share) > self.tolerance + 1e-9:
                found.append(f"side {side} holds {held:.1%} of the samples, not {share:.1%} +- {self.tolerance:.1%}")
        return found

    def problems_with(self, ids: Sequence[str], hashes: Sequence[str] | None = None) -> list[str]:
        """How the data at hand differ from those that were split: missing, new and changed samples."""
        found = []
        known, given = set(self.ids), set(ids)
        if len(given) != len(ids):
            found.append(f"{len(ids) - len(given)} ids of the data are there twice, for example {_twice(ids)!r}")
        for what, names in (("missing from the data", known - given), ("not in the split", given - known)):
            if names:
                found.append(f"{len(names)} samples are {what}, for example {min(names)!r}")
        if hashes is not None and self.hashes:
            mine = dict(zip(self.ids, self.hashes, strict=True))
            changed = [one for one, digest in zip(ids, hashes, strict=True) if mine.get(one, digest) != digest]
            if changed:
                found.append(
                    f"{len(changed)} samples have other content than when they were split, first {changed[0]!r}"
                )
        return found

    def require(self) -> None:
        """Raise SplitError with every problem, when there is any."""
        found = self.problems()
        if found:
            raise SplitError(
                got="; ".join(found),
                wanted="sides that share nothing",
                where="Manifest.require",
                next_step="split again with these keys; never move single samples by hand",
            )

    def write(self, path: Path) -> None:
        """Write as JSON; a reader sees the old file or the whole new one."""
        document = {**_document(self), "sha256": self.sha256}
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def record(
    split: Split,
    ids: Sequence[Any],
    groups: Mapping[str, Sequence[Hashable]],
    *,
    hashes: Sequence[str] | None = None,
) -> Manifest:
    """The manifest of a split; `groups` are the keys it was made with.

    Raises:
        SplitError: what is recorded does not hold: an id twice, equal content on two sides.
    """
    keys = {name: tuple(None if value is None else str(value) for value in values) for name, values in groups.items()}
    manifest = Manifest(
        tuple(str(one) for one in ids),
        split.groups,
        split.sides,
        split.reasons,
        tuple(hashes or ()),
        keys,
        dict(split.shares),
        split.tolerance,
        split.rng_seed,
    )
    manifest.require()
    return manifest


def read(path: Path) -> Manifest:
    """Read `split.json`. The split itself may have problems, see `Manifest.problems`; the file may not.

    Raises:
        SplitError: no such file, not of this format, or changed since it was written (its hash differs).
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        stated = document.pop("sha256")
        keys = {name: tuple(values) for name, values in document.pop("keys").items()}
        columns: dict[str, Any] = {
            name: tuple(document.pop(name)) for name in ("ids", "groups", "sides", "reasons", "hashes")
        }
        manifest = Manifest(**columns, keys=keys, **document)
        actual = manifest.sha256
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise _unreadable(path, f"{type(cause).__name__}: {cause}") from cause
    if actual != stated:
        raise _unreadable(path, f"content of SHA-256 {actual[:12]}, not {str(stated)[:12]} as it says: it was edited")
    return manifest


def fingerprint(ids: Sequence[str]) -> str:
    """SHA-256 of a set of ids, whatever their order."""
    return hashlib.sha256(json.dumps(sorted(ids)).encode()).hexdigest()


def _unreadable(path: Path, got: str) -> SplitError:
    return SplitError(
        got=got,
        wanted=f"a whole file of format {FORMAT}",
        where=str(path),
        next_step="write it again with `gradledger data split`, or take it from where it was kept",
    )


def _document(manifest: Manifest) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(manifest)}


def _canonical(manifest: Manifest) -> bytes:
    return json.dumps(_document(manifest), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _on_two_sides(what: str, values: Sequence[Any], sides: Sequence[str]) -> list[str]:
    seen: dict[Any, set[str]] = {}
    for value, side in zip(values, sides, strict=True):
        if value is not None and side != PURGED:
            seen.setdefault(value, set()).add(side)
    torn = [(value, where) for value, where in seen.items() if len(where) > 1]
    if not torn:
        return []
    value, where = torn[0]
    shown = f"{value[:12]}..." if what == "content" else str(value)
    return [f"{len(torn)} values of {what} are on two sides, for example {shown} on {' and '.join(sorted(where))}"]


def _twice(ids: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(one for one in ids if one in seen or seen.add(one))  # type: ignore[func-returns-value]
