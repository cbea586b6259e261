"""The run as callbacks see it: its parts, where it stands, how to record and save."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from littlelm.callbacks.base import Callback
from littlelm.config.load import dump
from littlelm.train import rng
from littlelm.train.checkpoint import save_checkpoint
from littlelm.train.configs import RunConfig
from littlelm.train.distributed import World
from littlelm.train.interrupt import Interrupt
from littlelm.train.ledger import Ledger
from littlelm.train.manifest import step_directory


@dataclass
class TrainState:
    """Where training stands: completed optimizer steps and the tokens they read."""

    step: int = 0
    tokens: int = 0


@dataclass
class TrainingRun:
    """Everything a run consists of. Callbacks read it; only the trainer changes it."""

    config: RunConfig
    directory: Path
    world: World
    console: Console
    ledger: Ledger
    prepared: Any  # littlelm.data PreparedData
    loader: Any
    model: Any
    loss: torch.nn.Module
    optimizer: Any
    precision: Any
    callbacks: dict[str, Callback]
    micro_batch_rows: int
    parameters_by_role: dict[str, int]
    flops_per_token: float
    peak_flops: float | None
    peak_source: str
    state: TrainState = field(default_factory=TrainState)
    metrics: dict[str, Any] = field(default_factory=dict)
    last_records: dict[str, dict[str, Any]] = field(default_factory=dict)  # newest record of each kind
    interrupt: Interrupt | None = None
    interrupted: bool = False
    saved_step: int | None = None

    @property
    def tokenizer(self) -> Any:
        return self.prepared.tokenizer

    @property
    def validation(self) -> Any:
        return self.prepared.validation

    @property
    def total_steps(self) -> int:
        return self.config.total_steps

    @property
    def tokens_per_step(self) -> int:
        return self.config.tokens_per_step

    @property
    def total_tokens(self) -> int:
        return self.total_steps * self.tokens_per_step

    @property
    def device(self) -> torch.device:
        return self.world.device

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def world_size(self) -> int:
        return self.world.size

    @property
    def stop_requested(self) -> bool:
        """Whether this process was asked to stop; the step that is running is finished and saved first."""
        return self.interrupt is not None and self.interrupt.requested

    @property
    def is_main(self) -> bool:
        return self.world.is_main

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all processes together."""
        price = self.config.budget.usd_per_gpu_hour
        return None if price is None else price * self.world.size

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def record(self, kind: str, values: dict[str, Any]) -> None:
        """Hand one event to every callback (main process only)."""
        if not self.is_main:
            return
        stamp = {
            "kind": kind,
            "step": self.state.step,
            "tokens": self.state.tokens,
            "seconds": self.ledger.elapsed_seconds(),
        }
        entry = {**stamp, **values}
        self.last_records[kind] = entry
        for callback in self.callbacks.values():
            callback.on_record(self, entry)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps besides tensors."""
        loss = self.metrics.get("loss")
        return {
            "step": self.state.step,
            "tokens": self.state.tokens,
            "total_steps": self.total_steps,
            "micro_batch_rows": self.micro_batch_rows,
            "world_size": self.world.size,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "data_fingerprint": self.prepared.fingerprint,
            "validation_sha256": self.validation.sha256,
            "vocab_size": self.model.vocab_size,
            "train_rows": self.prepared.train_rows,
            "compute_dtype": str(self.precision.compute_dtype).removeprefix("torch."),
            "loss": loss if loss is not None and math.isfinite(loss) else None,
        }

    def save_checkpoint(self) -> Path | None:
        """Save this step, once (the main process writes, all wait). Returns the path on the main process."""
        path = step_directory(self.checkpoints, self.state.step) if self.is_main else None
        with self.ledger.part("checkpoint"):
            if self.is_main and self.saved_step != self.state.step:
                config = next((c.config for c in self.callbacks.values() if c.config.name == "checkpoint"), None)
                save_checkpoint(
                    self.checkpoints,
                    self.state.step,
                    {
                        "model": dict(self.model.named_parameters()),
                        "optimizer": self.optimizer.state_tensors(),
                        "rng": rng.capture(),
                    },
                    self.state_dict(),
                    dump(self.config),
                    keep_last=getattr(config, "keep_last", None),
                    keep_every=getattr(config, "keep_every", None),
                )
            self.saved_step = self.state.step
            self.world.barrier()
        return path
