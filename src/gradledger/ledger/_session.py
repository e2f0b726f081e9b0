"""What the probes of one watched run share, and how they are all installed and removed.

A probe is a module under `probes/` that defines `install(session) -> undo`.  They are found by one scan of the folder,
in the order of their file names; undone in reverse.  Facts that one probe knows and another needs pass through the
fields below: each has one writer, and a harmless default for when that probe is not there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from gradledger.core.events import Dropped
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import probes
from gradledger.ledger._lifecycle import Lifecycle
from gradledger.ledger._operations import Call
from gradledger.ledger._recorder import Recorder, Sink, unseen
from gradledger.ledger._trace import Trace

Install = Callable[["Session"], Callable[[], None]]


def _nothing(*_: object) -> None:
    return None


@dataclass
class Session:
    """`recorder` (facts), `trace` (operations of the current iterations), `lifecycle` (what stands in each `.grad`)."""

    recorder: Recorder
    trace: Trace
    lifecycle: Lifecycle
    # given by who opens the session: how a started process begins a watch of its own (as a rank among others, or by
    # itself), and where ledgers lie
    start_rank: Callable[[str, str], None] | None = None
    start_alone: Callable[[str, str], None] | None = None
    folder: str = ""
    program: str = ""
    # given too: the oracle recomputes gradients of the first iterations and of every so many; 0: it is off
    oracle: int = 0
    # written by probes/optimizers.py: numbers of all tensors that an optimizer holds
    held: set[int] = field(default_factory=set)
    know_optimizer: Callable[[torch.optim.Optimizer, Site], int] = lambda optimizer, site: 0
    emit_unseen: Callable[[tuple[Dropped, ...]], None] = _nothing
    # written by probes/calls.py: where free leaves were made, and which modules they were fed to
    leaf_sites: dict[int, Site] = field(default_factory=dict)
    fed: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    leaves_in_loss: set[int] = field(default_factory=set)
    # the call of this iteration whose input was not finite: iteration, line
    bad_input: tuple[int, Site] = (-1, NOWHERE)
    # written by probes/calls.py: the module whose forward the program is in
    called: Callable[[], torch.nn.Module | None] = lambda: None
    differentiated: Callable[[], None] = _nothing  # a reverse pass has run, maybe within a call
    # written by probes/backward.py
    first_non_finite: Callable[[str, Site], None] = _nothing
    # written by probes/scaler.py: was this loss multiplied by a GradScaler; the factor still in these gradients
    is_scaled: Callable[[torch.Tensor], bool] = lambda root: False
    scale_of: Callable[[Iterable[torch.Tensor]], float | None] = lambda tensors: None
    # written by probes/graphs.py: the operation most likely to have made the first non-finite value
    suspect: Callable[[], tuple[str, Site, str]] = lambda: ("", NOWHERE, "")
    # written by probes/graphs.py: many calls wait for what becomes of their graphs
    many_calls: Callable[[], None] = _nothing
    # anyone may append: called when the program itself calls a module (call, module, inputs); before a backward or a
    # step writes, after a step, when a root was walked, a pass has filled gradients (number, roots, line), at the end
    at_call: list[Callable[[Call, torch.nn.Module, tuple[Any, ...]], None]] = field(default_factory=list)
    at_backward: list[Callable[[], None]] = field(default_factory=list)
    at_step: list[Callable[[list[torch.Tensor], Site], None]] = field(default_factory=list)
    step_done: list[Callable[[], None]] = field(default_factory=list)
    at_root: list[Callable[[torch.Tensor, Site], None]] = field(default_factory=list)
    at_pass: list[Callable[[int, list[torch.Tensor], Site], None]] = field(default_factory=list)
    at_end: list[Callable[[], None]] = field(default_factory=list)
    _undos: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def open(cls, sink: Sink) -> Session:
        """A session that records into `sink`; nothing is installed yet."""
        recorder = Recorder(sink)
        return cls(recorder, Trace(recorder), Lifecycle(recorder))

    def before_backward(self) -> None:
        """A reverse pass is about to write gradients."""
        for call in self.at_backward:
            call()

    def before_step(self, tensors: list[torch.Tensor], site: Site) -> None:
        """An optimizer is about to consume the gradients of `tensors`."""
        for call in self.at_step:
            call(tensors, site)

    def after_step(self) -> None:
        """An optimizer has stepped."""
        for call in self.step_done:
            call()

    def root_walked(self, root: torch.Tensor, site: Site) -> None:
        """A reverse pass from `root` is complete."""
        with unseen():
            for call in self.at_root:
                call(root, site)

    def pass_walked(self, number: int, roots: list[torch.Tensor], site: Site) -> None:
        """A reverse pass from `roots` has filled gradients."""
        for call in self.at_pass:
            call(number, roots, site)

    def install(self) -> None:
        """Install every probe.  A probe that cannot be installed is counted as a failure; the others go on."""
        for name in probe_names():
            try:
                install: Install = importlib.import_module(f"{probes.__name__}.{name}").install
                self._undos.append(install(self))
            except Exception as error:
                self.recorder.fail(f"install {name}", error)

    def uninstall(self) -> None:
        """Remove every probe, in reverse order; facts still held back are recorded first."""
        for call in self.at_end:
            with self.recorder.guard("end"):
                call()
        while self._undos:
            undo = self._undos.pop()
            try:
                undo()
            except Exception as error:
                self.recorder.fail("uninstall", error)


def probe_names() -> list[str]:
    """Names of all probe modules, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(probes.__path__) if not m.name.startswith("_"))
