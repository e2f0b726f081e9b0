"""Blocks in which no graph is recorded: where a program begins to evaluate, as far as it shows without a loader.

Calls of modules are seen only while the run is watched in full, and an evaluation that is written as one call on a
tensor falls between the samples.  So the first calls of such blocks are watched in full, as those of a pass over a
loader are: more rarely the longer a line repeats, at once when the modes at a line are others than before.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from gradledger.ledger._moody import Moody
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session
from gradledger.ledger._site import is_user_code

_BLOCKS = (torch.no_grad, torch.inference_mode)
_DECORATED = "decorate_context"  # in torch: what a function becomes that has such a block as decorator


def _place(frame: FrameType) -> tuple[str, int, int]:
    """The instruction that runs.  Code objects themselves make slow keys: they are hashed by their contents."""
    code = frame.f_code
    return code.co_filename, code.co_firstlineno, frame.f_lasti


def install(session: Session) -> Undo:
    """Watch the beginning of the blocks; as decorators they come by the same way."""
    recorder = session.recorder
    moody = recorder.part(Moody)
    due = [0]  # calls to be watched from here on

    def skip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Programs may enter such a block in every iteration: what is not due costs next to nothing."""
        if not recorder.backwards or session.trace.optimizer_running or not recorder.enabled:
            return True  # nothing is trained yet, or it is the optimizer's own arithmetic
        frame = sys._getframe(2)
        above = frame.f_back or frame  # of a decorated function, whose block begins in torch: who called it
        begun = above if frame.f_code.co_name == _DECORATED else frame
        if not is_user_code(begun.f_code):
            return True  # torch's own, as when it clips: no evaluation
        due[0] = recorder.phase_calls((_place(frame), _place(above), moody.modes()))
        return not due[0]

    def begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder.watch_calls(due[0])

    return together(*(observe(recorder, block, "__enter__", before=begins, skip=skip) for block in _BLOCKS))
