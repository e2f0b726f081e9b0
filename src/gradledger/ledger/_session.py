"""What the probes of one watched run share, and how they are all installed and removed.

A probe is a module under `probes/` that defines `install(session) -> undo`.  They are found by one scan of the folder,
in the order of their file names; undone in reverse.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field

from gradledger.ledger import probes
from gradledger.ledger._lifecycle import Lifecycle
from gradledger.ledger._recorder import Recorder, Sink
from gradledger.ledger._trace import Trace

Install = Callable[["Session"], Callable[[], None]]


@dataclass
class Session:
    """`recorder` (facts), `trace` (operations of the current iterations), `lifecycle` (what stands in each `.grad`)."""

    recorder: Recorder
    trace: Trace
    lifecycle: Lifecycle
    _undos: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def open(cls, sink: Sink) -> Session:
        """A session that records into `sink`; nothing is installed yet."""
        recorder = Recorder(sink)
        return cls(recorder, Trace(recorder), Lifecycle(recorder))

    def install(self) -> None:
        """Install every probe.  A probe that cannot be installed is counted as a failure; the others go on."""
        for name in probe_names():
            install: Install = importlib.import_module(f"{probes.__name__}.{name}").install
            try:
                self._undos.append(install(self))
            except Exception as error:
                self.recorder.fail(f"install {name}", error)

    def uninstall(self) -> None:
        """Remove every probe, in reverse order."""
        while self._undos:
            undo = self._undos.pop()
            try:
                undo()
            except Exception as error:
                self.recorder.fail("uninstall", error)


def probe_names() -> list[str]:
    """Names of all probe modules, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(probes.__path__) if not m.name.startswith("_"))
