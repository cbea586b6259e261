"""Ctrl-C and SIGTERM: finish the step, save, say how to go on."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While active, the first SIGINT or SIGTERM sets `requested`; a second SIGINT raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.requested = False
        self.signal_number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        self.signal_number = number
        name = signal.Signals(number).name
        sys.stderr.write(f"\n{name}: saving after this step (Ctrl-C again to stop at once)\n")
        sys.stderr.flush()
