"""Typed configs of the callbacks. Free of torch."""

from __future__ import annotations

from pydantic import Field

from littlelm.callbacks.every import EveryField
from littlelm.config.base import ComponentConfig
from littlelm.evals.configs import CoreEvalConfig
from littlelm.registry import declare_kind, register_lazy

declare_kind("callback", "built with (config): a littlelm.callbacks.base.Callback; what happens around steps")

_EVERY = "how often: steps (100), tokens (10M tokens), percent of the run (5%), wall time (30m); always at the end"


@register_lazy("callback", "console", "littlelm.callbacks.console:ConsoleCallback")
class ConsoleConfig(ComponentConfig):
    """Progress in the terminal: a live bar, or plain lines where there is no terminal."""

    plain_seconds: float = Field(10.0, ge=0, description="without a terminal: seconds between two lines")
    smoothing: float = Field(0.9, ge=0, lt=1, description="weight of the past in the loss shown")


@register_lazy("callback", "metrics", "littlelm.callbacks.metrics:MetricsCallback")
class MetricsConfig(ComponentConfig):
    """metrics.jsonl in the run's directory: every record, one JSON object a line."""

    every: EveryField = Field(1, description=f"which training records to keep, {_EVERY}; all others are")


@register_lazy("callback", "tensorboard", "littlelm.callbacks.tensorboard:TensorBoardCallback")
class TensorBoardConfig(ComponentConfig):
    """TensorBoard event files in the run's directory; nothing leaves the machine."""

    every: EveryField = Field(1, description=f"which training records to write, {_EVERY}; all others are")


@register_lazy("callback", "checkpoint", "littlelm.callbacks.checkpoint:CheckpointCallback")
class CheckpointConfig(ComponentConfig):
    """Saves the run; the end of a run and an interrupt are saved in any case."""

    every: EveryField = Field("10%", description=_EVERY)
    keep_last: int | None = Field(2, ge=1, description="newest checkpoints to keep; null: all")
    keep_every: int | None = Field(
        None, ge=1, description="checkpoints at multiples of this many steps are kept for good"
    )


@register_lazy("callback", "eval", "littlelm.callbacks.evaluate:EvalCallback")
class EvalConfig(ComponentConfig):
    """Bits per byte on the validation set, after the save of the same step."""

    every: EveryField = Field("5%", description=_EVERY)


@register_lazy("callback", "core", "littlelm.callbacks.core:CoreCallback")
class CoreCallbackConfig(CoreEvalConfig):
    """CORE, after the save of the same step: estimated from a share of its tokens during the run, whole at its end."""

    every: EveryField = Field("10%", description=_EVERY)
    budget: float | None = Field(
        0.2, gt=0, le=1, description="share of the full evaluation's tokens for each estimate; null: all of them"
    )
    full_at_end: bool = Field(True, description="evaluate everything at the end of the run, whatever the budget")


@register_lazy("callback", "sample", "littlelm.callbacks.sample:SampleCallback")
class SampleConfig(ComponentConfig):
    """Continues a few prompts, to see what the numbers mean."""

    every: EveryField = Field("25%", description=_EVERY)
    prompts: list[str] = Field(
        ["The capital of France is", "Once upon a time", "The most important thing about water is"],
        description="texts to continue",
    )
    max_new_tokens: int = Field(64, ge=1, description="tokens to generate for each, at most")
    temperature: float = Field(0.7, ge=0, description="0 is greedy")
    top_k: int | None = Field(50, ge=1, description="keep the k most likely tokens; null: all")
    top_p: float | None = Field(None, gt=0, le=1, description="keep the likeliest of this mass; null: all")
    seed: int = Field(1337, ge=0, description="the same each time, so that only the model changes")


@register_lazy("callback", "report", "littlelm.callbacks.report:ReportCallback")
class ReportConfig(ComponentConfig):
    """report.html in the run's directory: the run as pictures and numbers; also written after an interrupt."""

    every: EveryField = Field("20%", description=_EVERY)
