"""TensorBoard event files, local."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

from littlelm.callbacks.base import Callback, Run
from littlelm.filesystem import writing

_STAMPS = {"kind", "step", "tokens", "seconds"}


def summary_writer_class() -> Any:
    """torch's SummaryWriter, importing TensorBoard but never TensorFlow.

    With TensorFlow installed, TensorBoard would import it (seconds, gigabytes, a screen of warnings) only to write
    files; a module named `tensorboard.compat.notf` is its own way of being told not to.
    """
    if importlib.util.find_spec("tensorflow") is not None:
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter


class TensorBoardCallback(Callback):
    """Every number of a record as a curve over steps, every text as text."""

    writer: Any = None

    def on_start(self, run: Run) -> None:
        if run.is_main:
            # Points after the step we go on from were written by a process that was killed: they come again.
            self.directory = run.directory / "tensorboard"
            with writing(self.directory):
                self.writer = summary_writer_class()(str(self.directory), purge_step=run.state.step + 1)

    def on_record(self, run: Run, record: dict[str, Any]) -> None:
        if self.writer is None or not self.wants(run, record):
            return
        with writing(self.directory):
            self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        kind, step = record["kind"], record["step"]
        for key, value in record.items():
            if key in _STAMPS or isinstance(value, bool):
                continue
            if isinstance(value, (int, float)):
                self.writer.add_scalar(f"{kind}/{key}", value, step)
        if kind == "sample":
            self.writer.add_text(f"sample/{record['prompt']}", record["prompt"] + record["text"], step)

    def on_end(self, run: Run) -> None:
        if self.writer is not None:
            writer, self.writer = self.writer, None
            with writing(self.directory):
                writer.close()

    def on_error(self, run: Run, error: BaseException) -> None:
        self.on_end(run)
