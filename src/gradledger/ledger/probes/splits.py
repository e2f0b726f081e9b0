"""Which rows are trained on and which are held out; do they belong together, and were inputs scaled by both?

Rows are followed from the program's tables to its forward calls (see `_rows`).  A part that a walked call was given is
trained on; another part of the same table is held out until it is trained on, too.  A module that is asked about a part
was trained on what it was given itself; one that was never trained (an average of another) on what any was given.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradledger.core.events import FittedOnAll, RowsShared
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _related, _site
from gradledger.ledger._answers import Answers
from gradledger.ledger._identity import FollowedTable
from gradledger.ledger._naming import FACTORIES
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._padding import array_of, tensors_of_batch
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._restarts import Restarts
from gradledger.ledger._rows import LEAST, Held, Part, Rows
from gradledger.ledger._session import Session

LOOKED = 3  # reverse passes after which parts that nobody evaluated yet are compared
PAIRS = 32  # comparisons in one run
HELD = 8  # rows held out, at least
OVERLAP = 0.05  # of the rows held out: more are the same rows
LIVES = 256  # of modules, on one table each
_SITES = 64


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.rows = Rows(session.trace)
        # By number, not as keys: a data class is no key, and whatever compares itself is asked by a dictionary.
        self.datasets: dict[int, Held] = {}
        self.subset_sites: dict[int, Site] = {}
        self.numbers: FollowedTable[Any] = FollowedTable(self._gone)
        self.stores: dict[int, tuple[Any, list[Any]]] = {}  # of a space: values and labels, where no tensor has them
        self.loaders: weakref.WeakKeyDictionary[Any, Held] = weakref.WeakKeyDictionary()
        self.given: dict[int, list[Held]] = {}
        self.restarts = session.recorder.part(Restarts)
        self.answers: Answers[tuple[Held, tuple[int, int]]] = Answers(session.trace, self._evaluated)
        self.trained: dict[int, Any] = {}  # space -> rows
        self.trained_by: dict[tuple[int, int, int], Any] = {}  # space, module and its life -> rows
        self.fitted: dict[int, frozenset[int]] = {}  # space -> statistics in inputs trained on
        self.strung: set[int] = set()  # spaces of which parts were strung together to be trained on
        self.train_sites: dict[int, Site] = {}
        self.valued: set[tuple[object, ...]] = set()  # tables whose values were compared
        self.told: dict[tuple[int, str, int, int, int], dict[str, Any]] = {}
        self.looks = self.roots = 0

    # ------------------------------------------------------------------ what is given to calls

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        if self.session.trace.reversing:
            return
        self.rows.follow(op, args, outs)
        if op.name in FACTORIES and outs[0].dim() > 0:
            self.rows.table(outs[0], op.site)

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.session.trace.reversing:
            return
        tensors = [t for t in inputs if isinstance(t, torch.Tensor) and t.dim() > 0]
        if not call.grad_on and self.session.trace.active:
            for t in tensors:
                self.rows.table(t, call.site)  # from an array, and evaluated as a whole
        found = [h for t in tensors if (h := self.rows.of(t)) is not None]
        if not found:
            return
        if call.grad_on:
            if len(self.given) > 256:
                self.given.clear()
            self.given[call.number] = found
        else:
            life = call.module, self.restarts.of(call.module)
            self.answers.asked(call, [(held, life) for held in found])

    def root(self, root: torch.Tensor, site: Site) -> None:
        """A reverse pass from `root` is complete: what the calls that it walked were given is trained on."""
        if not self.session.trace.active:
            return
        calls = self.session.trace.calls
        self.answers.root(root)
        walked = [number for number in self.given if number in calls and calls[number].walked]
        for number in walked:
            for held in self.given.pop(number):
                self._trained(held, calls[number].module)
        self.roots += bool(walked)
        if walked and self.roots == LOOKED:
            for part in list(self.rows.parts):
                self._compare(part)
            self._tables()

    def _trained(self, held: Held, module: int) -> None:
        part = held.part
        rows = held.rows if part.whole else part.rows
        if rows is None:
            return
        rows = np.atleast_1d(rows)  # one row may have been picked by its number
        known = self.trained.get(part.space)
        self.trained[part.space] = rows if known is None else known if part.trained else np.union1d(known, rows)
        self.fitted[part.space] = self.fitted.get(part.space, frozenset()) | held.fitted
        life = module, self.restarts.of(module, trains=True)
        key, mine = (part.space, *life), self.trained_by.get((part.space, *life))
        if life not in part.by and (mine is not None or len(self.trained_by) < LIVES):
            self.trained_by[key] = rows if mine is None else np.union1d(mine, rows)
        if not part.whole:
            part.trained = True
            part.by.add(life)
        if part.strung:
            self.strung.add(part.space)
        self.train_sites.setdefault(part.space, part.site)
        self._withdraw(part.space, rows)

    def _evaluated(self, asked: tuple[Held, tuple[int, int]]) -> None:
        held, life = asked
        part = whole = held.part
        if held.rows is None and part.whole:
            return
        if part.whole and np.size(held.rows) < len(part.rows):
            part = Part(np.atleast_1d(held.rows), False, part.site, None, part.space)
        if not part.evaluated:
            part.evaluated = True
            part.asker = life
            self._compare(part, held.fitted)
            known = part is not whole and whole.evaluated
            if whole.whole and whole.space not in self.trained and not known:
                whole.evaluated = True  # batch by batch, perhaps
                self._tables()

    # ------------------------------------------------------------------ comparing

    def _compare(self, part: Part, fitted: frozenset[int] = frozenset()) -> None:
        if part.trained or len(part.rows) < HELD or not self.trained:
            return
        tensor = part.tensor() if part.tensor is not None else None
        own = self.rows.of(tensor) if tensor is not None else None
        fitted = fitted | (own.fitted if own is not None else frozenset())
        key = (part.space, part.site.file, part.site.line, len(part.rows), int(part.rows[0]))  # a line may make several
        told, trained = self.told.get(key), self._known_to(part)
        if told is None:
            if self.looks >= PAIRS:
                return
            self.looks += 1
            told = self.told[key] = {
                "events": [],
                "rows": part.rows,
                "evaluated": False,
                "trained": False,
                "fit": set(),
            }
            if trained is not None and not part.whole:
                told["events"] += self._rows_of(part, trained)
        if any(values.get("how") == "same" for _, _, values in told["events"]):
            added = []
        else:
            added = self._fitted(part, fitted - told["fit"])
        told["fit"] |= fitted
        told["events"] += added
        later = part.evaluated and not told["evaluated"]
        if later and trained is not None and not part.whole:  # more has been trained on since
            others = [e for e in told["events"] if e[0] is not RowsShared]
            told["events"] = [*others, *self._rows_of(part, trained)]
        told["evaluated"] |= part.evaluated
        self._tell(told, None if later else added or (told["events"] if not told["fit"] - fitted else []))

    def _known_to(self, part: Part) -> Any:
        """The rows of its table that the module which was asked about a part had been trained on."""
        mine = self.trained_by.get((part.space, *part.asker)) if part.asker is not None else None
        return np.unique(mine) if mine is not None else self.trained.get(part.space)

    def _rows_of(self, part: Part, trained: Any) -> list[tuple[Any, Site, dict[str, Any]]]:
        """Are the rows held out the same as those trained on, or do they belong together?"""
        site = self.train_sites.get(part.space, NOWHERE)
        both = float(np.isin(part.rows, trained).mean())
        if both == 1 and part.space in self.strung and not part.evaluated:
            return []  # it may well be one of those that were strung together
        if both > OVERLAP:
            share = {"how": "same", "groups": 0, "rows": len(trained), "held": len(part.rows), "shared": both}
            return [(RowsShared, part.site, {**share, "within": 0.0, "train_site": site})]
        related = self._related(part, trained)
        return [(RowsShared, part.site, {**_fields(related), "train_site": site})] if related is not None else []

    def _tell(self, told: dict[str, Any], events: list[tuple[Any, Site, dict[str, Any]]] | None = None) -> None:
        for cls, site, values in told["events"] if events is None else events:
            self.recorder.emit(cls, site, **values, evaluated=told["evaluated"], trained=told["trained"])

    def _withdraw(self, space: int, rows: Any) -> None:
        """Rows that were held out are trained on now."""
        for key, told in self.told.items():
            if key[0] == space and not told["trained"] and told["events"]:
                if np.isin(told["rows"], rows).mean() > 0.5 and told["events"][0][2].get("how") != "same":
                    told["trained"] = True
                    self._tell(told)

    def _fitted(self, part: Part, fitted: frozenset[int]) -> list[tuple[Any, Site, dict[str, Any]]]:
        """Statistics over both that went into what is trained on and what is held out."""
        found = []
        for number in sorted(fitted & frozenset().union(*self.fitted.values())):
            statistic = self.rows.statistics[number]
            share = float(np.isin(part.rows, statistic.rows).mean())
            trained = np.concatenate(list(self.trained.values()))
            if np.isin(part.rows, trained).mean() > OVERLAP:
                continue
            if share >= 0.5 and np.isin(trained, statistic.rows).any():
                values = {"op": statistic.op, "rows": len(statistic.rows), "held": len(part.rows), "shared": share}
                found.append((FittedOnAll, statistic.site, {**values, "part_site": part.site}))
        return found

    def _related(self, part: Part, trained: Any) -> _related.Related | None:
        whole = self.rows.wholes.get(part.space)
        if whole is None:
            return None
        values, labels = self._values(whole, part)
        if values is None or len(values) != len(whole.rows):
            return None
        first = int(whole.rows[0])
        mine, theirs = np.sort(np.unique(trained - first)), np.sort(np.unique(part.rows - first))
        if theirs.max() >= len(values) or theirs.min() < 0:
            return None
        return _related.related(values, labels, mine[(mine >= 0) & (mine < len(values))], theirs)

    def _values(self, whole: Part, part: Part) -> tuple[Any, list[Any]]:
        """The values of a table and its labels, in stored order."""
        if whole.space in self.stores:
            return self.stores[whole.space]
        tensor = whole.tensor() if whole.tensor is not None else None
        if tensor is None:
            return None, []
        labels = []
        for other in self.rows.wholes.values():
            t = other.tensor() if other.tensor is not None and other is not whole else None
            if t is not None and t.dim() in (1, 2) and t.shape[0] == tensor.shape[0]:
                labels.append(array_of(t))
        return array_of(tensor), [a for a in labels if a is not None]

    def _tables(self) -> None:
        """Tables that came from arrays: no rows are known to be the same, only values can tell."""
        wholes = [(t, p) for p in self.rows.wholes.values() if p.tensor is not None and (t := p.tensor()) is not None]
        inputs = [(t, p) for t, p in wholes if t.dim() == 2 and t.is_floating_point() and t.shape[0] >= LEAST]
        for tensor, part in inputs:
            if part.space not in self.trained:
                continue
            others = [
                (t, p)
                for t, p in inputs
                if p is not part and t.shape[1] == tensor.shape[1] and p.space not in self.trained
            ]
            others.sort(key=lambda pair: not pair[1].evaluated)
            # (what is asked without a graph only later is known to be held out only then)
            key = (part.space, *((p.space, p.evaluated) for _, p in others))
            values = [array_of(t) for t, _ in others]
            mine = array_of(tensor)
            if not others or key in self.valued or mine is None or any(v is None for v in values):
                continue
            self.valued.add(key)
            how, rows = _related.fitted_together(mine, values)
            other = others[0][1]
            if how:
                self.recorder.emit(
                    FittedOnAll,
                    NOWHERE,
                    op=how,
                    rows=rows,
                    held=len(values[0]),
                    shared=1.0,
                    evaluated=other.evaluated,
                    trained=False,
                    part_site=other.site,
                )
            arrays = [a for t, _ in wholes if (a := array_of(t)) is not None and a.ndim <= 2]
            self._neighbours(mine, values[0], arrays, part.site, other)

    def _neighbours(self, mine: Any, theirs: Any, arrays: list[Any], site: Site, other: Part) -> None:
        if _related.same_rows(mine, theirs):
            return  # the training table made once more: a score on what was trained on, and no split
        labels = []
        for kept in (mine, theirs):
            labels.append([a for a in arrays if len(a) == len(kept) and a is not kept and a.shape != kept.shape])
        joined = [np.concatenate([a, b]) for a, b in zip(*labels, strict=False) if a.shape[1:] == b.shape[1:]]
        if not joined:
            return  # the classes are not known: groups may be classes
        order = np.arange(len(mine) + len(theirs))
        related = _related.related(
            np.concatenate([mine, theirs]), joined, order[: len(mine)], order[len(mine) :], stored=False
        )
        if related is not None:
            values = {**_fields(related), "train_site": site}
            self.recorder.emit(RowsShared, other.site, **values, evaluated=other.evaluated, trained=False)

    # ------------------------------------------------------------------ data sets

    def _gone(self, number: int) -> None:
        self.datasets.pop(number, None)
        self.subset_sites.pop(number, None)

    def dataset(self, dataset: Any) -> Held | None:
        """The rows of a data set, as far as they can be known without running its code."""
        if not isinstance(dataset, Dataset):
            return None
        number = self.numbers.number(dataset)
        known = self.datasets.get(number)
        if known is not None:
            return known
        found: Held | None = None
        if isinstance(dataset, Subset):
            base = self.dataset(dataset.dataset)
            index = np.asarray(list(dataset.indices), dtype=np.int64)
            if base is not None and len(index) and index.max() < len(base.rows):
                rows = base.rows[index]
                site = self.subset_sites.get(number, NOWHERE)
                part = Part(rows, False, site, None, base.part.space) if base.part.whole else base.part
                if base.part.whole:
                    self.rows.parts.append(part)
                found = Held(rows, part, base.fitted)
        elif type(dataset) is ConcatDataset:
            found = self._joined(dataset)
        elif type(dataset) is TensorDataset and dataset.tensors:
            floats = [t for t in dataset.tensors if t.is_floating_point()] or list(dataset.tensors)
            found = self.rows.table(floats[0], _site.here(1))
            for t in dataset.tensors:
                self.rows.table(t, _site.here(1))
        else:
            found = self._stored(dataset)
        if found is not None and found.rows is not None:
            self.datasets[number] = found
        return found

    def _joined(self, dataset: Any) -> Held | None:
        """The rows of data sets that are strung together, where all are rows of one table."""
        parts = [self.dataset(one) for one in dataset.datasets]
        known = [h for h in parts if h is not None and h.rows is not None]
        if not known or len(known) < len(parts) or len({h.part.space for h in known}) > 1:
            return None
        rows = np.concatenate([np.atleast_1d(h.rows) for h in known])
        fitted = frozenset().union(*(h.fitted for h in known))
        return Held(rows, Part(rows, False, _site.here(1), None, known[0].part.space, strung=True), fitted)

    def _stored(self, dataset: Any) -> Held | None:
        columns = [c for v in list(getattr(dataset, "__dict__", {}).values())[:16] if (c := _column(v)) is not None]
        tables = [c for group in columns for c in group]
        longest = max((len(c) for c in tables), default=0)
        same = [c for c in tables if len(c) == longest]
        inputs = [c for c in same if c.dtype.kind == "f" and c.ndim > 1]
        if longest < LEAST or not inputs:
            return None
        part = self.rows.space(longest, _site.here(1))
        values = max(inputs, key=lambda c: c[0].size)
        self.stores[part.space] = values, [c for c in same if c is not values]
        return Held(part.rows, part)

    def subset_made(self, before: Any, result: Any, args: Any, kwargs: Any) -> None:
        self.subset_sites[self.numbers.number(args[0])] = _site.here(1)
        if self.recorder.detail and len(self.rows.parts) < _SITES:
            self.dataset(args[0])

    def loader_begins(self, before: Any, iterator: Any, args: Any, kwargs: Any) -> None:
        if isinstance(iterator, _BaseDataLoaderIter) and self.session.trace.active:
            held = self.dataset(args[0].dataset)
            if held is not None and held.part.whole:
                held = _sampled(held, args[0].sampler)
            if held is not None:
                self.loaders[iterator] = held

    def came(self, before: Any, batch: Any, args: Any, kwargs: Any) -> None:
        home = self.loaders[args[0]]
        for tensor in tensors_of_batch(batch):
            if tensor.dim() == 0 or tensor.requires_grad:
                continue
            known = self.rows.of(tensor)
            rows = known.rows if known is not None and known.part.space == home.part.space else None
            fitted = home.fitted | (known.fitted if known is not None else frozenset())
            if rows is None and home.part.whole:
                rows = home.rows
            self.rows.give(tensor, Held(rows, home.part, fitted))


def _sampled(held: Held, sampler: Any) -> Held | None:
    """The rows that a loader's sampler takes from a whole table; None when nothing tells which."""
    if sampler is None or isinstance(sampler, (SequentialSampler, RandomSampler)):
        return held
    chosen = sampler.indices if type(sampler) is SubsetRandomSampler else sampler
    if isinstance(chosen, torch.Tensor):
        chosen = chosen.tolist()
    if not isinstance(chosen, (list, tuple, range)) or not all(isinstance(i, int) for i in chosen):
        return None
    index = np.asarray(chosen, dtype=np.int64)
    if held.rows is None or not len(index) or index.max() >= len(held.rows) or index.min() < 0:
        return None
    rows = held.rows[index]
    return Held(rows, Part(rows, False, held.part.site, None, held.part.space), held.fitted)


def _fields(related: _related.Related) -> dict[str, Any]:
    return {
        "how": related.how,
        "groups": related.groups,
        "rows": related.rows,
        "held": related.held,
        "shared": round(related.shared, 4),
        "within": round(related.within, 4),
    }


def _column(store: Any) -> list[Any] | None:
    """What an attribute keeps for each item, as arrays [N, ...]."""
    if type(store) is torch.Tensor:
        found = array_of(store) if store.dim() else None
        return [found] if found is not None else None
    if isinstance(store, np.ndarray) and store.ndim and store.dtype.kind in "fiub":
        return [store]
    if type(store) is not list or not LEAST <= len(store) <= 20_000:
        return None
    first = store[0]
    if type(first) in (tuple, list) and all(type(i) is type(first) and len(i) == len(first) for i in store):
        return [c for part in zip(*store, strict=True) if (c := _stacked(list(part))) is not None]
    if type(first) is dict and all(type(i) is dict and i.keys() == first.keys() for i in store):
        return [c for key in first if (c := _stacked([i[key] for i in store])) is not None]
    stacked = _stacked(store)
    return [stacked] if stacked is not None else None


def _stacked(items: list[Any]) -> Any:
    first = items[0]
    if isinstance(first, (int, float)) and all(isinstance(i, (int, float)) for i in items):
        return np.asarray(items)
    if isinstance(first, str) and all(isinstance(i, str) for i in items):
        return np.unique(np.asarray(items), return_inverse=True)[1]  # names of patients, scenes
    if type(first) is torch.Tensor:
        if not all(type(i) is torch.Tensor and i.shape == first.shape for i in items) or first.numel() > 65_536:
            return None
        arrays = [array_of(i) for i in items]
        return np.stack(arrays) if all(a is not None for a in arrays) else None
    if isinstance(first, np.ndarray) and first.dtype.kind in "fiub":
        if all(isinstance(i, np.ndarray) and i.shape == first.shape for i in items) and first.size <= 65_536:
            return np.stack(items)
    return None


def install(session: Session) -> Undo:
    """Listen to operations, calls, loaders and subsets."""
    probe = _Probe(session)
    session.trace.listeners.made.append(probe.made)
    session.at_call.append(probe.called)
    session.at_root.append(probe.root)
    session.at_end.append(probe.answers.settle)

    def skip(args: Any, kwargs: Any) -> bool:
        return args[0] not in probe.loaders or not session.trace.active

    def undo() -> None:
        session.trace.listeners.made.remove(probe.made)
        session.at_call.remove(probe.called)
        session.at_root.remove(probe.root)
        session.at_end.remove(probe.answers.settle)

    recorder = session.recorder
    return together(
        undo,
        observe(recorder, Subset, "__init__", after=probe.subset_made),
        observe(recorder, DataLoader, "__iter__", after=probe.loader_begins),
        observe(recorder, _BaseDataLoaderIter, "__next__", after=probe.came, skip=skip),
    )
