"""Ctrl-C and SIGTERM as a wish: the run ends its tick, saves, and says how to go on. A second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The run was asked to stop and did, with everything saved. `signal_number`: by which signal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class StopWish:
    """`with StopWish() as wish:` the first signal only sets `wish.signal_number`; what was there before comes back.

    Outside of the main thread python takes no signals, and nothing changes. A program that handles SIGTERM itself
    keeps its handler.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopWish:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def raise_if_any(self) -> None:
        """Raise Stopped if a signal came."""
        if self.signal_number is not None:
            raise Stopped(self.signal_number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._restore()  # the next one acts as it always does

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}
