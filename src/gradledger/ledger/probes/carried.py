"""Was everything put back with a loaded state?  Before the first step over a network that was filled from a file, the
program's own objects are compared with those that stood in their place when the state was taken."""

from __future__ import annotations

import torch

from gradledger.core.events import LeavesNotPutBack, NotPutBack
from gradledger.core.site import Site
from gradledger.ledger._carried import Around, Lost, around, draws, leaves_lost, leaves_of, lost
from gradledger.ledger._patch import Undo
from gradledger.ledger._registry import tree_tensors
from gradledger.ledger._session import Session
from gradledger.ledger._states import States

TOLD = 32


class _Probe:
    def __init__(self, session: Session) -> None:
        self.recorder = session.recorder
        self.waiting: list[tuple[int, Site, list[Lost]]] = []  # loaded module, line of the load, what it left
        self.told: set[tuple[str, tuple[str | int, ...]]] = set()
        self.missing: list[tuple[int, Site, Around]] = []  # as `waiting`, for leaves that no module owns

    def loaded(self, module: torch.nn.Module, number: int, site: Site, then: Around) -> None:
        """A module was filled from the file of a state that was taken in this process."""
        if len(self.waiting) < TOLD:
            self.waiting.append((number, site, list(lost(then, around(module)))))
            if then.leaves:
                self.missing.append((number, site, then))

    def before_step(self, tensors: list[torch.Tensor], site: Site) -> None:
        if self.missing:
            missing, self.missing = self.missing, []
            for number, line, then in missing:
                self._leaves(number, line, then)
        if not self.waiting:
            return
        held = {id(t) for t in tensors}
        modules = [self.recorder.modules.get(number) for number, _, _ in self.waiting]
        if not any(held & {id(t) for _, t in tree_tensors(m).values()} for m in modules if m is not None):
            return
        waiting, self.waiting = self.waiting, []
        # from the last load on: what one of several puts back was not there yet when the first was done
        for number, line, left in reversed(waiting):
            for one in left:
                names, moved, once = one.still()
                given = (*names, *moved, *once)
                if given and (one.carried.cls, given) not in self.told and len(self.told) < TOLD:
                    self.told.add((one.carried.cls, given))
                    self.recorder.emit(
                        NotPutBack,
                        line,
                        module=number,
                        owner=one.carried.owner,
                        cls=one.carried.cls,
                        names=names,
                        cls_site=one.carried.site,
                        taken_site=one.taken,
                        arrays=tuple(n for n in given if not isinstance(one.carried.values[n], float)),
                        moved=moved,
                        once=once,
                        generators=tuple(n for n in given if draws(one.carried.values[n])),
                    )

    def _leaves(self, number: int, line: Site, then: Around) -> None:
        """Before the first step after the load, of whatever optimizer: a leaf moves with its own."""
        newest = max(leaves.optimizer for leaves in then.leaves.values())
        for kind, now in leaves_of(self.recorder, after=newest).items():
            left = leaves_lost(then.leaves[kind], now) if kind in then.leaves else ()
            if left and (kind[0], left) not in self.told and len(self.told) < TOLD:
                self.told.add((kind[0], left))
                self.recorder.emit(
                    LeavesNotPutBack,
                    line,
                    module=number,
                    optimizer=now.optimizer,
                    tensors=left,
                    taken_site=then.site,
                )


def install(session: Session) -> Undo:
    """Compare what objects carry, when a state is loaded and before the next step."""
    probe = _Probe(session)
    states = session.recorder.part(States)
    states.put_back = probe.loaded
    session.at_step.append(probe.before_step)

    def undo() -> None:
        session.at_step.remove(probe.before_step)
        states.put_back = None

    return undo
