"""Typed configs of evaluations. Free of torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from littlelm.config.base import ComponentConfig, Count
from littlelm.registry import declare_kind, register_lazy

declare_kind(
    "eval",
    "built with (config): prepare(tokenizer, context, cache_dir, say) before training, then evaluate(model, world, "
    "progress, described) as often as wanted, the same result on every process",
)


class InContextConfig(ComponentConfig):
    """Keys of every evaluation in context: what is cut, how it is computed."""

    max_per_task: int | None = Field(
        None,
        ge=1,
        description="items of each task at most; changes every prompt, since examples are drawn from these; null: all",
    )
    policy: Literal["crop_left", "none", "error"] = Field(
        "crop_left",
        description="rows longer than the context: crop_left loses their beginning, none feeds them whole, error stops",
    )
    max_length: Count | None = Field(
        None, ge=2, description="tokens of a row at most, below the model's context; null: the model's context"
    )
    engine: Literal["packed", "reference"] = Field(
        "packed", description="packed: prefixes shared, rows batched; reference: one item at a time, the slow oracle"
    )
    pack_tokens: Count | None = Field(
        None, ge=1, description="tokens computed at one time; null: 2048 on a CPU, 65536 on a GPU"
    )


@register_lazy("eval", "jsonl", "littlelm.evals.core.evaluate:JsonlEvaluation")
class JsonlEvalConfig(InContextConfig):
    """A task of your own: a file of items, scored like those of CORE."""

    label: str = Field("own", min_length=1, description="name of the task in reports")
    file: str = Field(
        min_length=1,
        description="one JSON object a line: choice: query, choices, gold; schema: context_options, continuation, "
        "gold; lm: context, continuation",
    )
    type: Literal["choice", "schema", "lm"] = Field(
        description="choice: the likeliest of several endings; schema: of several beginnings; lm: the ending predicted "
        "word for word"
    )
    shots: int = Field(0, ge=0, description="solved examples of the same file shown before each item")
    delimiter: str = Field(" ", description="between what is given and what is scored")
    baseline: float = Field(0.0, ge=0, lt=100, description="accuracy of guessing, percent")

    @property
    def budget(self) -> None:
        """An own task is run whole."""
        return


@register_lazy("eval", "core", "littlelm.evals.core.evaluate:CoreEvaluation")
class CoreEvalConfig(InContextConfig):
    """CORE: the in-context tasks of a bundle, scored as DCLM and nanochat do; a bundle of your own works as well."""

    bundle: str | None = Field(
        None, description="directory, zip, or URL of a zip in nanochat's layout (core.yaml, eval_data/)"
    )
    sha256: str | None = Field(None, description="digest of the zip, 64 hex digits; a URL needs it")
    tasks: list[str] | None = Field(None, min_length=1, description="labels of the tasks to run; null: all")
    budget: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the full evaluation's tokens from which CORE is estimated (core_est); null: all of them",
    )

    @model_validator(mode="after")
    def _one_way_of_shortening(self) -> CoreEvalConfig:
        if self.budget is not None and self.max_per_task is not None:
            raise ValueError(
                "budget and max_per_task are two ways of running less: budget keeps the prompts of the full run, "
                "max_per_task changes them; give one of them"
            )
        return self
