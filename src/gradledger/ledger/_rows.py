"""Which rows of the program's data a tensor holds, followed through indexing, arithmetic and collation.

Every table of data is a *space*; its rows are numbered once.  A tensor made from it by picking rows, or by
arithmetic that keeps rows in place, holds known rows of that space.  A reduction over rows makes a *statistic*; what
is computed with it carries the statistic on.  Rows of a tensor picked from a whole space are its *part*: batches drawn
from a part belong to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._identity import PRUNE_AT, Ref
from gradledger.ledger._operations import Op
from gradledger.ledger._trace import Trace

LEAST = 20  # rows of a table
MOST = 200_000
KEPT = 4096  # tensors that are followed
STATISTICS = 64
SPACES = 2000
JOINED = 4  # tables of different spaces in one; more make a table of its own
_BLOCK = 1 << 24  # row numbers of one space
_REDUCTIONS = frozenset(
    {"mean", "std", "var", "amin", "amax", "min", "max", "median", "quantile", "sum", "norm", "std_mean", "var_mean",
     "nanmean", "aminmax", "svd", "linalg_svd", "pca_lowrank", "svd_lowrank", "cov", "vector_norm",
     "linalg_vector_norm", "nanquantile"}
)  # fmt: skip
_MIXED = frozenset(
    {"sort", "flip", "roll", "cumsum", "cumprod", "argsort", "randperm", "topk", "bmm", "cdist", "unique", "randn_like",
     "rand_like", "zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "bernoulli"}
)  # fmt: skip
_CASTS = frozenset({"to", "double", "half", "bfloat16", "type", "contiguous"})
_WORDS = frozenset({"gt", "lt", "ge", "le", "eq", "ne", "argmax", "argmin", "sign", "bucketize", "searchsorted"})


@dataclass(frozen=True, slots=True)
class Statistic:
    """A reduction over rows: by what, where, over which."""

    number: int
    op: str
    site: Site
    rows: Any


@dataclass(slots=True)
class Held:
    """What a tensor holds.  `rows`: row numbers (None: not known one by one); `part`: of which part they are;
    `fitted`: statistics that went into the values; `single`: it is one row, without the axis."""

    rows: Any
    part: Part
    fitted: frozenset[int] = frozenset()
    single: bool = False


@dataclass(slots=True, eq=False)
class Part:
    """A table, or rows picked from one.  `rows`: all of it; `whole`: it is the space itself; `tensor`: its values;
    `by`: modules (and their lives) that were trained on it; `asker`: the first that was asked about it."""

    rows: Any
    whole: bool
    site: Site = NOWHERE
    tensor: Ref[torch.Tensor] | None = None
    space: int = 0
    trained: bool = False
    evaluated: bool = False
    siblings: list[Ref[torch.Tensor]] = field(default_factory=list)
    strung: bool = False  # of several data sets, one behind the other
    by: set[tuple[int, int]] = field(default_factory=set)
    asker: tuple[int, int] | None = None


class Rows:
    """The rows that tensors of this run hold, by token."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.held: dict[int, tuple[Ref[torch.Tensor], Held]] = {}
        self.fitted: dict[int, frozenset[int]] = {}  # of tensors that hold no rows: statistics and what is made of them
        self.statistics: list[Statistic] = []
        self.parts: list[Part] = []
        self.wholes: dict[int, Part] = {}
        self.answered: set[int] = set()  # outputs of modules and what is made of them alone
        self.mixed: set[int] = set()  # made of those and of rows: hits, errors; no data of the program
        self._lines: dict[tuple[tuple[str, int], int], int] = {}
        self._prune_at = PRUNE_AT

    # ------------------------------------------------------------------ what a tensor holds

    def of(self, tensor: torch.Tensor) -> Held | None:
        """What a tensor is known to hold."""
        found = self.held.get(self.trace.token_of(tensor))
        return found[1] if found is not None else None

    def table(self, tensor: torch.Tensor, site: Site = NOWHERE) -> Held | None:
        """What a tensor holds; a graph-free table that is not known yet becomes a space of its own."""
        known = self.of(tensor)
        if known is not None:
            return known
        if (
            len(self.wholes) >= SPACES
            or self.trace.token_of(tensor) in self.mixed
            or tensor.requires_grad
            or tensor.dim() == 0
            or not LEAST <= tensor.shape[0] <= MOST
        ):
            return None
        if isinstance(tensor, torch.nn.Parameter) or self.trace.value_of(tensor).call is not None:
            return None
        part = self.space(tensor.shape[0], site)
        part.tensor = Ref(tensor)
        return self.give(tensor, Held(part.rows, part))

    def space(self, rows: int, site: Site) -> Part:
        """A new space of so many rows."""
        number = len(self.wholes) + 1
        numbers = np.arange(rows, dtype=np.int64) + number * _BLOCK
        part = self.wholes[number] = Part(numbers, True, site, None, number)
        return part

    def give(self, tensor: torch.Tensor, held: Held) -> Held:
        """Say what a tensor holds."""
        if len(self.held) >= self._prune_at:
            self.held = {t: (ref, h) for t, (ref, h) in self.held.items() if ref() is not None}
            if len(self.held) >= KEPT:
                self.held = dict(list(self.held.items())[KEPT // 2 :])
            self._prune_at = min(KEPT, max(PRUNE_AT, 2 * len(self.held)))
        self.held[self.trace.token_of(tensor)] = (Ref(tensor), held)
        return held

    # ------------------------------------------------------------------ operations

    def follow(self, op: Op, args: Any, outs: list[torch.Tensor]) -> None:
        """One operation has run."""
        first: Any = args[0] if args else None
        if self.mixed and _is(first) and self.trace.token_of(first) in self.mixed:
            self._note(self.mixed, outs)
        elif op.name == "getitem" and isinstance(first, torch.Tensor):
            self._picked(op, first, args[1], outs[0])
        elif op.name == "index_select" and len(args) > 2 and args[1] in (0, -first.dim() if _is(first) else 0):
            self._picked(op, first, args[2], outs[0])
        elif op.name in ("split", "chunk", "tensor_split") and _is(first):
            self._split(op, first, outs)
        elif op.name in ("stack", "cat") and isinstance(first, (list, tuple)):
            self._joined(op, list(first), outs[0])
        elif op.name in _REDUCTIONS and _is(first) and self._over_rows(op, first, outs):
            self._reduced(op, first, outs)
        elif op.name not in _MIXED and outs:
            self._computed(op, args, outs)

    def _picked(self, op: Op, base: torch.Tensor, index: Any, out: torch.Tensor) -> None:
        first = index[0] if isinstance(index, tuple) and index else index
        if base.dim() == 0 or base.requires_grad or out is base:
            return
        if isinstance(index, tuple) and (first is Ellipsis or first is None or not _rows_only(first, base)):
            return
        chosen = _chosen(first, base.shape[0])
        if chosen is None:
            return
        held = self.table(base, op.site)
        if held is None or held.rows is None or held.single or len(held.rows) != base.shape[0]:
            return
        rows = held.rows[chosen]
        if isinstance(chosen, int):
            self.give(out, Held(rows, held.part, held.fitted, single=True))
            return
        if len(rows) == base.shape[0] and (rows == held.rows).all():
            self.give(out, Held(rows, held.part, held.fitted))
            return
        if len(rows) > 1 and len(np.unique(rows)) < len(rows):
            return  # rows repeated: what is made of it is a table of its own
        part = held.part
        line, calls = (op.site.key(), self.trace.token_of(base)), self.trace.recorder.calls
        fresh = self._lines.get(line, calls) == calls
        if line in self._lines or len(self._lines) < KEPT:
            self._lines[line] = calls
        # A line that picks from a tensor again after a module was called draws batches: they belong to the part.
        # Before that it may cut several: `test, train = x[:400], x[400:]`, or another column beside the first one.
        beside = [p for p in self.parts[-4:] if not part.whole and _cut_beside(p, part, op.site, rows)]
        if fresh and beside:
            part = beside[-1]
        elif part.whole or fresh:
            part = Part(rows, False, op.site, Ref(out), part.space)
            if len(rows) >= LEAST and len(self.parts) < KEPT:
                twin = next((p for p in reversed(self.parts[-16:]) if _same_rows(p, part)), None)
                if twin is not None and twin.site.file == part.site.file:
                    twin.siblings.append(Ref(out))
                self.parts.append(part)
        self.give(out, Held(rows, part, held.fitted))

    def _split(self, op: Op, base: torch.Tensor, outs: list[torch.Tensor]) -> None:
        if not outs or sum(o.shape[0] if o.dim() else 0 for o in outs) != base.shape[0]:
            return
        start = 0
        for out in outs:
            self._picked(op, base, slice(start, start + out.shape[0]), out)
            start += out.shape[0]

    def _joined(self, op: Op, parts: list[Any], out: torch.Tensor) -> None:
        tensors = [p for p in parts if isinstance(p, torch.Tensor)]
        if not tensors or out.dim() == 0 or out.requires_grad:
            return
        if op.name == "cat" and out.shape[0] == sum(t.shape[0] for t in tensors if t.dim()):
            found = [self.table(t, op.site) for t in tensors[:64]]
            if len(found) != len(tensors) or any(h is None or h.rows is None or h.single for h in found):
                return
        elif op.name == "stack" and out.shape[0] == len(tensors):
            found = [self.of(t) for t in tensors]
            if any(h is None or not h.single for h in found):
                return
        else:
            if op.name == "cat":
                self._computed(op, tensors, [out])
            return
        whole = [h for h in found if h is not None]
        if op.name == "cat" and len({h.part.space for h in whole}) > 1 and len(whole) > JOINED:
            return
        rows = np.concatenate([np.atleast_1d(h.rows) for h in whole])
        tables = op.name == "cat" and all(h.part.whole and len(h.rows) == len(h.part.rows) for h in whole)
        if tables and len(np.unique(rows)) < len(rows):
            return  # a table put together with (changed) copies of itself is a table of its own
        fitted = frozenset().union(*(h.fitted for h in whole))
        homes = {id(h.part): h.part for h in whole}
        part = next(iter(homes.values())) if len(homes) == 1 else Part(rows, False, op.site, Ref(out))
        self.give(out, Held(rows, part, fitted))

    def _over_rows(self, op: Op, tensor: torch.Tensor, outs: list[torch.Tensor]) -> bool:
        """Whether the first axis is gone."""
        if tensor.dim() == 0 or tensor.shape[0] < LEAST or not tensor.is_floating_point() or not outs:
            return False
        if "svd" in op.name or op.name in ("pca_lowrank", "cov"):
            return True
        shape, out = tuple(tensor.shape), tuple(outs[0].shape)
        return out in ((), shape[1:], (1, *shape[1:]), (1,) * len(shape)) and (len(shape) > 1 or out in ((), (1,)))

    def _reduced(self, op: Op, tensor: torch.Tensor, outs: list[torch.Tensor]) -> None:
        held = self.table(tensor, op.site) if not tensor.requires_grad else None
        if held is None or held.rows is None or held.single or len(self.statistics) >= STATISTICS:
            return
        number = len(self.statistics)
        self.statistics.append(Statistic(number, op.name, op.site, held.rows))
        for out in outs:
            self.fitted[self.trace.token_of(out)] = frozenset({number}) | held.fitted

    def _computed(self, op: Op, args: Any, outs: list[torch.Tensor]) -> None:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        out = outs[0]
        if out.requires_grad or not tensors or (not self.held and not self.fitted):
            return
        fitted: frozenset[int] = frozenset()
        source: Held | None = None
        answer = False
        for t in tensors:
            token = self.trace.token_of(t)
            answer = answer or self._is_answer(token)
            fitted |= self.fitted.get(token, frozenset())
            found = self.held.get(token)
            if found is not None:
                held = found[1]
                fitted |= held.fitted
                same = out.dim() > 0 and t.dim() > 0 and out.shape[0] == t.shape[0]
                if source is None and (held.single or same) and op.name not in ("t", "transpose", "permute", "T"):
                    source = held
        if op.name in _WORDS:
            fitted = frozenset()
        if answer:
            self._note(self.answered if source is None else self.mixed, outs)
            source = None
        if source is not None:
            if op.name in _CASTS and source.part.whole and len(source.part.rows) == np.size(source.rows):
                source.part.tensor = Ref(out)  # `torch.tensor(array).float()`: the first one is gone at once
            self.give(out, Held(source.rows, source.part, fitted, source.single))
        elif fitted and len(self.fitted) < KEPT:
            self.fitted[self.trace.token_of(out)] = fitted


    def _is_answer(self, token: int) -> bool:
        value = self.trace.values.get(token)
        return token in self.answered or token in self.mixed or (value is not None and value.call is not None)

    def _note(self, where: set[int], outs: list[torch.Tensor]) -> None:
        if len(where) >= KEPT:
            where.clear()
        where.update(self.trace.token_of(out) for out in outs)


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _rows_only(first: Any, base: torch.Tensor) -> bool:
    """Whether the first part of an index picks rows of the first axis."""
    return not (isinstance(first, torch.Tensor) and first.dim() > 1)


def _chosen(index: Any, rows: int) -> Any:
    """Positions along the first axis: an int, a slice, or an array; None when it picks something else."""
    if isinstance(index, bool) or index is None or index is Ellipsis:
        return None
    if isinstance(index, int):
        return index if -rows <= index < rows else None
    if isinstance(index, slice):
        whole = all(v is None or isinstance(v, int) for v in (index.start, index.stop, index.step))
        return index if whole else None
    if isinstance(index, torch.Tensor):
        if index.device.type != "cpu" or index.requires_grad or index.dim() > 1 or index.is_floating_point():
            return None
        if index.dim() == 0:
            return int(index) if index.dtype != torch.bool else None
        index = index.detach().numpy()
    if isinstance(index, range):
        index = list(index)
    if isinstance(index, list):
        if not index or not all(isinstance(i, (int, bool)) for i in index):
            return None
        index = np.asarray(index)
    if isinstance(index, np.ndarray) and index.ndim == 1 and index.dtype.kind in "iub":
        if index.dtype == bool:
            return np.flatnonzero(index) if len(index) == rows else None
        index = index.astype(np.int64)
        return index if not len(index) or (-rows <= index.min() and index.max() < rows) else None
    return None


def _cut_beside(part: Part, source: Part, site: Site, rows: Any) -> bool:
    """Whether a part holds just these rows of the same table, cut by the same line."""
    same = part.space == source.space and part.site.key() == site.key() and len(part.rows) == len(rows)
    return same and bool((part.rows == rows).all())


def _same_rows(a: Part, b: Part) -> bool:
    """Whether two parts pick the same rows of two tables of one length."""
    return len(a.rows) == len(b.rows) and bool(((a.rows % _BLOCK) == (b.rows % _BLOCK)).all())


__all__ = ["LEAST", "Held", "Part", "Rows", "Statistic"]
