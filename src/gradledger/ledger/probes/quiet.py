"""Blocks in which no graph is recorded: where a program begins to evaluate, as far as it shows without a loader.

Calls of modules are seen only while the run is watched in full, and an evaluation that is written as one call on a
tensor falls between the samples.  So the first calls of such blocks are watched in full, as those of a pass over a
loader are: more rarely the longer a line repeats, at once when the modes at a line are others than before.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from gradledger.ledger._frames import is_ours
from gradledger.ledger._moody import Moody
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

_BLOCKS = (torch.no_grad, torch.inference_mode)


def install(session: Session) -> Undo:
    """Watch the beginning of the blocks; as decorators they come by the same way."""
    recorder = session.recorder
    moody = recorder.part(Moody)

    def skip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not recorder.backwards or session.trace.optimizer_running:
            return True  # nothing is trained yet, or it is the optimizer's own arithmetic
        return is_ours(sys._getframe(2).f_code)

    def begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder.new_phase(moody.modes())

    return together(*(observe(recorder, block, "__enter__", before=begins, skip=skip) for block in _BLOCKS))
