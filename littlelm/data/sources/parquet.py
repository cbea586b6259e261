"""Parquet files: one document a row, read a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from littlelm.data.source_configs import ParquetSourceConfig
from littlelm.data.sources.base import (
    Record,
    RecordPart,
    Source,
    SourcePart,
    contiguous_groups,
    count_files,
    find_files,
    number_files,
)
from littlelm.errors import UserError
from littlelm.registry import did_you_mean

_BATCH_ROWS = 512  # documents decoded at a time, fewer where they are long: bounds memory whatever the row group
_BATCH_BYTES = 32_000_000
_READ_BYTES = 8_000_000  # of a column read at a time, so that a row group of gigabytes is never in memory as a whole


@dataclass(frozen=True)
class RowGroups:
    """Row groups [start, stop) of a file."""

    path: Path
    start: int
    stop: int


@dataclass(frozen=True)
class ParquetPart(RecordPart):
    """Runs of row groups."""

    groups: tuple[RowGroups, ...]
    column: str

    def file_names(self) -> list[str]:
        return list(number_files(self.groups))

    def records(self) -> Iterator[Record]:
        """Yield the documents with their rows; null ones are left out. Raises UserError for damaged data."""
        numbers = number_files(self.groups)
        for run in self.groups:
            with open_parquet(run.path) as file:
                check_column(file, self.column, run.path)
                yield from _records(file, run, self.column, numbers[str(run.path)])


def _records(file: Any, run: RowGroups, column: str, number: int) -> Iterator[Record]:
    row = sum(file.metadata.row_group(i).num_rows for i in range(run.start))
    for group in range(run.start, run.stop):
        metadata = file.metadata.row_group(group)
        chunks = (metadata.column(i) for i in range(metadata.num_columns))
        size = max(1, sum(c.total_uncompressed_size for c in chunks if c.path_in_schema == column))
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * metadata.num_rows // size))
        batches = file.iter_batches(rows, row_groups=[group], columns=[column], use_threads=False)
        while (values := _next_values(batches, run.path)) is not None:
            for text in _texts(values):
                if isinstance(text, str) and text and not text.isspace():
                    yield Record(text, number, row)
                else:
                    yield Record(None, number, row, _reason(text))
                row += 1


def _reason(text: str | bytes | None) -> str:
    return "null" if text is None else "empty" if isinstance(text, str) else "invalid_utf8"


def _texts(values: Any) -> list[str | bytes | None]:
    """Texts of a column; what is not valid UTF-8 comes as b""."""
    try:
        return list(values.to_pylist())
    except UnicodeDecodeError:  # one of them; which one only a value by value reading tells
        result: list[str | bytes | None] = []
        for value in values:
            try:
                result.append(value.as_py())
            except UnicodeDecodeError:
                result.append(b"")
        return result


class ParquetSource(Source):
    """Parquet files with a string column; see `ParquetSourceConfig`."""

    def __init__(self, config: ParquetSourceConfig) -> None:
        self.column = config.column
        self._files = find_files(config.files)
        self._rows = [self._rows_by_group(path) for path in self._files]

    def _rows_by_group(self, path: Path) -> list[int]:
        """Rows of each row group, after checking that the column is there and holds text."""
        with open_parquet(path) as file:
            check_column(file, self.column, path)
            return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]

    def files(self) -> list[Path]:
        return self._files

    def describe(self) -> str:
        return f"parquet: {count_files(self._files)}, {sum(map(sum, self._rows)):,} rows, column '{self.column}'"

    def split(self, n: int) -> list[SourcePart]:
        groups = [
            (path, i, rows) for path, each in zip(self._files, self._rows, strict=True) for i, rows in enumerate(each)
        ]
        runs = contiguous_groups([rows for _, _, rows in groups], n)
        return [ParquetPart(_join([groups[i][:2] for i in run]), self.column) for run in runs]


def _join(groups: list[tuple[Path, int]]) -> tuple[RowGroups, ...]:
    """Neighbouring row groups of one file become one run, so that each file is opened once."""
    joined: list[RowGroups] = []
    for path, index in groups:
        if joined and joined[-1].path == path and joined[-1].stop == index:
            joined[-1] = RowGroups(path, joined[-1].start, index + 1)
        else:
            joined.append(RowGroups(path, index, index + 1))
    return tuple(joined)


def open_parquet(path: Path) -> Any:
    """Open a file. Raises UserError when it is damaged."""
    try:
        return pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def check_column(file: Any, column: str, path: Path) -> None:
    """Raise UserError unless the file has this column and it holds text."""
    schema = file.schema_arrow
    if column not in schema.names:
        raise UserError(f"{path}: no column '{column}'{did_you_mean(column, schema.names)}; set `column` of the source")
    kind = schema.field(column).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)):
        raise UserError(f"{path}: column '{column}' holds {kind}, not text; set `column` of the source")


def _next_values(batches: Iterator[Any], path: Path) -> Any:
    try:
        batch = next(batches, None)
        return None if batch is None else batch.column(0)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UserError(f"{path}: not a readable parquet file ({reason}); was it downloaded or written completely?")
