"""What a callback is: something that happens around steps. And what it may see of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from littlelm.callbacks.every import Every
from littlelm.config.base import ComponentConfig


class Run(Protocol):
    """The run as callbacks see it (`littlelm.train.run.TrainingRun`)."""

    config: Any  # RunConfig
    directory: Path
    console: Any  # rich Console, quiet on all processes but the main one
    ledger: Any  # Ledger: `part(name)`, `elapsed_seconds()`
    world: Any  # World: `sum(values)`, `barrier()`
    model: Any  # the uncompiled model
    loss: Any
    metrics: dict[str, Any]  # the last training record
    micro_batch_rows: int
    parameters_by_role: dict[str, int]
    flops_per_token: float
    peak_flops: float | None  # FLOP/s of one process's device
    peak_source: str  # where that figure is from
    interrupted: bool
    state: Any  # .step, .tokens

    @property
    def tokenizer(self) -> Any: ...
    @property
    def validation(self) -> Any: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def total_tokens(self) -> int: ...
    @property
    def tokens_per_step(self) -> int: ...
    @property
    def device(self) -> Any: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def stop_requested(self) -> bool: ...
    @property
    def is_main(self) -> bool: ...
    @property
    def usd_per_hour(self) -> float | None: ...
    def record(self, kind: str, values: dict[str, Any]) -> None: ...
    def save_checkpoint(self) -> Path | None: ...


class Callback:
    """Override what you need. `phase` orders the callbacks of one step: evaluations come after the save."""

    RECORD: ClassVar[int] = 0
    CHECKPOINT: ClassVar[int] = 1
    EVALUATE: ClassVar[int] = 2
    PRESENT: ClassVar[int] = 3
    phase: ClassVar[int] = 0

    def __init__(self, config: ComponentConfig) -> None:
        self.config: Any = config
        every = getattr(config, "every", None)
        self.every = None if every is None else Every.parse(every)
        self._kept_at = 0.0  # seconds of the run's clock at the last record that `wants` let through

    def wants(self, run: Run, record: dict[str, Any]) -> bool:
        """Whether a listener with `every` keeps a record: training records when due, all others always."""
        if record["kind"] != "train" or self.every is None:
            return True
        elapsed = record["seconds"] - self._kept_at
        due = self.every.due(record["step"], run.tokens_per_step, run.total_steps, elapsed)
        if due:
            self._kept_at = record["seconds"]
        return due

    def prepare(self, config: Any, tokenizer: Any, say: Callable[[str], None]) -> None:
        """Before the process group exists, in every process: the only place where anything may be fetched.

        `config` is the RunConfig.
        """

    def on_start(self, run: Run) -> None:
        """Before the first step, after resuming: `run.state.step` is where training starts."""

    def on_due(self, run: Run) -> None:
        """When `every` has come round; all processes call it."""

    def on_record(self, run: Run, record: dict[str, Any]) -> None:
        """For every record, on the main process."""

    def on_end(self, run: Run) -> None:
        """At the end, also after an interrupt (`run.interrupted`)."""

    def on_error(self, run: Run, error: BaseException) -> None:
        """When training fails, before the error goes on: put the terminal back."""
