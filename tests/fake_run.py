"""A run for callbacks to look at, without a trainer."""

from __future__ import annotations

import io
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.console import Console

from littlelm import registry
from littlelm.loss.configs import FullLossConfig
from littlelm.model.configs import TransformerConfig
from littlelm.tokenizers.configs import ByteTokenizerConfig


class FakeLedger:
    def __init__(self):
        self.parts: list[str] = []
        self.written = 0

    @contextmanager
    def part(self, name):
        self.parts.append(name)
        yield

    def write(self):
        self.written += 1


@dataclass
class FakeRun:
    """What `littlelm.callbacks.base.Run` promises, as far as the test at hand sets it."""

    directory: Path
    state: Any = field(default_factory=lambda: SimpleNamespace(step=0, tokens=0))
    total_steps: int = 10
    tokens_per_step: int = 100
    is_main: bool = True
    stop_requested: bool = False
    interrupted: bool = False
    micro_batch_rows: int = 2
    console: Console = field(default_factory=lambda: Console(file=io.StringIO(), width=200, highlight=False))
    ledger: FakeLedger = field(default_factory=FakeLedger)
    world: Any = field(default_factory=lambda: one_process())
    model: Any = None
    loss: Any = None
    tokenizer: Any = None
    validation: Any = None
    records: list[dict[str, Any]] = field(default_factory=list)
    saves: int = 0

    def record(self, kind, values):
        if self.is_main:
            self.records.append({"kind": kind, "step": self.state.step, "tokens": self.state.tokens, **values})

    def save_checkpoint(self):
        self.saves += 1
        return self.directory / "checkpoints" / f"step-{self.state.step:08}" if self.is_main else None

    def advance(self, step, **values):
        """A training record of `step`, ten seconds a step, as the trainer would hand it on."""
        self.state.step, self.state.tokens = step, step * self.tokens_per_step
        facts = {"loss": 4.0 / step, "lr": 0.02, "grad_norm": 0.5, "tokens_per_second": 1000.0, "step_seconds": 0.1}
        stamp = {"kind": "train", "step": step, "tokens": self.state.tokens, "seconds": 10.0 * step}
        return {**stamp, **facts, **values}

    def printed(self):
        return self.console.file.getvalue()


def one_process():
    return SimpleNamespace(rank=0, size=1, is_main=True, device=torch.device("cpu"), sum=lambda values: values)


class Validation:
    """Six rows of random bytes; the last has padding, and row 0 holds a control token among its targets."""

    num_rows = 6
    sha256 = "5a" * 32

    def __init__(self, bos_id, length=16):
        chooser = np.random.default_rng(5)
        self.inputs = chooser.integers(0, 256, (self.num_rows, length))
        self.targets = chooser.integers(0, 256, (self.num_rows, length))
        self.targets[0, 3] = bos_id
        self.targets[-1, 10:] = -100

    def batch(self, start, stop):
        return self.inputs[start:stop].copy(), self.targets[start:stop].copy()


def tiny_model(vocab_size, positions=32):
    """A transformer whose logits depend on its input (its head is not zero), in fp32."""
    config = TransformerConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=positions, qk_norm=True
    )
    model = registry.build(config, vocab_size)
    model.init_weights(torch.Generator().manual_seed(1))
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=noise))
    model.compute_dtype = torch.float32
    return model


def run_with_model(directory, **options):
    """A FakeRun with a byte tokenizer, a tiny model and six validation rows."""
    tokenizer = registry.build(ByteTokenizerConfig())
    return FakeRun(
        directory,
        model=tiny_model(tokenizer.vocab_size),
        loss=registry.build(FullLossConfig()),
        tokenizer=tokenizer,
        validation=Validation(tokenizer.bos_id),
        **options,
    )
