"""Programs that turn themselves into graphs: while torch traces a model, nothing is watched.

A tracer runs the model on stand-ins and writes down every operation, names included.  Hooks and modes of ours would be
written down too, and there is nothing to see: no training happens inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.export
import torch.fx
from torch.fx.experimental import proxy_tensor

from gradledger.ledger._jit import same_operation
from gradledger.ledger._patch import Undo, together
from gradledger.ledger._recorder import Recorder
from gradledger.ledger._session import Session

TRACERS: tuple[tuple[Any, str], ...] = (
    (torch.jit, "trace"),
    (torch.jit, "trace_module"),
    (torch.jit, "_get_trace_graph"),
    (torch.fx, "symbolic_trace"),
    (torch.fx.Tracer, "trace"),
    (torch.export, "export"),
    (getattr(proxy_tensor, "_MakefxTracer", None), "trace"),
)


def install(session: Session) -> Undo:
    """Stand back while one of `TRACERS` runs."""
    return together(*(_around(session.recorder, owner, name) for owner, name in TRACERS if hasattr(owner, name)))


def _around(recorder: Recorder, owner: Any, name: str) -> Undo:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with recorder.pause():
            return original(*args, **kwargs)

    setattr(owner, name, traced)
    same_operation(original, traced)

    def undo() -> None:
        if getattr(owner, name) is traced:
            setattr(owner, name, original)

    return undo
