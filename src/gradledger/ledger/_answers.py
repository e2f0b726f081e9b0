"""What was asked of a module without a graph: to evaluate it, or for the target of a loss (a bootstrap, a teacher)?

The answer tells: the values of a target enter a root that is walked, those of an evaluation never do.  A call waits
here until one of the two is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from gradledger.ledger._naming import VIEWS
from gradledger.ledger._operations import Call
from gradledger.ledger._trace import Trace

Given = TypeVar("Given")

WAITS = 4  # iterations in which an answer may still become a target
KEPT = 256
VIEWED = 4  # times, between an answer and its loss
VISITS = 4000  # values below a root


def call_behind(trace: Trace, token: int) -> Call | None:
    """The module call whose output a value is, perhaps seen in another shape."""
    answer = trace.values.get(token)
    for _ in range(VIEWED):
        if answer is None or answer.call is not None or answer.op is None or answer.op.name not in VIEWS:
            break
        answer = trace.values.get(answer.op.ins[0])
    return answer.call if answer is not None else None


class Answers(Generic[Given]):
    """Calls without graph and what they were given, until it is known what for; evaluations are told on."""

    def __init__(self, trace: Trace, evaluated: Callable[[Given], None]) -> None:
        self.trace = trace
        self.evaluated = evaluated
        self.waiting: dict[int, tuple[Call, list[Given]]] = {}

    def asked(self, call: Call, given: list[Given]) -> None:
        """A call without graph has been given these."""
        self.waiting[call.number] = call, given
        if len(self.waiting) > KEPT:
            self._evaluation(next(iter(self.waiting)))

    def root(self, root: torch.Tensor) -> None:
        """A root is walked: answers below it are targets; answers that have waited long enough are evaluations."""
        wanted = {token: number for number, (call, _) in self.waiting.items() for token in call.outputs}
        queue = [self.trace.token_of(root)] if wanted else []
        seen = set(queue)
        while queue and len(seen) < VISITS:
            token = queue.pop()
            if token in wanted:
                self.waiting.pop(wanted[token], None)
            value = self.trace.values.get(token)
            below = value.op.ins if value is not None and value.op is not None else ()
            queue += [t for t in below if t not in seen]
            seen.update(below)
        oldest = self.trace.recorder.iteration - WAITS
        for number in [n for n, (call, _) in self.waiting.items() if call.iteration < oldest]:
            self._evaluation(number)

    def settle(self) -> None:
        """The run is over: no loss will ask for these answers any more."""
        for number in list(self.waiting):
            self._evaluation(number)

    def _evaluation(self, number: int) -> None:
        for held in self.waiting.pop(number)[1]:
            self.evaluated(held)


__all__ = ["Answers"]
