"""Typed configs of the data section and of the packers. Free of torch and numpy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

import littlelm.data.source_configs  # noqa: F401  (registers the sources)
from littlelm.config.base import ComponentConfig, ComponentOf, ConfigModel, Count
from littlelm.registry import declare_kind, register_lazy

declare_kind(
    "packing",
    "arranges documents in rows: plan(document_lengths int64, row_length) -> RowPlan; pure, no state",
)


@register_lazy("packing", "best_fit", "littlelm.data.packing.best_fit:BestFit")
class BestFitConfig(ComponentConfig):
    """Throws nothing away: documents longer than a row are cut into row-long pieces, the rest fitted tightly."""


@register_lazy("packing", "best_fit_crop", "littlelm.data.packing.best_fit_crop:BestFitCrop")
class BestFitCropConfig(ComponentConfig):
    """nanochat's packing, for comparison: every row starts with a document; what does not fit is thrown away."""

    buffer_documents: int = Field(1000, ge=1, description="documents among which the best fitting one is looked for")


@register_lazy("packing", "concat", "littlelm.data.packing.concat:Concat")
class ConcatConfig(ComponentConfig):
    """One stream of all documents, cut every row length: nothing lost, most documents start in mid-row."""


class ValidationConfig(ConfigModel):
    """The fixed documents that quality is measured on. Never trained on, nor are exact copies of them."""

    documents: int = Field(
        512, ge=1, description="documents taken out of the sources: those of the smallest content hash, whatever order"
    )
    sources: Annotated[list[ComponentConfig] | None, ComponentOf("source")] = Field(
        None, description="sources of their own instead; all their documents are used"
    )
    max_rows: int | None = Field(None, ge=1, description="evaluate on this many rows at most; null: on all")
    sha256: str | None = Field(
        None, min_length=64, max_length=64, description="expected hash of the set's tokens; another one is an error"
    )


class DataConfig(ConfigModel):
    """Where the text comes from and how it becomes rows of tokens."""

    sources: Annotated[list[ComponentConfig], ComponentOf("source")] = Field(
        min_length=1, description="corpora, read one after the other; rows are shuffled over all of them"
    )
    validation: ValidationConfig = Field(default_factory=ValidationConfig, description="the validation set")
    sequence_length: int = Field(ge=2, description="tokens a row feeds to the model; one more is stored as last target")
    packing: Annotated[ComponentConfig, ComponentOf("packing")] = Field(description="documents -> rows")
    cache_dir: str = Field("~/.cache/little-lm", description="prepared data and trained tokenizers, keyed by content")
    shard_tokens: Count = Field(100_000_000, ge=1000, description="tokens of a shard, roughly")
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="processes that tokenize; auto: one a core. The result does not depend on it"
    )
