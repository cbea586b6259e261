"""Typed configs of the sources that are downloaded from a hub. Free of pyarrow and of the hub's client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from littlelm.data.source_configs import SourceConfig
from littlelm.registry import register_lazy

FINEWEB_SAMPLES = ("sample-10BT", "sample-100BT", "sample-350BT")
REPO_PATTERN = r"^[A-Za-z0-9_][\w.\-]*(/[\w.\-]+)?$"
REVISION_PATTERN = r"^[\w][\w.\-/]*$"


@dataclass(frozen=True)
class Selection:
    """Which files of which repository, and where in them the text is."""

    repo: str
    files: tuple[str, ...]  # globs
    held_out: tuple[str, ...]  # globs
    column: str


class HubDownloadConfig(SourceConfig):
    """Keys of every source that is downloaded. All but `column` say how it is fetched, not what is prepared."""

    # They reach the key of the prepared shards through the names and digests of the files, or not at all.
    not_content: ClassVar[frozenset[str]] = frozenset(
        {
            "repo", "files", "held_out", "config", "revision", "endpoint", "parallel_downloads", "keep_raw",
            "max_files", "tokens_per_raw_byte", "retries", "backoff_seconds", "stall_seconds",
        }
    )  # fmt: skip

    published: ClassVar[tuple[int, int] | None] = None  # files, bytes of each: what a plan assumes without a network

    revision: str = Field(
        "main",
        pattern=REVISION_PATTERN,
        description="branch, tag or commit; found out once and kept as a commit in data.cache_dir, so that a run that "
        "is started again reads the same files though the branch moved",
    )
    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+.*$",
        description="URL of a mirror; null: HF_ENDPOINT of the environment, or the hub itself. The token (HF_TOKEN of "
        "the environment) is never sent to a mirror that is named here",
    )
    max_files: int | None = Field(
        None, ge=1, description="read only this many first files; null: as many as the run's tokens need"
    )
    parallel_downloads: int = Field(4, ge=1, le=64, description="files fetched at the same time")
    keep_raw: bool = Field(True, description="keep the downloaded files; false: delete each once it is tokenized")
    tokens_per_raw_byte: float = Field(
        0.5,
        gt=0,
        description="tokens a byte of its files holds, a guess that is used until the first ones are tokenized",
    )
    retries: int = Field(
        10, ge=0, description="failures in a row, none of which brought a file further, before a download gives up"
    )
    backoff_seconds: float = Field(
        1.0, gt=0, description="wait after the first failure; doubled with each further one, up to 60 times as long"
    )
    stall_seconds: float = Field(30.0, gt=0, description="a connection that brings nothing for so long is given up")

    def selection(self) -> Selection:
        """The files this config names."""
        raise NotImplementedError


@register_lazy("source", "hub", "littlelm.data.sources.hub:HubSource")
class HubConfig(HubDownloadConfig):
    """Files of a data set on the Hugging Face hub: parquet, JSON Lines (`.gz`, `.zst` too) or text, by their suffix."""

    repo: str = Field(pattern=REPO_PATTERN, description="the data set's name, e.g. HuggingFaceFW/fineweb-edu")
    files: list[str] = Field(
        default=["**/*.parquet"],
        min_length=1,
        description="names or globs inside the repository (`*` stays within a directory, `**` does not); sorted "
        "within each pattern",
    )
    column: str = Field("text", min_length=1, description="parquet column, or key of each JSON line, with the text")
    held_out: list[str] = Field(
        default_factory=list,
        description="names or globs of files that are for validation: never trained on, and the validation documents "
        "are taken from them",
    )

    def selection(self) -> Selection:
        return Selection(self.repo, tuple(self.files), tuple(self.held_out), self.column)


@register_lazy("source", "climbmix", "littlelm.data.sources.hub:HubSource")
class ClimbMixConfig(HubDownloadConfig):
    """ClimbMix, about 400B tokens, shuffled: 6,543 parquet files of 100 MB. The last one is for validation."""

    published: ClassVar[tuple[int, int] | None] = (6542, 100_000_000)

    tokens_per_raw_byte: float = Field(
        0.61, gt=0, description="tokens a byte of its files holds: about 61M a file; used until the first are tokenized"
    )

    def selection(self) -> Selection:
        return Selection("karpathy/climbmix-400b-shuffle", ("shard_*.parquet",), ("shard_06542.parquet",), "text")


@register_lazy("source", "fineweb_edu", "littlelm.data.sources.hub:HubSource")
class FineWebEduConfig(HubDownloadConfig):
    """FineWeb-Edu, web pages that a classifier found educational (Penedo et al. 2024, arXiv:2406.17557)."""

    config: Annotated[str, Field(pattern=r"^(sample-(10|100|350)BT|default|CC-MAIN-\d{4}-\d{2})$")] = Field(
        "sample-10BT",
        description="sample-10BT | sample-100BT | sample-350BT (billions of GPT-2 tokens), default (all 1.3T), or one "
        "crawl, e.g. CC-MAIN-2024-10",
    )
    tokens_per_raw_byte: float = Field(
        0.36, gt=0, description="tokens a byte of its files holds, a guess that is used until the first are tokenized"
    )

    def selection(self) -> Selection:
        if self.config in FINEWEB_SAMPLES:
            pattern = f"sample/{self.config.removeprefix('sample-')}/*.parquet"
        elif self.config == "default":
            pattern = "data/*/*.parquet"
        else:
            pattern = f"data/{self.config}/*.parquet"
        return Selection("HuggingFaceFW/fineweb-edu", (pattern,), (), "text")
