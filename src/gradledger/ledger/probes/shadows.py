"""Averages of parameters that a program keeps by hand, in a list or dict of plain tensors.

Of each blend of a parameter with a tensor that no module registers it is told which parameter that was, whether the
tensor is that parameter's own memory, and whether the result went anywhere: one that no operation used, whose memory is
gone, and whose old value is blended again the next time was given a name and forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gradledger.core.events import ShadowAveraged
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._blends import BLENDS, Blend, blend_of
from gradledger.ledger._often import Often
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._registry import Registry
from gradledger.ledger._session import Session
from gradledger.ledger._values import same_memory

MOST = 4096  # blends of one iteration
_weak: Any = StorageWeakRef  # has no type annotations


@dataclass(slots=True)
class _Seen:
    blend: Blend
    token: int
    result: Any  # weak reference to its memory, which a parameter or an array may have by now; None: written in place
    shared: bool = False
    made_site: Site = NOWHERE


class _Probe:
    def __init__(self, session: Session) -> None:
        self.recorder = session.recorder
        self.trace = session.trace
        self.registry = session.recorder.part(Registry)
        self.seen: dict[tuple[str, int], list[_Seen]] = {}
        self.sites: dict[tuple[str, int], Site] = {}
        self.before: dict[tuple[tuple[str, int], int], int] = {}
        self.often = Often()

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        if op.name not in BLENDS or op.in_forward or self.trace.optimizer_running or self.trace.reversing:
            return
        blend = blend_of(self.trace, op, results[0])
        if blend is None or not op.site.line or blend.parameter not in self.registry.owners:
            return
        parameter = self.recorder.tensors.get(blend.parameter)
        shared = op.inplace and parameter is not None and same_memory(outs[0], parameter)
        if blend.other is None and not shared:
            return
        seen = self.seen.setdefault(op.site.key(), [])
        self.sites.setdefault(op.site.key(), op.site)
        if len(seen) < MOST:
            result = None if op.inplace else _weak(outs[0].untyped_storage())
            seen.append(_Seen(blend, results[0].token, result, shared, self._taken(op) if shared else NOWHERE))

    def _taken(self, op: Op) -> Site:
        """Where the alias that is written was taken."""
        token = op.ins[0]
        for _ in range(4):
            value = self.trace.values.get(token)
            if value is None or value.op is None or not value.op.ins:
                break
            if value.op.name in ("data", "detach"):
                return value.op.site
            token = value.op.ins[0]
        return NOWHERE

    def flush(self, iteration: int = 0) -> None:
        """The iteration is over: tell what became of its blends."""
        seen, self.seen = self.seen, {}
        anew = any(one.result is not None for blends in seen.values() for one in blends)
        used = frozenset(self._used()) if anew else frozenset()
        for key, blends in seen.items():
            lost = sum(self._lost(key, one, used) for one in blends)
            shared = [one for one in blends if one.shared]
            taus = Counter(one.blend.tau for one in blends)
            parameters = tuple(dict.fromkeys(one.blend.parameter for one in blends))
            old = tuple(p for p in parameters if self._replaced(p))
            if self.often.worth_telling((key, bool(lost), parameters, old), first=8):
                self.recorder.emit(
                    ShadowAveraged,
                    self.sites[key],
                    tensors=parameters,
                    tau=round(taus.most_common(1)[0][0], 9),
                    lost=lost,
                    shared=len(shared),
                    made_site=next((one.made_site for one in shared if one.made_site.file), NOWHERE),
                )

    def _replaced(self, parameter: int) -> bool:
        owner = self.registry.owners.get(parameter)
        return owner is not None and self.registry.places.get((owner.module, owner.name)) != parameter

    def _lost(self, key: tuple[str, int], one: _Seen, used: frozenset[int]) -> bool:
        """Whether the result is gone unused, and the value before it is what is blended every time."""
        place, other = (key, one.blend.parameter), one.blend.other
        if other is None or one.result is None:
            return False
        again = self.before.get(place) == other
        self.before[place] = other
        if len(self.before) > MOST:
            self.before.clear()
        return again and one.result.expired() and one.token not in used

    def _used(self) -> Iterator[int]:
        """Values that an operation was given, or that left the world of tensors."""
        for value in self.trace.values.values():
            if value.op is not None:
                yield from value.op.ins
        for exit_ in self.trace.exits:
            yield exit_.token


def install(session: Session) -> Undo:
    """Listen to the operations of watched iterations."""
    probe, recorder = _Probe(session), session.recorder

    def turn(iteration: int) -> None:
        if probe.seen:
            with recorder.guard("shadows"):
                probe.flush(iteration)

    def at_end() -> None:
        probe.flush()

    session.trace.listeners.made.append(probe.made)
    recorder.on_iteration.append(turn)
    session.at_end.append(at_end)

    def undo() -> None:
        session.trace.listeners.made.remove(probe.made)
        recorder.on_iteration.remove(turn)

    return undo
