"""Typed configs of the data section and of the packers. Free of torch and numpy."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, model_validator

import littlelm.data.hub.configs  # registers the sources that are downloaded
import littlelm.data.source_configs  # noqa: F401  (registers the sources)
from littlelm.config.base import ComponentConfig, ComponentOf, ConfigModel, Count
from littlelm.data.filters.configs import TextConfig
from littlelm.registry import declare_kind, did_you_mean, register_lazy

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


class MixtureConfig(ConfigModel):
    """How several sources are mixed, and what happens when one is used up."""

    temperature: float | None = Field(
        None,
        gt=0,
        description="weights from sizes instead of `weight` keys: tokens^(1/temperature); 1 is in proportion, larger "
        "lifts small sources",
    )
    max_epochs: float = Field(
        4.0,
        gt=0,
        description="times a source may be read in a run, unless it says otherwise (up to 4 repetitions cost little: "
        "Muennighoff et al. 2023, arXiv:2305.16264)",
    )
    on_exhausted: Literal["error", "repeat", "stop"] = Field(
        "error",
        description="when a run needs a source more often than allowed. error: refuse before training; repeat: read it "
        "again and say so; stop: end the run, schedule included, where the first source is used up",
    )


class StageConfig(ConfigModel):
    """Another mixture for the last part of the run, for instance the best text while the learning rate falls."""

    last: float = Field(gt=0, lt=1, description="share of the run's steps that this stage covers, counted from the end")
    weights: dict[str, float] = Field(min_length=1, description="id of a source -> weight; sources not named have none")


class DataConfig(ConfigModel):
    """Where the text comes from and how it becomes rows of tokens."""

    sources: Annotated[list[ComponentConfig], ComponentOf("source")] = Field(
        min_length=1, description="corpora; without weights rows are shuffled over all of them"
    )
    mixture: MixtureConfig = Field(default_factory=MixtureConfig, description="weights and repetition")
    stages: list[StageConfig] = Field(default_factory=list, description="other mixtures for the end of the run")
    text: TextConfig = Field(default_factory=TextConfig, description="what is done to a document before anything else")
    filters: Annotated[list[ComponentConfig], ComponentOf("filter")] = Field(
        default_factory=list, description="which documents are left out, in this order; each is counted"
    )
    validation: ValidationConfig = Field(default_factory=ValidationConfig, description="the validation set")
    sequence_length: int = Field(ge=2, description="tokens a row feeds to the model; one more is stored as last target")
    packing: Annotated[ComponentConfig, ComponentOf("packing")] = Field(description="documents -> rows")
    cache_dir: str = Field("~/.cache/little-lm", description="prepared data and trained tokenizers, keyed by content")
    store: str | None = Field(
        None,
        description="where prepared shards are looked for before they are made, and put afterwards: a directory or a "
        "URL (s3://bucket/prefix, gs://...), shared by machines that prepare together",
    )
    shard_tokens: Count = Field(100_000_000, ge=1000, description="tokens of a shard, roughly")
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="processes that tokenize; auto: one a core. The result does not depend on it"
    )

    @property
    def source_ids(self) -> list[str]:
        """The name of each source: its `id`, or its component's name, numbered when several have the same."""
        plain = [getattr(source, "id", None) or source.name for source in self.sources]
        counts, seen = Counter(plain), Counter[str]()
        names = []
        for name in plain:
            seen[name] += 1
            names.append(f"{name}-{seen[name]}" if counts[name] > 1 else name)
        return names

    @model_validator(mode="after")
    def _mixtures_make_sense(self) -> DataConfig:
        given = [getattr(source, "weight", None) for source in self.sources]
        if any(weight is not None for weight in given) and None in given:
            missing = self.source_ids[given.index(None)]
            raise ValueError(
                f"sources: '{missing}' has no weight while others have one; give every source one, or none"
            )
        if given[0] is not None and self.mixture.temperature is not None:
            raise ValueError("mixture.temperature and weights of sources exclude each other; remove one of them")
        if given[0] is not None and not any(given):
            raise ValueError("sources: every weight is 0; give at least one source more")
        ids = self.source_ids
        if len(set(ids)) < len(ids):
            raise ValueError(
                f"sources: two have the id '{Counter(ids).most_common(1)[0][0]}'; give them different ones"
            )
        for stage in self.stages:
            for name in stage.weights:
                if name not in ids:
                    raise ValueError(f"stages: no source has the id '{name}'{did_you_mean(name, ids)}")
            if min(stage.weights.values()) < 0 or not any(stage.weights.values()):
                raise ValueError("stages: weights are 0 or more, and at least one is more than 0")
        lasts = [stage.last for stage in self.stages]
        if lasts != sorted(lasts, reverse=True) or len(set(lasts)) < len(lasts):
            raise ValueError(f"stages: `last` must fall from stage to stage, not {lasts}")
        return self
