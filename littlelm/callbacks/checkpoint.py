"""Saving, when it is due."""

from __future__ import annotations

import time

from littlelm.callbacks.base import Callback, Run


class CheckpointCallback(Callback):
    """Asks the run to save itself, and records that it did."""

    phase = Callback.CHECKPOINT

    def on_due(self, run: Run) -> None:
        started = time.perf_counter()
        path = run.save_checkpoint()
        if path is not None:
            run.record("checkpoint", {"path": str(path), "seconds_spent": time.perf_counter() - started})
