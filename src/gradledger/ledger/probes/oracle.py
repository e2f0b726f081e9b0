"""The oracle, when it was asked for: consumed gradients explained by gradients recomputed on copies."""

from __future__ import annotations

import torch

from gradledger.core.events import OracleAbstained, OracleExplained
from gradledger.core.site import Site
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session


def install(session: Session) -> Undo:
    """Listen to the trace, to passes and to steps; nothing at all when the oracle is off."""
    if not session.oracle:
        return lambda: None
    from gradledger.ledger._oracle import Explained, Oracle

    oracle = Oracle(session)
    recorder = session.recorder
    recorder.attention.wanted = oracle.sampling

    def ran(*facts: object) -> None:
        if oracle.sampled and not session.trace.reversing and not session.trace.optimizer_running:
            oracle.tape.ran(*facts)  # type: ignore[arg-type]

    def begin(iteration: int) -> None:
        with recorder.guard("oracle"):
            oracle.begin(iteration)

    def before_pass() -> None:
        with recorder.guard("oracle"), torch.no_grad():
            oracle.before_pass()

    def after_pass(number: int, roots: list[torch.Tensor], site: Site) -> None:
        with recorder.guard("oracle"):
            oracle.after_pass(number, roots, site)

    def at_step(tensors: list[torch.Tensor], site: Site) -> None:
        if not oracle.sampled:
            return
        with recorder.guard("oracle"), torch.no_grad():
            step(tensors, site)

    def step(tensors: list[torch.Tensor], site: Site) -> None:
        number = session.trace.optimizer_running
        if not number:  # told when it has run, and the values it used are gone
            what = "the step calls a closure and may walk several losses"
            recorder.emit(OracleAbstained, site, optimizer=0, reason="closure", what=what)
            return
        for one in oracle.at_step(tensors):
            if isinstance(one, Explained):
                solution = one.solution
                recorder.emit(
                    OracleExplained,
                    site,
                    optimizer=number,
                    tensors=one.tensors,
                    fit=solution.fit,
                    shares=one.shares,
                    scale=solution.scale,
                    residual=solution.residual,
                    tolerance=solution.tolerance,
                )
            else:
                recorder.emit(
                    OracleAbstained, site, optimizer=number, reason=one.code, what=one.what, where=one.site
                )  # fmt: skip

    session.trace.listeners.ran.append(ran)
    recorder.on_iteration.append(begin)
    session.at_backward.append(before_pass)
    session.at_pass.append(after_pass)
    session.at_step.append(at_step)
    return lambda: None
