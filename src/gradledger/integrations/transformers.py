"""transformers: a callback that audits `Trainer.train`.

    from gradledger.integrations.transformers import Audit
    trainer = transformers.Trainer(..., callbacks=[Audit()])

Findings are printed when training ends. transformers tells its callbacks nothing of an exception: what was seen until
then is still at hand as `callback.watch.report()`, and the next training starts a new watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from gradledger.integrations._tell import FailOn, FaultsFound, check, tell
from gradledger.watch import Watch, watch

__all__ = ["Audit", "FaultsFound"]


class Audit(TrainerCallback):
    """Watch a training from its first step to its last.

    Attributes: `watch`, the last one: ask it for `.findings` or `.report()`; None before a training.
    """

    def __init__(self, *, fail_on: FailOn = "never", select: Sequence[str] = (), ignore: Sequence[str] = ()) -> None:
        """fail_on: severity at which the end of training raises. select, ignore: rules by code, name or series
        letter."""
        check(fail_on, "integrations.transformers.Audit")
        self.watch: Watch | None = None
        self._fail_on, self._select, self._ignore = fail_on, tuple(select), tuple(ignore)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin; a watch that an exception has left open is ended first."""
        if self.watch is not None:
            self.watch.stop()
        self.watch = watch(select=self._select, ignore=self._ignore)
        self.watch.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End and tell."""
        if self.watch is not None:
            self.watch.stop()
            tell(self.watch, fail_on=self._fail_on, where="transformers.Trainer.train")
