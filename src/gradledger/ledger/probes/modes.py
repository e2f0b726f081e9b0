"""Train and eval mode: who set it, and which layers moved their running statistics because of it."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gradledger.core.events import ModeSet, StatisticsMoved
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._often import Often
from gradledger.ledger._patch import Nest, Undo, observe, together
from gradledger.ledger._registry import tensors_of, tree
from gradledger.ledger._session import Session
from gradledger.ledger.probes.modules import know

KEPT = 64  # roots whose last switch to train mode is remembered


class Modes:
    """Where modules were last put into train mode."""

    def __init__(self) -> None:
        self.often = Often()
        self.seen: dict[tuple[int, bool], int] = {}
        self._trained: list[tuple[weakref.ref[torch.nn.Module], Site]] = []

    def trained(self, root: torch.nn.Module, site: Site) -> None:
        """`root.train()` was called at `site`."""
        others = [
            (ref, s) for ref, s in self._trained for module in [ref()] if module is not None and module is not root
        ]
        self._trained = others[-KEPT + 1 :]
        self._trained.append((weakref.ref(root), site))

    def mode_site(self, module: torch.nn.Module) -> Site:
        """The last `.train()` call that reached a module; NOWHERE when it is in train mode as it was built."""
        for ref, site in reversed(self._trained):
            root = ref()
            if root is not None and any(below is module for _, below in tree(root)):
                return site
        return NOWHERE


def statistics(session: Session, module: torch.nn.Module, root: torch.nn.Module) -> None:
    """A normalisation layer ran in train mode below `root`: told once an iteration, ever more rarely."""
    recorder = session.recorder
    modes = recorder.part(Modes)
    frozen = _is_frozen(module, root)
    number = know(recorder, module)
    if modes.seen.get((number, frozen)) == recorder.iteration:
        return
    if len(modes.seen) > 65536:
        modes.seen.clear()
    modes.seen[number, frozen] = recorder.iteration
    # that a frozen layer moves once (calibration) and that it moves in training are told apart by the iterations
    if modes.often.worth_telling((number, frozen), first=4 if frozen else 1):
        site = modes.mode_site(module)
        recorder.emit(
            StatisticsMoved,
            module=number,
            root=know(recorder, root),
            frozen=frozen,
            grad_on=torch.is_grad_enabled(),
            mode_site=site,
        )


def _is_frozen(module: torch.nn.Module, root: torch.nn.Module) -> bool:
    """Whether no parameter of the layer requires grad.  For a layer without any: none of its parent, or, in a sequence,
    none of the layers before and after it."""
    own = _flags(module)
    if own:
        return not any(own)
    for _, above in tree(root):
        children = [c for c in (above.__dict__.get("_modules") or {}).values() if c is not None]
        place = next((i for i, child in enumerate(children) if child is module), None)
        if place is None:
            continue
        parent = _flags(above)
        if not any(parent) or not isinstance(above, torch.nn.Sequential):
            return bool(parent) and not any(parent)
        # one frozen neighbour is not enough: behind a frozen network, such a layer belongs to the new head
        before = next((f for c in reversed(children[:place]) if (f := _flags(c))), [True])
        after = next((f for c in children[place + 1 :] if (f := _flags(c))), [True])
        return not any(before) and not any(after)
    return False


def _flags(module: torch.nn.Module) -> list[bool]:
    """`requires_grad` of the parameters of a tree."""
    return [t.requires_grad for _, m in tree(module) for _, role, t in tensors_of(m) if role == "parameter"]


def install(session: Session) -> Undo:
    """Watch `Module.train` and `Module.eval` (which calls it); only the call that the program makes counts."""
    recorder = session.recorder
    modes = recorder.part(Modes)

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        mode = args[1] if len(args) > 1 else kwargs.get("mode", True)
        return sum(module.__dict__.get("training") is not mode for _, module in tree(args[0]))

    def after(changed: int, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        module = args[0]
        training = bool(module.training)
        site = _site.here(1)
        number = know(recorder, module)
        if training:
            modes.trained(module, site)
        if not changed and not modes.often.worth_telling((number, training, site.key())):
            return
        recorder.emit(ModeSet, site, module=number, training=training, changed=changed)
        if changed and recorder.backwards:
            recorder.new_phase()

    return together(observe(recorder, torch.nn.Module, "train", before=before, after=after, nest=Nest()))
