"""Parquet files: one document a row, read a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from littlelm.data.source_configs import ParquetSourceConfig
from littlelm.data.sources.base import Source, SourcePart, contiguous_groups, count_files, find_files
from littlelm.errors import UserError
from littlelm.registry import did_you_mean

_BATCH_ROWS = 512  # documents decoded at a time: bounds memory whatever the size of a row group


@dataclass(frozen=True)
class RowGroups:
    """Row groups [start, stop) of a file."""

    path: Path
    start: int
    stop: int


@dataclass(frozen=True)
class ParquetPart:
    """Runs of row groups."""

    groups: tuple[RowGroups, ...]
    column: str

    def documents(self) -> Iterator[str]:
        """Yield the documents; null ones are left out. Raises UserError for damaged data."""
        for run in self.groups:
            with _open(run.path) as file:
                batches = file.iter_batches(
                    _BATCH_ROWS, row_groups=list(range(run.start, run.stop)), columns=[self.column], use_threads=False
                )
                while (texts := _next_texts(batches, run.path)) is not None:
                    for text in texts:
                        if text and text.strip():
                            yield text


class ParquetSource(Source):
    """Parquet files with a string column; see `ParquetSourceConfig`."""

    def __init__(self, config: ParquetSourceConfig) -> None:
        self.column = config.column
        self._files = find_files(config.files)
        self._rows = [self._rows_by_group(path) for path in self._files]

    def _rows_by_group(self, path: Path) -> list[int]:
        """Rows of each row group, after checking that the column is there and holds text."""
        with _open(path) as file:
            schema = file.schema_arrow
            if self.column not in schema.names:
                raise UserError(
                    f"{path}: no column '{self.column}'{did_you_mean(self.column, schema.names)}; "
                    "set `column` of the source"
                )
            kind = schema.field(self.column).type
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)):
                raise UserError(f"{path}: column '{self.column}' holds {kind}, not text; set `column` of the source")
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


def _open(path: Path) -> Any:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _next_texts(batches: Iterator[Any], path: Path) -> list[str | None] | None:
    try:
        batch = next(batches, None)
        return None if batch is None else batch.column(0).to_pylist()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: a document is not valid UTF-8 ({error.reason}); write the file again as text"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UserError(f"{path}: not a readable parquet file ({reason}); was it downloaded or written completely?")
