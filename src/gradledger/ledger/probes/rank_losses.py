"""What a rank learns from, however it comes by its data: the inputs of its forward calls and the loss of its passes.

Losses of the first reverse passes, and digests of what the network was given since the pass before; they are compared
when the ledgers of all ranks lie side by side.  A loss stands before any averaging, also under
DistributedDataParallel, which averages gradients while they are filled.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from gradledger.core.events import RankLoss
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._digest import digest, flat_tensors
from gradledger.ledger._operations import Call
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session
from gradledger.ledger.probes import ranks

PASSES = 8
CALLS = 16  # of one pass
DEPTH = 4  # operations behind an input whose lines are told
LINES = 4


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.told = 0
        self.digests: list[str] = []
        self.call_site: Site = NOWHERE
        self.made: tuple[Site, ...] = ()

    def called(self, call: Call, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """The program has called a module: keep what it was given until the reverse pass."""
        if self.told >= PASSES or not call.grad_on or len(self.digests) >= CALLS or ranks.place()[1] < 2:
            return
        given = [t for t in flat_tensors(inputs) if not t.requires_grad]
        found = digest(given) if given else ""
        if not found:
            return
        if not self.digests:
            self.call_site, self.made = call.site, self._made(given)
        self.digests.append(found)

    def _made(self, tensors: list[torch.Tensor]) -> tuple[Site, ...]:
        """Lines that made these tensors: the operation itself, then those that it took its operands from."""
        trace = self.session.trace
        if not trace.active:
            return ()
        lines: dict[tuple[str, int], Site] = {}
        level = [trace.value_of(t).token for t in tensors]
        for _ in range(DEPTH):
            ops = [v.op for token in level if (v := trace.values.get(token)) is not None and v.op is not None]
            for op in ops:
                if op.site.file:
                    lines.setdefault(op.site.key(), op.site)
            level = [token for op in ops for token in op.ins]
        return tuple(lines.values())[:LINES]

    def passed(self, number: int, roots: list[torch.Tensor], site: Site) -> None:
        """A reverse pass is over."""
        digests, self.digests = self.digests, []
        rank, world = ranks.place()
        if self.told >= PASSES or world < 2 or not roots:
            return
        loss = digest([roots[0]])
        if not loss:
            return
        self.told += 1
        joined = hashlib.blake2b("".join(digests).encode(), digest_size=8).hexdigest() if digests else ""
        self.session.recorder.emit(
            RankLoss,
            site,
            rank=rank,
            world=world,
            index=self.told,
            loss=loss,
            value=float(roots[0].detach()) if roots[0].numel() == 1 else None,
            inputs=joined,
            call_site=self.call_site if digests else NOWHERE,
            made=self.made if digests else (),
        )


def install(session: Session) -> Undo:
    """Listen to forward calls and reverse passes."""
    probe = _Probe(session)

    def passed(number: int, roots: list[torch.Tensor], site: Site) -> None:
        with session.recorder.guard("rank losses"):
            probe.passed(number, roots, site)

    session.at_call.append(probe.called)
    session.at_pass.append(passed)

    def undo() -> None:
        session.at_call.remove(probe.called)
        session.at_pass.remove(passed)

    return undo
