"""Lightning: a callback that audits `Trainer.fit`.

    from gradledger.integrations.lightning import Audit
    trainer = lightning.Trainer(callbacks=[Audit()])

Findings are printed when the fit ends, also when it ends by an exception. With `fail_on="error"` a faulty fit raises
`FaultsFound` then, so that a test or a pipeline stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback

from gradledger.integrations._tell import FailOn, FaultsFound, check, tell
from gradledger.watch import Watch, watch

__all__ = ["Audit", "FaultsFound"]


class Audit(Callback):
    """Watch a fit from its setup, before the optimizers are built, to its end.

    Attributes: `watch`, the last one: ask it for `.findings` or `.report()`; None before a fit.
    """

    def __init__(self, *, fail_on: FailOn = "never", select: Sequence[str] = (), ignore: Sequence[str] = ()) -> None:
        """fail_on: severity at which the end of a fit raises. select, ignore: rules by code, name or series letter."""
        check(fail_on, "integrations.lightning.Audit")
        self.watch: Watch | None = None
        self._fail_on, self._select, self._ignore = fail_on, tuple(select), tuple(ignore)
        self._running = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin, when it is a fit."""
        if stage == "fit" and not self._running:
            self.watch = watch(select=self._select, ignore=self._ignore)
            self.watch.start()
            self._running = True

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End and tell."""
        if stage == "fit" and self._running:
            self._end(fail=True)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End and tell; the exception stays the one that is raised."""
        if self._running:
            self._end(fail=False)

    def _end(self, *, fail: bool) -> None:
        assert self.watch is not None  # running says so
        self._running = False
        self.watch.stop()
        tell(self.watch, fail_on=self._fail_on if fail else "never", where="lightning.Trainer.fit")
