"""What the first batches of a loader that does not shuffle look like: does their order follow the data?

Only the first passes from a line are looked at; afterwards a batch costs one look into an empty table.  A data set that
is iterated (an `IterableDataset`) keeps its order to itself, a sampler of the program's own may sort, and a data set
that is asked for shuffled numbers may give what comes next: they count when a later pass goes through the same means.
Of numbers without a fraction only the classes that a loss takes for its target say anything: an item's number, time or
length may well be sorted.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradledger.core.events import BatchesCompared
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._counts import CLASS_LOSSES
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session
from gradledger.ledger.probes.loaders import is_shuffled, own_order_of

PASSES = 3  # from one line
BATCHES = 200  # of one pass
ITEMS = 4  # tensors of one batch
COLUMNS = 64  # of one tensor
ELEMENTS = 1_000_000
LEAST_ROWS = 4
NUMBERS = 20_000  # of rows, of one pass
STORED = 0.98  # correlation of the numbers of the rows with their place in the pass: nearly as they are stored
ORDERED = 0.5  # of the variance lies between batches
SOON = 8  # batches after which what looks shuffled is looked at no more
ALIKE = 0.98  # correlation of the batch means of two passes in one order


@dataclass
class Item:
    """One tensor of the batches: per batch the rows, and of each column mean and sum of squared deviations."""

    width: int
    floating: bool
    rows: list[int] = field(default_factory=list)
    means: list[Any] = field(default_factory=list)
    squares: list[Any] = field(default_factory=list)

    def add(self, columns: Any) -> None:
        """Take in the columns of one batch."""
        mean = columns.mean(0)
        self.rows.append(columns.shape[0])
        self.means.append(mean)
        self.squares.append(((columns - mean) ** 2).sum(0))

    def between(self) -> float:
        """The largest share of a column's variance that lies between batches; 0 when no column varies."""
        return float(self.shares().max(initial=0.0))

    def shares(self) -> Any:
        """Of each column, the share of its variance that lies between batches; 0 where it does not vary."""
        rows = np.asarray(self.rows, dtype=np.float64)[:, None]
        means, within = np.stack(self.means), np.stack(self.squares).sum(0)
        total_mean = (rows * means).sum(0) / rows.sum()
        between = (rows * (means - total_mean) ** 2).sum(0)
        total = between + within
        varies = total > 1e-12 * (1.0 + total_mean**2) * rows.sum()
        return np.where(varies, between / np.where(varies, total, 1.0), 0.0)

    def in_order_of(self, other: Item) -> bool:
        """Whether the batches of another pass had nearly the same means, one after the other."""
        if len(self.means) != len(other.means) or self.rows != other.rows:
            return False
        one, two = np.stack(self.means), np.stack(other.means)
        one, two = one - one.mean(0), two - two.mean(0)
        sizes = np.sqrt((one**2).sum() * (two**2).sum())
        return bool(sizes > 0 and (one * two).sum() >= ALIKE * sizes)


@dataclass
class _Pass:
    loader: int
    site: Site
    work: int = -1
    batches: int = 0
    trained: int = 0
    items: dict[int, Item] = field(default_factory=dict)
    iterated: Site | None = None  # the order is that of a data set which is iterated
    numbers: list[int] | None = None  # of the rows, as a sampler of the program's own gives them
    order: Site = NOWHERE
    shuffled: bool = False  # torch shuffles the numbers that the data set is asked for
    whole: dict[int, int] = field(default_factory=dict)  # of the latest batch: memory of whole numbers, which item
    targets: set[int] = field(default_factory=set)  # items that a loss took for classes


def _order_of(loader: DataLoader[Any]) -> Site | None:
    """Where a data set that is iterated makes its order; None for one that is asked by number."""
    return _defines(loader.dataset, "__iter__") if isinstance(loader.dataset, IterableDataset) else None


def _defines(source: Any, method: str) -> Site:
    """Where the class of a data set or sampler defines a method; NOWHERE for a list."""
    code = getattr(getattr(type(source), method, None), "__code__", None)
    return NOWHERE if code is None else Site(code.co_filename, code.co_firstlineno, code.co_name)


def _getitem_of(dataset: Any) -> Site:
    """Where the program's own class of a data set gives an item; NOWHERE for torch's."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    return _defines(dataset, "__getitem__") if code is not None and _site.is_user_code(code) else NOWHERE


def _as_stored(numbers: list[int]) -> bool:
    """Whether rows come nearly in stored order, shuffled within a short window perhaps."""
    order = np.asarray(numbers, dtype=np.float64)
    return bool(len(order) > 8 and order.std() > 0 and np.corrcoef(order, np.arange(len(order)))[0, 1] >= STORED)


def _tensors(batch: Any, depth: int = 0) -> list[torch.Tensor]:
    if type(batch) is torch.Tensor:
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if (depth < 2 and type(batch) in (list, tuple)) or (isinstance(batch, tuple) and hasattr(batch, "_fields")):
        return [t for part in batch[:ITEMS] for t in _tensors(part, depth + 1)]
    return []


def columns(tensor: torch.Tensor) -> Any:
    """[B, columns] in float64; None when it cannot be looked at."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_complex() or tensor.dim() == 0:
        return None
    if not LEAST_ROWS <= tensor.shape[0] <= tensor.numel() <= ELEMENTS:
        return None
    flat = tensor.detach().reshape(tensor.shape[0], -1)
    step = max(1, flat.shape[1] // COLUMNS)
    found = flat[:, ::step][:, :COLUMNS].to(torch.float64).numpy()
    return found if np.isfinite(found).all() else None


def _look(seen: _Pass, batch: Any) -> None:
    seen.whole.clear()
    for index, tensor in enumerate(_tensors(batch)[:ITEMS]):
        if tensor.dim() == 1 and not tensor.is_floating_point():
            seen.whole[tensor.data_ptr()] = index
        found = columns(tensor)
        if found is None:
            continue
        item = seen.items.setdefault(index, Item(found.shape[1], tensor.is_floating_point()))
        if item.width == found.shape[1]:
            item.add(found)


def install(session: Session) -> Undo:
    """Watch the passes that begin, and the batches of those that are looked at."""
    recorder = session.recorder
    passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
    begun: Counter[tuple[str, int]] = Counter()
    latest: dict[tuple[str, int], dict[int, Item]] = {}  # the pass before, where the order is told by values

    def begins(before: Any, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[0]
        iterated = _order_of(loader)
        own = iterated is None and own_order_of(loader) is not None
        shuffled = iterated is None and not own and is_shuffled(loader)
        order = iterated if iterated is not None else _getitem_of(loader.dataset) if shuffled else NOWHERE
        if not isinstance(iterator, _BaseDataLoaderIter) or (shuffled and not order.file):
            return
        site = _site.here(1)
        if begun[site.key()] >= PASSES:
            return
        begun[site.key()] += 1
        passes[iterator] = _Pass(
            recorder.objects.number(loader), site, iterated=iterated, order=order, shuffled=shuffled
        )
        if own:
            passes[iterator].numbers, passes[iterator].order = [], _defines(own_order_of(loader), "__iter__")

    def ends(seen: _Pass) -> None:
        items = {i: item.between() for i, item in seen.items.items() if len(item.rows) > 2}
        if not items:
            return
        item = max(items, key=lambda i: items[i])
        if seen.iterated is not None or seen.shuffled or (seen.numbers is not None and not _as_stored(seen.numbers)):
            before, latest[seen.site.key()] = latest.get(seen.site.key(), {}), seen.items
            if not any(seen.items[i].in_order_of(before[i]) for i in items if i in before and items[i] >= ORDERED):
                return
        telling = (share for i, share in items.items() if seen.items[i].floating or i in seen.targets)
        recorder.emit(
            BatchesCompared,
            seen.site,
            loader=seen.loader,
            batches=seen.batches,
            rows=seen.items[item].rows[0],
            trained=seen.trained,
            between=items[item],
            between_inputs=max(telling, default=0.0),
            item=item,
            order_site=seen.order,
        )

    def came(before: Any, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen = passes[args[0]]
        work = recorder.backwards + recorder.steps
        seen.trained += seen.batches > 0 and work > seen.work
        seen.work = work
        seen.batches += 1
        _look(seen, batch)
        if seen.shuffled and seen.batches == SOON and not any(i.between() >= ORDERED for i in seen.items.values()):
            del passes[args[0]]  # shuffled indeed
            begun[seen.site.key()] = PASSES
        elif seen.batches == BATCHES:
            del passes[args[0]]
            ends(seen)

    def drawn(before: Any, index: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        numbers = passes[args[0]].numbers
        if numbers is not None and isinstance(index, list) and len(numbers) < NUMBERS:
            numbers.extend(i for i in index if isinstance(i, int))

    def stopped(before: Any, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen = passes.pop(args[0], None)
        if seen is not None and isinstance(error, StopIteration):
            seen.trained += recorder.backwards + recorder.steps > seen.work
            ends(seen)

    def skip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return not passes or args[0] not in passes

    def made(op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        if passes and op.name in CLASS_LOSSES and len(args) > 1 and isinstance(args[1], torch.Tensor):
            for seen in passes.values():
                if (index := seen.whole.get(args[1].data_ptr())) is not None:
                    seen.targets.add(index)

    session.trace.listeners.made.append(made)
    return together(
        lambda: session.trace.listeners.made.remove(made),
        observe(recorder, DataLoader, "__iter__", after=begins),
        observe(recorder, _BaseDataLoaderIter, "__next__", after=came, raised=stopped, skip=skip),
        observe(recorder, _BaseDataLoaderIter, "_next_index", after=drawn, skip=skip),
    )
