"""Rows that a network is asked about after it was trained on them, or on their near relatives, told by value.

`splits` follows the numbers of rows from tables that torch knows; most programs split before that: with numpy, with
sklearn, by a data set of their own.  Here the inputs themselves are kept, of watched calls, and compared at the end.
Only what was trained on before a call counts, by the very module that is asked.  Where some of the answers alone are
trained on (the nodes of a graph that are for training), nobody knows by the inputs which these were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gradledger.core.events import RowsMet
from gradledger.core.site import Site
from gradledger.ledger import _related, _site
from gradledger.ledger._answers import Answers
from gradledger.ledger._counts import CLASS_LOSSES, COUNTED
from gradledger.ledger._naming import LOSSES
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._padding import array_of
from gradledger.ledger._patch import Undo
from gradledger.ledger._registry import Registry
from gradledger.ledger._restarts import Restarts
from gradledger.ledger._session import Session
from gradledger.ledger._values import readable

LEAST = 8  # rows of one evaluation
ROWS = 4000  # kept of what a module is trained on
ASKED = 1200  # and of what it is asked at one place
WIDTH = 2048  # elements of a row
ELEMENTS = 1_000_000  # kept for one module, on either side
MODULES, PLACES = 4, 8
TRAINED, HELD = 900, 300  # compared pair by pair
STEPS = 8  # from an answer to where rows of it are picked
COLUMNS = 3  # of a row, at least: fewer meet by chance
LABELS = 1.5  # groups for each class
SAME = 0.1  # of the rows asked for
COPIES = 0.05  # of the typical distance: nearer rows are copies, and no class
WHOLE = 0.9  # of them: the rows are those of training

_PICKS = frozenset({"getitem", "index_select", "masked_select"})  # ways to leave out rows
_DRAWN = frozenset(
    {"uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_",
     "orthogonal_"}
)  # fmt: skip
_LEAVES_OUT = _PICKS | CLASS_LOSSES | {"mul"}
_Key = tuple[int, tuple[int, ...], str, int]  # module, shape and kind of a row, which life of the module


@dataclass(slots=True)
class _Trained:
    """Of one module and shape of rows: the rows in the order of training."""

    site: Site
    rows: list[Any] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class _Asked:
    """What a module was asked at one place, and how many rows it had been trained on each time."""

    site: Site
    key: _Key
    rows: list[Any] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    count: int = 0


_Place = tuple[_Key, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Question:
    call: Call
    place: _Place
    rows: Any
    before: int


@dataclass(frozen=True, slots=True)
class _Met:
    """What was asked at one place, and what had been trained on by then: the rows of both, and a number for each."""

    place: _Asked
    known: _Trained
    mine: Any
    theirs: Any
    my_keys: Any
    their_keys: Any


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.trained: dict[_Key, _Trained] = {}
        self.asked: dict[_Place, _Asked] = {}
        self.open: dict[int, tuple[Call, _Key, Any]] = {}
        self.classes: set[bytes] = set()  # targets that are whole numbers
        self.judged = False  # a target was seen
        self.rebuilt = False  # ... that was the input itself
        self.restarts = session.recorder.part(Restarts)
        self.answers: Answers[_Question] = Answers(session.trace, self._evaluated)

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.session.trace.reversing or not self.session.trace.active:
            return
        tensor = next((t for t in inputs if isinstance(t, torch.Tensor) and t.dim() > 1), None)
        if tensor is None or not COLUMNS <= tensor.numel() // max(1, tensor.shape[0]) <= WIDTH:
            return
        life = self.restarts.of(call.module, trains=call.grad_on)
        key = (call.module, tuple(tensor.shape[1:]), str(tensor.dtype), life)
        known = self.trained.get(key)
        if call.grad_on:
            if known is None or known.count < min(ROWS, ELEMENTS // _width(key)):
                if len(self.open) > 64:
                    self.open.clear()
                if (rows := _copied(tensor)) is not None:
                    self.open[call.number] = call, key, rows
        elif known is not None and tensor.shape[0] >= LEAST:
            asked = key, _site.way()
            place = self.asked.get(asked)
            room = place.count < min(ASKED, ELEMENTS // _width(key)) if place is not None else len(self.asked) < PLACES
            if room and (rows := _copied(tensor)) is not None:
                self.answers.asked(call, [_Question(call, asked, rows, known.count)])

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        """A target says how many classes there are: clusters may be classes."""
        if op.name in _LEAVES_OUT and self.open:
            self._picked(op, args, outs)
        if op.name not in LOSSES and not (op.name in ("sub", "rsub") and results[0].graph and not op.in_forward):
            return
        sides = [a for a in args[:2] if isinstance(a, torch.Tensor) and a.dim()]
        target = sides[-1] if len(sides) == 2 and sides[-1] is args[1] else None
        if target is not None and target.requires_grad and op.name not in LOSSES:
            target = sides[0]  # `target - answer`
        if target is not None:
            if target.requires_grad or target.numel() > 65_536 or target.is_complex() or not readable(target):
                return
            self.judged = True
            token = self.session.trace.tokens.find(target)
            self.rebuilt = self.rebuilt or any(token in call.given for call, _, _ in self.open.values())
            values = target.detach().reshape(target.shape[0], -1)
            whole = not values.is_floating_point() or bool((values == values.round()).all())
            if whole and values.shape[1] <= 64 and len(self.classes) < ROWS:
                self.classes.update(row.numpy().tobytes() for row in torch.unique(values, dim=0))

    def written(self, target: torch.Tensor, source: torch.Tensor | None, raw: str, tau: float | None, op: Op) -> None:
        """A parameter is drawn anew: its module, and what holds that, begins another life."""
        if raw not in _DRAWN or not self.trained:
            return
        number = self.session.recorder.tensors.find(target)
        registry = self.session.recorder.part(Registry)
        owner = registry.owners.get(number) if number is not None else None
        if owner is not None:
            self.restarts.loaded.update(registry.ancestors(owner.module))

    def _picked(self, op: Op, args: Any, outs: list[torch.Tensor]) -> None:
        """Answers to some of the rows of a call are left out by a mask, by numbers or by an ignored target: not all
        that it was given is trained on."""
        whole = self._rows_left_out(op, args, outs)
        value = self.session.trace.values.get(whole) if whole is not None else None
        for _ in range(STEPS):
            if value is None or not value.graph:
                return
            if value.call is not None and value.call.number in self.open:
                if value.shape and value.shape[0] == len(self.open[value.call.number][2]):
                    del self.open[value.call.number]
                return
            value = self.session.trace.values.get(value.op.ins[0]) if value.op is not None and value.op.ins else None

    def _rows_left_out(self, op: Op, args: Any, outs: list[torch.Tensor]) -> int | None:
        """The value of which an operation leaves out rows; None when it does not."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if not tensors or not tensors[0].dim() or not outs or not op.ins:
            return None
        rows = tensors[0].shape[0]
        if op.name in _PICKS:
            index = args[1:] if op.name == "getitem" else args[-1:]
            fewer = bool(outs[0].dim()) and outs[0].shape[0] != rows
            one = len(index) == 1 and isinstance(index[0], (torch.Tensor, list, np.ndarray))
            return op.ins[0] if one and fewer else None
        if op.name in CLASS_LOSSES:
            whole = len(tensors) > 1 and tensors[1].shape == (rows,)
            return op.ins[0] if whole and op.options.get(COUNTED, rows) < rows else None
        if op.name == "mul" and len(tensors) == len(op.ins) == 2 and not op.in_forward:
            for token, tensor, mask in zip(op.ins, tensors, reversed(tensors), strict=True):
                each = mask.dim() and mask.shape[0] == mask.numel() == tensor.shape[:1].numel() and readable(mask)
                if each and tensor.requires_grad and not mask.requires_grad and bool((mask == 0).any()):
                    return token
        return None

    def root(self, root: torch.Tensor, site: Site) -> None:
        if not self.session.trace.active:
            return
        self.answers.root(root)
        for number, (call, key, rows) in list(self.open.items()):
            if not call.walked:
                continue
            del self.open[number]
            answer = self.session.trace.values.get(call.outputs[0]) if call.outputs else None
            if answer is not None and answer.shape and answer.shape[0] < len(rows):
                continue  # rows are picked within
            known = self.trained.get(key)
            if known is None:
                if len(self.trained) >= MODULES:
                    continue
                known = self.trained[key] = _Trained(call.site)
            known.rows.append(rows)
            known.count += len(rows)

    def _evaluated(self, question: _Question) -> None:
        key = question.place
        if key not in self.asked and len(self.asked) >= PLACES:
            return
        place = self.asked.setdefault(key, _Asked(question.call.site, key[0]))
        place.rows.append(question.rows)
        place.before.append(question.before)
        place.count += len(question.rows)

    # ------------------------------------------------------------------ at the end

    def settle(self) -> None:
        """Compare."""
        self.answers.settle()
        met = []
        for place in self.asked.values():
            known = self.trained.get(place.key)
            if known is None or known.count < 20 or place.count < LEAST:
                continue
            mine = np.concatenate(known.rows)[: max(place.before)]
            if len(mine) >= 20:
                theirs = np.concatenate(place.rows)
                met.append(_Met(place, known, mine, theirs, keys_of(mine), keys_of(theirs)))
        shares = [float(np.isin(one.their_keys, one.my_keys).mean()) for one in met]
        for one, share in zip(met, shares, strict=True):
            site = one.place.site
            others = [(o.place.site, s) for o, s in zip(met, shares, strict=True) if o is not one]
            if share > WHOLE and any(other == site and s <= WHOLE for other, s in others):
                continue  # one line asks about the rows of training and about others: these are the former
            self._compare(one, any(other.key() == site.key() and s > WHOLE > share for other, s in others))

    def _compare(self, one: _Met, beside: bool) -> None:
        place, mine, theirs, keys = one.place, one.mine, one.theirs, one.their_keys
        before = np.repeat(place.before, [len(rows) for rows in place.rows])
        mine_keys, first_trained = np.unique(one.my_keys, return_index=True)
        at = np.searchsorted(mine_keys, keys).clip(max=len(mine_keys) - 1)
        known = (mine_keys[at] == keys) & (first_trained[at] < before)
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        asked = len(first)
        if asked < LEAST:
            return
        same = np.bincount(which.reshape(-1), weights=known) > 0
        repeated = round(_repeats(place.rows), 4)
        values = {
            "module": place.key[0],
            "rows": len(mine_keys),
            "held": asked,
            "repeated": repeated,
            "train_site": one.known.site,
            "beside": beside,
        }
        emit = self.session.recorder.emit
        share = float(same.mean())
        by_chance = 0.0 if mine.dtype.kind == "f" else _by_chance(one.known.rows, len(mine_keys))
        different = len(mine_keys) if repeated < SAME else 0
        if share >= max(SAME, 2 * by_chance) and same.sum() >= LEAST and _telling(mine, different):
            emit(RowsMet, place.site, how="same", groups=0, shared=round(share, 4), within=0.0, **values)
        fresh = theirs[np.sort(first[~np.isin(keys[first], mine_keys)])]
        if share > 0.5 or len(fresh) < LEAST or mine.dtype.kind != "f":
            return
        mine, fresh = _spread(mine[np.sort(first_trained)], TRAINED), _spread(fresh, HELD)
        both, order = np.concatenate([mine, fresh]), np.arange(len(mine) + len(fresh))
        labels = [np.zeros(len(both))]  # (classes are counted here, over all targets)
        found = _related.related(both, labels, order[: len(mine)], order[len(mine) :], stored=False)
        if found is None:
            return
        if found.how == "groups" and (not self.judged or found.groups < LABELS * max(1, len(self.classes))):
            return
        if found.how == "groups" and self.rebuilt and not self.classes and found.within > COPIES:
            return  # an autoencoder is told no classes: these may be they
        shares = {"shared": round(found.shared, 4), "within": round(found.within, 4)}
        emit(RowsMet, place.site, how=found.how, groups=found.groups, **shares, **values)


def _width(key: _Key) -> int:
    return max(1, int(np.prod(key[1])))


def _copied(tensor: torch.Tensor) -> Any:
    array = array_of(tensor)
    return np.array(array[:ASKED]) if array is not None and array.dtype.kind in "fiu" else None


def keys_of(rows: Any) -> Any:
    """One number for each row, by its bytes."""
    raw = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8).astype(np.uint64)
    weights = np.random.Generator(np.random.PCG64(1)).integers(1, 2**63, raw.shape[1], dtype=np.uint64)
    return (raw * weights).sum(1, dtype=np.uint64)


def _repeats(batches: list[Any]) -> float:
    """The share of rows that are there more than once within what was asked at one go (the first batch of many)."""
    keys = keys_of(max(batches, key=len))
    _, counts = np.unique(keys, return_counts=True)
    return float(counts[counts > 1].sum() / len(keys))


def _by_chance(batches: list[Any], rows: int) -> float:
    """The share of rows of a discrete kind (tokens) that one would meet again among `rows` others by chance alone, at
    most: as often as two rows of one batch are equal."""
    pairs = equal = 0
    for batch in batches:
        _, counts = np.unique(keys_of(batch), return_counts=True)
        pairs += len(batch) * (len(batch) - 1) // 2
        equal += int((counts * (counts - 1) // 2).sum())
    return rows * (equal + 3) / max(pairs, 1)  # (three more may well have been missed)


def _telling(rows: Any, different: int = 0) -> bool:
    """Whether equal rows are the same rows: no grid, no counted or mostly constant thing.  `different`: how many there
    are, over many epochs, that do not come again within one (0: some do); most have a number of their own then."""
    flat = rows.reshape(len(rows), -1)
    values = [len(np.unique(column)) for column in flat[:, :: max(1, flat.shape[1] // 64)].T]
    if flat.dtype.kind == "f":
        least = len(flat) / 8
        return max(values) > (min(least, max(different / 2, 20)) if different else least)
    return bool(np.log(np.maximum(values, 1)).sum() > 2 * np.log(len(flat)) + 3)  # tokens: many rows could be


def _spread(rows: Any, most: int) -> Any:
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(int)]


def install(session: Session) -> Undo:
    """Listen to calls, roots and losses."""
    probe = _Probe(session)
    session.trace.listeners.made.append(probe.made)
    session.trace.listeners.written.append(probe.written)
    session.at_call.append(probe.called)
    session.at_root.append(probe.root)
    session.at_end.append(probe.settle)

    def undo() -> None:
        session.trace.listeners.made.remove(probe.made)
        session.trace.listeners.written.remove(probe.written)
        session.at_call.remove(probe.called)
        session.at_root.remove(probe.root)
        session.at_end.remove(probe.settle)

    return undo


__all__ = ["LEAST", "install", "keys_of"]
