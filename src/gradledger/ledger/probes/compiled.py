"""torch.compile: from the first compile on, operations are no longer looked at one by one.

The compiler traces function modes and module hooks into the program it builds; watching there would change what is
compiled.  The lifecycle of gradients (backwards, clears, steps) needs neither and goes on.
"""

from __future__ import annotations

from typing import Any

import torch

from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session


def install(session: Session) -> Undo:
    """Stand back when the program compiles."""

    def before(*_: Any) -> None:
        session.recorder.forbid_detail(
            "compile",
            "the program uses torch.compile: operations and module calls are not looked at one by one after that",
        )

    return together(
        observe(session.recorder, torch, "compile", before=before, abroad=before),
        observe(session.recorder, torch.nn.Module, "compile", before=before, abroad=before),
    )
