"""One training process (or one group of them) at a time in a run's directory."""

from __future__ import annotations

import os
from pathlib import Path

from littlelm.errors import UserError
from littlelm.filesystem import hold_lock


class RunLock:
    """The lock of a run's directory. It ends with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock if the directory exists and this process has it not yet.

        Raises UserError when another process trains there.
        """
        if self._descriptor is not None or not self.directory.is_dir():
            return
        self._descriptor = hold_lock(self.directory)
        if self._descriptor is None:
            raise UserError(
                f"{self.directory}: another process trains in this directory; wait for it, stop it, or give this run "
                "its own (--set run.name=...)"
            )

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
