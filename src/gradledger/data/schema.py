"""A contract for batches: each field's axes, shape, dtype, unit, coordinate frame, value range, and what missing means.

`Schema.check` returns every violation of a batch at once; `require` raises them as one error. A schema is data: it goes
to JSON and back, so that the same file guards the training set, the loader and the exported model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gradledger.data._array import as_array
from gradledger.data.errors import SchemaError

FORMAT = "gradledger-schema/1"
Role = Literal["value", "image", "time", "label"]
Missing = Literal["refuse", "nan", "mask"]
Json = Any


@dataclass(frozen=True)
class Typical:
    """What a field looked like where it was known to be right: per channel (or one number without a channel axis).

    mean, std: over all elements. spread: standard deviation, over samples, of a sample's own channel mean.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    spread: tuple[float, ...]


@dataclass(frozen=True)
class Field:
    """One named array of a batch.

    axes: letters such as "B C H W"; the same letter has the same size in every field of a batch. shape: one size an
    axis, None where it may vary. low, high: bounds, both allowed. missing: "refuse" allows no NaN; "nan" lets NaN stand
    for missing; "mask" names in `mask` a field of the same leading axes that is 0 where the value is missing, and only
    there NaN is allowed. max_missing: largest share of missing elements. channel: the axis whose entries are different
    quantities (colours, joints), judged one by one. constant_ok: a channel that never changes is no fault. role:
    "time" must rise strictly along its last axis, by at most `max_gap`, and end at most `max_age` before `now`; "label"
    holds whole numbers in [low, high]; "image" has colours in `channel`. typical: see `Schema.fitted`.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int | None, ...]
    dtype: str = "float32"
    unit: str = ""
    frame: str = ""
    low: float | None = None
    high: float | None = None
    missing: Missing = "refuse"
    mask: str = ""
    max_missing: float = 1.0
    channel: str = ""
    constant_ok: bool = False
    role: Role = "value"
    max_gap: float | None = None
    max_age: float | None = None
    typical: Typical | None = None

    def text(self) -> str:
        """`float32 [B, C=3, H=32, W=32]`."""
        parts = [axis if size is None else f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True)]
        return f"{self.dtype} [{', '.join(parts)}]"


@dataclass(frozen=True)
class Declared:
    """What the data says of itself about one field, "" where it says nothing."""

    unit: str = ""
    frame: str = ""
    axes: str = ""


@dataclass(frozen=True)
class Violation:
    """One way in which a batch does not keep the schema.

    indices: up to eight offending positions in the field; count: how many there are, 0 where the whole field is meant.
    """

    field: str
    got: str
    wanted: str
    reason: str
    indices: tuple[tuple[int, ...], ...] = ()
    count: int = 0

    def __str__(self) -> str:
        where = ""
        if self.indices:
            shown = ", ".join(str(list(index)) for index in self.indices)
            where = f" at {shown}" + (
                f" and {self.count - len(self.indices)} more" if self.count > len(self.indices) else ""
            )
        return f"{self.field}{where}: got {self.got}, wanted {self.wanted} ({self.reason})"


@dataclass(frozen=True)
class Schema:
    """Fields by name. allow_extra: other fields may be there and are not looked at."""

    name: str
    fields: tuple[Field, ...]
    allow_extra: bool = False

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise SchemaError(
                got="; ".join(problems),
                wanted="fields that can be kept",
                where=f"schema {self.name!r}",
                next_step="correct the schema; docs/data.md lists what a field may say",
            )

    def check(
        self, batch: Mapping[str, Any], *, declared: Mapping[str, Declared] | None = None, now: float | None = None
    ) -> tuple[Violation, ...]:
        """Every violation of a batch; empty when it keeps the schema. Nothing in the batch is changed.

        Args:
            batch: name -> tensor, array or nested list.
            declared: what the data's own metadata says of its units, frames and axes; names that differ are violations.
            now: clock in the unit of the time fields, for `max_age`.
        """
        from gradledger.data._checks import check

        return tuple(check(self, batch, declared or {}, now))

    def require(
        self,
        batch: Mapping[str, Any],
        *,
        where: str = "",
        declared: Mapping[str, Declared] | None = None,
        now: float | None = None,
    ) -> None:
        """Raise SchemaError with all violations when there is any; arguments as for `check`."""
        found = self.check(batch, declared=declared, now=now)
        if found:
            raise SchemaError(
                got=f"{len(found)} violation{'s' if len(found) > 1 else ''}: " + "; ".join(map(str, found)),
                wanted=f"a batch of schema {self.name!r}",
                where=where or "Schema.require",
                next_step="correct the data where it is made; a batch that is bent into shape here keeps its fault",
            )

    def fitted(self, batch: Mapping[str, Any]) -> Schema:
        """The schema with `typical` taken from a batch (of the training side, known to be right).

        Only floating and image fields get one. With it, units, colours and axes that fit the shape but not the numbers
        are seen too. At least 16 samples.
        """
        self.require(batch, where="Schema.fitted")
        return replace(self, fields=tuple(_fit(field, batch[field.name]) for field in self.fields))

    def to_json(self) -> dict[str, Json]:
        """A dictionary that JSON can hold."""
        return {"format": FORMAT, **asdict(self)}

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")


def from_json(document: Json, *, where: str = "schema.from_json") -> Schema:
    """The schema of `to_json`. A field may leave out what has a default, and write its axes as "B C H W".

    Raises:
        SchemaError: an unknown key, a missing one, another format, or fields that contradict themselves.
    """
    try:
        if not isinstance(document, Mapping):
            raise TypeError(f"a {type(document).__name__} at the top")
        if document.get("format") != FORMAT:
            raise ValueError(f"format {document.get('format')!r}")
        read = tuple(_field(one) for one in document["fields"])
        return Schema(str(document["name"]), read, bool(document.get("allow_extra", False)))
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise SchemaError(
            got=f"no key {cause}" if isinstance(cause, KeyError) else f"{type(cause).__name__}: {cause}",
            wanted=f"a document of format {FORMAT} with name and fields",
            where=where,
            next_step="docs/data.md shows a schema file",
        ) from cause


def read(path: Path) -> Schema:
    """The schema in a JSON file.

    Raises:
        SchemaError: no such file, no JSON, or no schema.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        unread = "a folder" if path.is_dir() else str(getattr(cause, "strerror", "")).lower()
        raise SchemaError(
            got=f"{type(cause).__name__}: {cause}" if isinstance(cause, ValueError) else unread,
            wanted="a schema as JSON",
            where=str(path),
            next_step="write one with Schema.write, or see docs/data.md",
        ) from cause
    return from_json(document, where=str(path))


def require_same_shape(prediction: Any, target: Any, *, where: str = "the loss") -> None:
    """Refuse a prediction and a target that broadcasting would pair up.

    [B] against [B, 1] is no error for torch: every prediction meets every target, and the loss falls.

    Raises:
        SchemaError: the shapes differ.
    """
    got, wanted = tuple(prediction.shape), tuple(target.shape)
    if got == wanted:
        return
    try:
        result = f"broadcasting would compare them as {list(np.broadcast_shapes(got, wanted))}"
    except ValueError:
        result = "they do not broadcast either"
    raise SchemaError(
        got=f"prediction {list(got)} and target {list(wanted)}",
        wanted="equal shapes",
        where=where,
        next_step=f"reshape one where it is made ({result})",
    )


def _field(given: Mapping[str, Json]) -> Field:
    if not isinstance(given, Mapping):
        raise TypeError(f"a {type(given).__name__} among the fields")
    known = [one.name for one in fields(Field)]
    for key in given.keys() - set(known):
        raise ValueError(f"key {key!r} of field {given.get('name', '')!r}, which has {', '.join(known)}")
    values = dict(given)
    axes = values.pop("axes")
    values["axes"] = tuple(axes.split()) if isinstance(axes, str) else tuple(axes)
    values["shape"] = tuple(values.get("shape") or [None] * len(values["axes"]))
    typical = values.pop("typical", None)
    if typical is not None:
        typical = Typical(**{name: tuple(map(float, numbers)) for name, numbers in typical.items()})
    return Field(**values, typical=typical)


def _fit(field: Field, value: Any) -> Field:
    array, _ = as_array(value)
    if array is None or field.role in ("label", "time") or array.dtype.kind == "b":
        return field
    if array.shape[0] < 16:
        raise SchemaError(
            got=f"{array.shape[0]} samples of {field.name}",
            wanted="at least 16",
            where="Schema.fitted",
            next_step="pass a larger batch of the training side",
        )
    rows = array.astype(np.float64)
    at = field.axes.index(field.channel) if field.channel else None
    everywhere = tuple(axis for axis in range(rows.ndim) if axis != at)
    per_sample = np.nanmean(rows, axis=tuple(axis for axis in everywhere if axis)) if rows.ndim > 1 else rows
    mean, std = np.nanmean(rows, axis=everywhere), np.nanstd(rows, axis=everywhere)
    spread = np.nanstd(per_sample, axis=0)
    return replace(field, typical=Typical(*(tuple(np.atleast_1d(part).tolist()) for part in (mean, std, spread))))


def _problems(schema: Schema) -> list[str]:
    """What is wrong with the schema itself."""
    found = [] if schema.fields else ["no fields"]
    names = [field.name for field in schema.fields]
    found += [f"{name!r} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    for field in schema.fields:
        who = f"field {field.name!r}"
        if len(field.axes) != len(field.shape) or len(set(field.axes)) != len(field.axes) or not field.axes:
            found.append(f"{who}: axes {field.axes} and shape {field.shape} do not go together")
        if any(size is not None and (not isinstance(size, int) or size < 1) for size in field.shape):
            found.append(f"{who}: sizes are whole numbers of at least 1, or None")
        if field.channel and field.channel not in field.axes:
            found.append(f"{who}: channel axis {field.channel!r} is not among {field.axes}")
        try:
            numeric = field.dtype == "bfloat16" or np.dtype(field.dtype).kind in "biuf"
        except TypeError:
            numeric = False
        if not numeric:
            found.append(f"{who}: {field.dtype!r} is no dtype of numbers")
        bounds = [bound for bound in (field.low, field.high) if bound is not None]
        if any(not math.isfinite(bound) for bound in bounds) or bounds != sorted(bounds):
            found.append(f"{who}: range [{field.low}, {field.high}] is empty or not finite")
        if (field.missing == "mask") != bool(field.mask) or (field.mask and field.mask not in names):
            found.append(f"{who}: missing='mask' names another field in `mask`, nothing else does")
        for name, value, allowed in (
            ("role", field.role, ("value", "image", "time", "label")),
            ("missing", field.missing, ("refuse", "nan", "mask")),
        ):
            if value not in allowed:
                found.append(f"{who}: {name} {value!r} is not one of {', '.join(allowed)}")
        if not 0.0 <= field.max_missing <= 1.0:
            found.append(f"{who}: max_missing {field.max_missing} is no share")
    return found
