"""The root of a run file: `RunConfig` and its plain sections. Free of torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from littlelm.config.base import ComponentConfig, ComponentOf, ConfigModel, Count
from littlelm.config.load import Loaded, load
from littlelm.data.configs import DataConfig
from littlelm.plan.hardware import GPUS
from littlelm.registry import did_you_mean

DEFAULTS = Path(__file__).with_name("defaults.yaml")


class RunSection(ConfigModel):
    """What the run is called, where it lives and how long it lasts."""

    name: str = Field(description="name of the run; default: the stem of the file", min_length=1)
    dir: str = Field("runs/${run.name}", description="the run's directory; a run is resumed by its directory")
    seed: int = Field(1337, ge=0, lt=2**63, description="seed of weights, row order and every other random choice")
    steps: Count | None = Field(None, ge=1, description="optimizer steps; give this or `tokens`")
    tokens: Count | None = Field(None, ge=1, description="training tokens, rounded to whole steps; or give `steps`")
    resume: Literal["auto", "never", "must"] = Field(
        "auto",
        description="auto: go on from the newest checkpoint if there is one; never: refuse a used directory; "
        "must: fail when there is none",
    )


class TrainSection(ConfigModel):
    """The training step: batch, clipping, compilation, where it runs."""

    global_batch_tokens: Count = Field(ge=1, description="tokens of one optimizer step, over all processes")
    micro_batch: Annotated[Count, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="rows of one forward/backward pass of one process; auto: the most that fits"
    )
    max_grad_norm: float | None = Field(1.0, gt=0, description="clip the gradient to this global norm; null: never")
    compile: bool = Field(True, description="torch.compile the step; falls back to eager, saying so, when it fails")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA when there is one")
    max_bad_steps: int = Field(
        3,
        ge=0,
        description="consecutive steps with a non-finite loss or gradient that are skipped before the run stops",
    )


class BudgetSection(ConfigModel):
    """Money: the price, and what a plan assumes about the machine."""

    usd_per_gpu_hour: float | None = Field(None, ge=0, description="USD for one GPU (or one CPU process) for one hour")
    gpu: str | None = Field(None, description="GPU of the plan, a name of the hardware table, for example b200")
    gpus: int = Field(1, ge=1, description="number of GPUs of the plan")
    expected_mfu: float = Field(0.4, gt=0, le=1, description="share of the peak that the plan assumes is reached")


class RunConfig(ConfigModel):
    """One file that fully specifies a run."""

    schema_version: Literal[1] = Field(1, description="version of this file's format")
    plugins: list[str] = Field(default_factory=list, description="Python files that register own components")
    run: RunSection
    tokenizer: Annotated[ComponentConfig, ComponentOf("tokenizer")] = Field(description="text -> tokens")
    data: DataConfig
    model: Annotated[ComponentConfig, ComponentOf("model")] = Field(description="the network")
    optimizer: Annotated[ComponentConfig, ComponentOf("optimizer")] = Field(description="the update rule")
    scheduler: Annotated[ComponentConfig, ComponentOf("scheduler")] = Field(description="learning-rate multiplier")
    momentum_scheduler: Annotated[ComponentConfig | None, ComponentOf("scheduler")] = Field(
        None, description="multiplier of Muon's momentum"
    )
    weight_decay_scheduler: Annotated[ComponentConfig | None, ComponentOf("scheduler")] = Field(
        None, description="multiplier of the weight decay"
    )
    precision: Annotated[ComponentConfig, ComponentOf("precision")] = Field(
        description="dtypes of weights and products"
    )
    loss: Annotated[ComponentConfig, ComponentOf("loss")] = Field(description="cross-entropy over the vocabulary")
    train: TrainSection
    budget: BudgetSection = Field(default_factory=BudgetSection)
    callbacks: Annotated[dict[str, ComponentConfig], ComponentOf("callback")] = Field(
        default_factory=dict, description="what happens around steps; `name: false` switches one off"
    )

    @property
    def tokens_per_step(self) -> int:
        return self.train.global_batch_tokens

    @property
    def global_batch_rows(self) -> int:
        """Rows of one optimizer step."""
        return self.train.global_batch_tokens // self.data.sequence_length

    @property
    def train_rows(self) -> int:
        """Rows of the whole run."""
        return self.total_steps * self.global_batch_rows

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        if self.run.steps is not None:
            return self.run.steps
        assert self.run.tokens is not None
        return max(1, round(self.run.tokens / self.tokens_per_step))

    def shortened(self, steps: int | None) -> RunConfig:
        """The same run, ending after `steps` steps if that is earlier."""
        if steps is None or steps >= self.total_steps:
            return self
        return self.model_copy(update={"run": self.run.model_copy(update={"steps": steps, "tokens": None})})

    def check(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Contradictions between sections, as (path, message)."""
        if (self.run.steps is None) == (self.run.tokens is None):
            given = "both are given" if self.run.steps is not None else "neither is given"
            yield ("run",), f"the length of the run is `run.steps` or `run.tokens`, exactly one of them; {given}"
        length = self.data.sequence_length
        if self.train.global_batch_tokens % length:
            lower = self.train.global_batch_tokens // length * length
            yield (
                ("train", "global_batch_tokens"),
                f"global_batch_tokens {self.train.global_batch_tokens} is no multiple of data.sequence_length "
                f"{length}; nearest: {lower or length} or {lower + length}",
            )
        positions = getattr(self.model, "max_position_embeddings", None)
        if positions is not None and length > positions:
            yield (
                ("data", "sequence_length"),
                f"sequence_length {length} is longer than model.max_position_embeddings {positions}; "
                "lower the one or raise the other",
            )
        vocab_size = getattr(self.model, "vocab_size", None)
        planned = getattr(self.tokenizer, "planned_vocab_size", None)
        if vocab_size is not None and planned is not None and planned() != vocab_size:
            yield (
                ("model", "vocab_size"),
                f"model.vocab_size is {vocab_size}, but the tokenizer ({self.tokenizer.name}) has {planned()} tokens; "
                "remove the key (the tokenizer's size is taken) or use the tokenizer it was meant for",
            )
        if self.budget.gpu is not None and self.budget.gpu.lower() not in GPUS:
            hint = did_you_mean(self.budget.gpu.lower(), sorted(GPUS))
            yield ("budget", "gpu"), f"unknown GPU '{self.budget.gpu}'{hint}"
        micro = self.train.micro_batch
        if isinstance(micro, int) and micro > self.global_batch_rows > 0:
            yield (
                ("train", "micro_batch"),
                f"micro_batch {micro} rows is more than the whole batch of {self.global_batch_rows} rows "
                f"({self.train.global_batch_tokens} tokens of {length})",
            )


def load_run(path: Path | str, overrides: list[str] | None = None) -> Loaded[RunConfig]:
    """Load a run file (or the config.yaml of a run directory) with the packaged defaults beneath it."""
    path = Path(path)
    if path.is_dir() and (path / "config.yaml").is_file():
        # Wherever it is now and wherever it is read from, a run is resumed by its directory.
        overrides = [f"run.dir={json.dumps(str(path.resolve()))}", *(overrides or [])]
        path = path / "config.yaml"
    return load(path, RunConfig, overrides=overrides, defaults=DEFAULTS)
