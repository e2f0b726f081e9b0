"""Do the networks that no optimizer moves change at all?  A few of their elements, looked at at growing intervals.

A target network can be updated in more ways than can be observed one by one; whether its values stand still is seen
here. Followed are modules that the program itself calls and whose parameters no optimizer holds."""

from __future__ import annotations

from collections import Counter

import torch

from gradledger.core.events import ValuesCompared
from gradledger.core.site import NOWHERE
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session

MAX_MODULES = 32
MAX_PARAMETERS = 6  # of one module, spread evenly
MAX_ELEMENTS = 24  # of one parameter, spread evenly
ROUNDING = 1e-5  # relative change that counts as none
TAKEN_IN_UNTIL = 20  # iterations in which modules are taken in
MOVES = 3  # looks that may find a module changed before it is followed no more
LOOKS = (12, 25, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 100_000)

_Print = tuple[tuple[float, ...], ...]


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.prints: dict[int, tuple[int, _Print]] = {}
        self.done: set[int] = set()
        self.moves: Counter[int] = Counter()
        self.looked_at = -1

    def step_done(self) -> None:
        iteration = self.recorder.iteration
        if iteration in LOOKS and iteration != self.looked_at:
            self._look()

    def take_in(self) -> None:
        """Follow what was called since; before a reverse pass, while these calls are still on the books."""
        iteration = self.recorder.iteration
        if iteration > TAKEN_IN_UNTIL:
            return
        for call in list(self.session.trace.calls.values())[-MAX_MODULES:]:
            number = call.module
            if number in self.prints or number in self.done or len(self.prints) >= MAX_MODULES:
                continue
            taken = self._print(number)
            if taken is None:
                self.done.add(number)
            else:
                self.prints[number] = (iteration, taken)

    def _look(self) -> None:
        self.looked_at = self.recorder.iteration
        for number, (since, before) in list(self.prints.items()):
            now = self._print(number)
            if now is None:
                del self.prints[number]
                continue
            changed = _differ(before, now)
            self.recorder.emit(ValuesCompared, NOWHERE, module=number, since=since, changed=changed)
            if not changed:
                continue
            self.moves[number] += 1
            if self.moves[number] < MOVES:  # moved once or twice: from here on it may stand still
                self.prints[number] = (self.looked_at, now)
            else:
                del self.prints[number]
                self.done.add(number)

    def _print(self, number: int) -> _Print | None:
        """A few elements of a module's parameters; None when it is gone, has none, or an optimizer holds one."""
        module = self.recorder.modules.get(number)
        if module is None:
            return None
        parameters = list(module.parameters())
        if not parameters:
            return None
        table, held = self.recorder.tensors, self.session.held
        if any(table.find(p) in held for p in parameters):
            return None
        chosen = parameters[:: max(1, len(parameters) // MAX_PARAMETERS)][:MAX_PARAMETERS]
        return tuple(_elements(p) for p in chosen)

    def end(self) -> None:
        if self.recorder.iteration != self.looked_at:
            self._look()


def _differ(before: _Print, now: _Print) -> bool:
    """Whether some element moved by more than rounding does (`t = t * (1 - tau) + t * tau` does not count)."""
    if [len(p) for p in before] != [len(p) for p in now]:
        return True
    return any(
        abs(a - b) > ROUNDING * max(abs(a), abs(b))
        for old, new in zip(before, now, strict=True)
        for a, b in zip(old, new, strict=True)
        if a != b
    )


def _elements(parameter: torch.Tensor) -> tuple[float, ...]:
    if parameter.device.type == "meta" or not parameter.is_floating_point() or parameter.is_sparse:
        return ()
    flat = parameter.detach().reshape(-1)
    stride = max(1, flat.numel() // MAX_ELEMENTS)
    return tuple(_steady(x) for x in flat[::stride][:MAX_ELEMENTS].tolist())


def _steady(value: float) -> float:
    """NaN equals nothing, not even itself: here it stands still."""
    return value if value == value else float("inf")


def install(session: Session) -> Undo:
    """Look after steps, and once more at the end."""
    probe = _Probe(session)

    def after_step() -> None:
        with session.recorder.guard("standstill"):
            probe.step_done()

    def before_backward() -> None:
        with session.recorder.guard("standstill"):
            probe.take_in()

    session.step_done.append(after_step)
    session.at_backward.append(before_backward)
    session.at_end.append(probe.end)
    return lambda: None
