"""Reverse passes whose gradients the program's own hooks on modules see: curvature statistics, saliency, records.

What such a pass leaves in `.grad` may be thrown away: it has been read on its way.  Hooks on tensors do not count:
most of them change a gradient (clip it, mask it) that is wanted afterwards.
"""

from __future__ import annotations

import torch

from gradledger.core.events import GradientsRead
from gradledger.core.site import Site
from gradledger.ledger._patch import Undo
from gradledger.ledger._session import Session

MAX_PASSES = 64  # that are looked at from one line
_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


def install(session: Session) -> Undo:
    """Look at the modules that were called, after a reverse pass that is watched."""
    recorder, trace = session.recorder, session.trace
    looked: dict[tuple[str, int], int] = {}

    def walked(number: int, roots: list[torch.Tensor], site: Site) -> None:
        seen = looked.get(site.key(), 0)
        if not trace.active or seen >= MAX_PASSES:
            return
        looked[site.key()] = seen + 1
        called = {call.module for call in trace.calls.values() if call.iteration == recorder.iteration}
        modules = (recorder.modules.get(module) for module in called)
        if any(_hooked(module) for module in modules if module is not None):
            recorder.emit(GradientsRead, site, tensors=(), backward=number)

    session.at_pass.append(walked)
    return lambda: session.at_pass.remove(walked)


def _hooked(module: torch.nn.Module) -> bool:
    """Whether the program hung a hook for reverse passes on a module or a part of it."""
    return any(vars(part).get(name) for part in module.modules() for name in _HOOKS)
