"""Progress in the terminal."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from littlelm.callbacks.base import Callback, Run


def duration(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ConsoleCallback(Callback):
    """Two live lines: bar, ETA; loss (smoothed, and of the step), learning rate, tokens/s, MFU, gradient norm, dollars.

    Without a terminal (CI, nohup) a plain line from time to time. Evaluations, samples and checkpoints are printed as
    lines of their own.
    """

    live: Live | None = None
    console: Console

    def on_start(self, run: Run) -> None:
        if not run.is_main:
            return
        self.console = run.console
        self.sum = self.weight = 0.0  # of the smoothed loss
        self.done_at_start = run.state.step
        self.started = time.perf_counter()
        self.printed = -math.inf
        if self.console.is_terminal and not self.console.quiet:
            self.lines: RenderableType = Text("")
            self.live = Live(
                console=self.console, refresh_per_second=4, transient=True, get_renderable=lambda: self._renderable(run)
            )
            self.live.start()

    def on_record(self, run: Run, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == "train":
            self._step(run, record)
        elif kind == "eval":
            value = f"{record['bits_per_byte']:.4f} bits per byte"
            self._line(f"step {record['step']}: {value} (loss {record['loss']:.4f}, {record['seconds_spent']:.1f} s)")
        elif kind == "core":
            value = f"{record['name']} {record['core_v1']:.4f} ± {record['core_v1_error']:.4f}"
            cut = f", {record['rows_cut']:,} rows cut" if record["rows_cut"] else ""
            self._line(
                f"step {record['step']}: {value} (v1; {record['items']:,} items{cut}, {record['seconds_spent']:.1f} s)"
            )
        elif kind == "sample":
            self._line(f"step {record['step']}: {record['prompt']!r} -> {record['text']!r}")
        elif kind == "checkpoint":
            self._line(f"step {record['step']}: saved {record['path']} ({record['seconds_spent']:.1f} s)")

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False)

    def _step(self, run: Run, record: dict[str, Any]) -> None:
        loss = record["loss"]
        if math.isfinite(loss):
            keep = self.config.smoothing
            # An exponential mean over the steps seen so far only, so that the first loss does not linger.
            self.sum, self.weight = keep * self.sum + (1 - keep) * loss, keep * self.weight + (1 - keep)
        if record.get("skipped"):
            self._line(f"step {record['step']}: loss {loss}, gradient norm {record['grad_norm']}: step skipped")
        if self.live is not None:
            self.lines = self._lines(run, record)
            return
        now = time.perf_counter()
        last = record["step"] in (self.done_at_start + 1, run.total_steps)
        if last or now - self.printed >= self.config.plain_seconds:
            self.printed = now
            self._line(" | ".join([self._position(run, record), *self._facts(record)]))

    def _eta_seconds(self, run: Run) -> float:
        """From the time of all steps since the start: evaluations and saves are in it."""
        done: int = run.state.step - self.done_at_start
        left: int = run.total_steps - run.state.step
        return (time.perf_counter() - self.started) / max(1, done) * left

    def _position(self, run: Run, record: dict[str, Any]) -> str:
        step, total = record["step"], run.total_steps
        return f"step {step}/{total} {step / total:.0%} | ETA {duration(self._eta_seconds(run))}"

    def _facts(self, record: dict[str, Any]) -> list[str]:
        smooth = self.sum / self.weight if self.weight else record["loss"]
        facts = [
            f"loss {smooth:.4f} ({record['loss']:.4f})",
            f"lr {record['lr']:.2e}",
            f"{record['tokens_per_second']:,.0f} tok/s",
        ]
        if record.get("mfu") is not None:
            facts.append(f"MFU {record['mfu']:.1%}")
        facts.append(f"|g| {record['grad_norm']:.2f}")
        if record.get("usd") is not None:
            facts.append(f"${record['usd']:.2f}")
        return facts

    def _lines(self, run: Run, record: dict[str, Any]) -> Group:
        """Bar and position, then the facts; what a narrow terminal has no room for is cut, not wrapped."""
        top = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=run.total_steps, completed=record["step"], width=20)
        top.add_row(bar, Text(self._position(run, record), no_wrap=True, overflow="ellipsis"))
        return Group(top, Text(" | ".join(self._facts(record)), no_wrap=True, overflow="ellipsis"))

    def _renderable(self, run: Run) -> RenderableType:
        """What the live area shows; drawn four times a second, so an interrupt is answered before the step ends."""
        if run.stop_requested:
            return Group(self.lines, Text("stopping: saving after this step (Ctrl-C again to stop at once)"))
        return self.lines

    def _stop(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def on_end(self, run: Run) -> None:
        self._stop()

    def on_error(self, run: Run, error: BaseException) -> None:
        self._stop()
