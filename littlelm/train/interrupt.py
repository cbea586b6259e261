"""Ctrl-C and SIGTERM: finish the step, save, say how to go on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

# torchrun and terminals may deliver one Ctrl-C twice, within milliseconds; nobody presses it twice in this time.
_SAME_PRESS_SECONDS = 0.5


class Interrupt:
    """While active, the first SIGINT or SIGTERM sets `requested`; a later SIGINT raises KeyboardInterrupt.

    A later SIGTERM changes nothing: the save it asks for is under way. Outside the main thread, where Python allows no
    signal handlers, it does nothing. Afterwards the handlers are those of before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.requested = False
        self.signal_number: int | None = None
        self._clock = clock
        self._first = 0.0
        self._before: dict[int, Any] = {}

    @property
    def signal_name(self) -> str | None:
        """SIGINT, SIGTERM, or None as long as neither came."""
        return None if self.signal_number is None else signal.Signals(self.signal_number).name

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # None: not set from Python
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if number == signal.SIGINT and self._clock() - self._first > _SAME_PRESS_SECONDS:
                raise KeyboardInterrupt
            return
        self.requested = True
        self.signal_number = number
        self._first = self._clock()
        if os.environ.get("RANK", "0") == "0":
            # Not through sys.stderr: it may be in the middle of a write, and is not re-entrant.
            message = f"\n{self.signal_name}: saving after this step (Ctrl-C again to stop at once)\n"
            os.write(2, message.encode())
