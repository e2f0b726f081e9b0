"""Pairs that a network of two alike inputs is asked about after it was trained on them the other way round.

Graphs and comparisons without a direction are often stored as (u, v) and (v, u); a split of those rows leaves the
mirror image of what is asked among what was trained on.  That there is no direction is told by the targets: pairs that
were trained on both ways had the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gradledger.core.events import RowsMet
from gradledger.core.site import Site
from gradledger.ledger._answers import Answers, call_behind
from gradledger.ledger._naming import LOSSES
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._padding import array_of
from gradledger.ledger._patch import Undo, together
from gradledger.ledger._session import Session
from gradledger.ledger.probes.met import LEAST, keys_of

PAIRS = 20_000  # of one module
MODULES, PLACES = 4, 6
ROWS = 4000  # of one call
ALIKE = 0.95  # of the pairs that were trained on both ways have one target
VARIED = 0.7  # of any two pairs, at most, have the same target
CHANCE = 2.0

_Pair = tuple[int, int]


@dataclass
class _Module:
    """`seen`: the pairs trained on, with their targets, in the order of training."""

    site: Site
    seen: dict[_Pair, bytes] = field(default_factory=dict)


@dataclass
class _Asked:
    call: Call
    pairs: list[_Pair]
    before: int


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.trained: dict[int, _Module] = {}
        self.open: dict[int, tuple[Call, list[_Pair], list[bytes]]] = {}
        self.places: dict[tuple[Site, int], list[_Asked]] = {}
        self.answers: Answers[_Asked] = Answers(session.trace, self._evaluated)

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """One forward call of the program itself."""
        pair = [t for t in inputs if isinstance(t, torch.Tensor)]
        if self.session.trace.reversing or not self.session.trace.active or len(pair) != 2:
            return
        one, two = pair
        if one.shape != two.shape or one.dim() < 2 or not 0 < len(one) <= ROWS or not one.is_floating_point():
            return
        known = self.trained.get(call.module)
        if one.requires_grad or two.requires_grad or (not call.grad_on and (known is None or len(one) < LEAST)):
            return
        arrays = array_of(one), array_of(two)
        if arrays[0] is None or arrays[1] is None:
            return
        pairs = list(zip(keys_of(arrays[0]).tolist(), keys_of(arrays[1]).tolist(), strict=True))
        if not call.grad_on and known is not None:
            self.answers.asked(call, [_Asked(call, pairs, len(known.seen))])
        elif known is None or len(known.seen) < PAIRS:
            if len(self.open) > 64:
                self.open.clear()
            self.open[call.number] = call, pairs, []

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        """The answers to pairs are compared with their targets."""
        if not self.open or len(args) < 2 or (op.name not in LOSSES and op.name != "sub"):
            return
        target = args[1]
        if not isinstance(target, torch.Tensor) or target.requires_grad or not target.dim():
            return
        call = call_behind(self.session.trace, op.ins[0])
        known = self.open.get(call.number) if call is not None else None
        values = array_of(target) if known is not None else None
        if known is not None and values is not None and len(values) == len(known[1]) and not known[2]:
            known[2].extend(row.tobytes() for row in values)

    def root(self, root: torch.Tensor, site: Site) -> None:
        """A reverse pass: what it walked was trained on."""
        if not self.session.trace.active:
            return
        self.answers.root(root)
        for number, (call, pairs, targets) in list(self.open.items()):
            if not call.walked:
                continue
            del self.open[number]
            if targets and (call.module in self.trained or len(self.trained) < MODULES):
                seen = self.trained.setdefault(call.module, _Module(call.site)).seen
                for pair, target in zip(pairs, targets, strict=True):
                    seen.setdefault(pair, target)

    def _evaluated(self, asked: _Asked) -> None:
        place = asked.call.site, asked.call.module
        if place in self.places or len(self.places) < PLACES:
            self.places.setdefault(place, []).append(asked)

    def settle(self) -> None:
        """Compare, at the end of the run."""
        self.answers.settle()
        for (site, number), asked in self.places.items():
            module = self.trained[number]
            known = dict(list(module.seen.items())[: max(a.before for a in asked)])
            held = {pair for a in asked for pair in a.pairs} - known.keys()
            turned = [(u, v) in known for v, u in held]
            if len(held) < LEAST or not _without_direction(known):
                continue
            share = float(np.mean(turned))
            ends = {end for pair in known for end in pair}
            if share >= CHANCE * len(known) / len(ends) ** 2:
                counts = {"groups": 0, "rows": len(known), "held": len(held), "within": 0.0, "repeated": 0.0}
                self.session.recorder.emit(
                    RowsMet,
                    site,
                    module=number,
                    how="mirrored",
                    shared=round(share, 4),
                    train_site=module.site,
                    **counts,
                )


def _without_direction(known: dict[_Pair, bytes]) -> bool:
    """Whether pairs that are there both ways have the same target, where targets differ from pair to pair."""
    both = [target == known[v, u] for (u, v), target in known.items() if u < v and (v, u) in known]
    _, counts = np.unique(np.array([hash(target) for target in known.values()]), return_counts=True)
    alike = ((counts / counts.sum()) ** 2).sum()
    return len(both) >= LEAST and bool(np.mean(both) >= ALIKE) and bool(alike <= VARIED)


def install(session: Session) -> Undo:
    """Listen to calls, losses and roots."""
    probe = _Probe(session)
    session.trace.listeners.made.append(probe.made)
    session.at_call.append(probe.called)
    session.at_root.append(probe.root)
    session.at_end.append(probe.settle)
    return together(
        lambda: session.trace.listeners.made.remove(probe.made),
        lambda: session.at_call.remove(probe.called),
        lambda: session.at_root.remove(probe.root),
        lambda: session.at_end.remove(probe.settle),
    )


__all__ = ["install"]
