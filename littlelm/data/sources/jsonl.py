"""JSON Lines: one object a line, one document an object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from littlelm.data.source_configs import JsonlSourceConfig
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

_COMPRESSION = {".gz": "gzip", ".zst": "zstd"}
_WINDOW = 1 << 20  # bytes read at a time when looking for the end of a line


@dataclass(frozen=True)
class LineRange:
    """Bytes [start, stop) of a file, whole lines; a compressed file is always one range."""

    path: Path
    start: int
    stop: int


@dataclass(frozen=True)
class JsonlPart(RecordPart):
    """Runs of lines."""

    ranges: tuple[LineRange, ...]
    field: str

    def file_names(self) -> list[str]:
        return list(number_files(self.ranges))

    def records(self) -> Iterator[Record]:
        """Yield the documents. Raises UserError with file:line for a line that is no object with the field."""
        numbers = number_files(self.ranges)
        for piece in self.ranges:
            file_number = numbers[str(piece.path)]
            with _open(piece.path) as file:
                if piece.start:
                    file.seek(piece.start)
                position, number = piece.start, 0
                while position < piece.stop or piece.path.suffix in _COMPRESSION:
                    line = _read_line(file, piece.path)
                    if not line:
                        break
                    number += 1
                    if not line.isspace():
                        yield self._record(line, piece, position, number)._replace(file=file_number)
                    position += len(line)

    def _record(self, line: bytes, piece: LineRange, position: int, number: int) -> Record:
        def where() -> str:  # only a mistake pays for counting the lines before this range
            return f"{piece.path}:{_lines_before(piece) + number}"

        if position == 0 and line.startswith(b"\xef\xbb\xbf"):  # a byte-order mark
            line = line[3:]
        try:
            entry = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            return Record(None, 0, position, "invalid_utf8")
        except json.JSONDecodeError as error:
            raise UserError(
                f"{where()}: not a JSON object: {error.msg} at column {error.colno}; "
                "a JSON Lines file holds one object a line"
            ) from None
        except RecursionError:
            raise UserError(f"{where()}: this JSON is nested too deeply to be read") from None
        if not isinstance(entry, dict):
            raise UserError(
                f'{where()}: expected an object such as {{"{self.field}": "..."}}, got {type(entry).__name__}'
            )
        if self.field not in entry:
            raise UserError(
                f"{where()}: no field '{self.field}'{did_you_mean(self.field, sorted(entry))}; "
                "set `field` of the source"
            )
        text = entry[self.field]
        if text is None:
            return Record(None, 0, position, "null")
        if not isinstance(text, str):
            raise UserError(f"{where()}: field '{self.field}' holds {type(text).__name__}, not text")
        if b"\\u" in line:  # an escape may spell half of a surrogate pair, which no encoding can write
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return Record(text, 0, position) if text and not text.isspace() else Record(None, 0, position, "empty")


class JsonlSource(Source):
    """JSON Lines files; see `JsonlSourceConfig`."""

    def __init__(self, config: JsonlSourceConfig) -> None:
        self.field = config.field
        self._files = find_files(config.files)

    def files(self) -> list[Path]:
        return self._files

    def describe(self) -> str:
        return f"jsonl: {count_files(self._files)}, field '{self.field}'"

    def split(self, n: int) -> list[SourcePart]:
        ranges = [LineRange(path, 0, path.stat().st_size) for path in self._files]
        if n > 1:
            target = max(1, sum(piece.stop for piece in ranges) // n)
            ranges = [cut for piece in ranges for cut in _cut_at_newlines(piece, target)]
        groups = contiguous_groups([piece.stop - piece.start for piece in ranges], n)
        return [JsonlPart(tuple(ranges[i] for i in group), self.field) for group in groups]


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    compression = _COMPRESSION.get(path.suffix)
    if compression is None:
        with path.open("rb") as file:
            yield file
        return
    import io

    import pyarrow as pa

    stream: Any = pa.input_stream(str(path), compression=compression, buffer_size=_WINDOW)
    with stream:
        yield io.BufferedReader(stream, _WINDOW)  # pyarrow's own readline is slow


def _read_line(file: IO[bytes], path: Path) -> bytes:
    try:
        return file.readline()
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be decompressed ({error}); is the file complete?") from None


def _cut_at_newlines(piece: LineRange, target: int) -> Iterator[LineRange]:
    """Cut a file into ranges of about `target` bytes that end after a newline."""
    if piece.path.suffix in _COMPRESSION:
        yield piece
        return
    begin = piece.start
    with piece.path.open("rb") as file:
        while begin < piece.stop:
            end = _after_newline(file, begin + target - 1, piece.stop)
            yield LineRange(piece.path, begin, end)
            begin = end


def _after_newline(file: IO[bytes], position: int, stop: int) -> int:
    """Position just after the first newline at or after `position`; `stop` when there is none."""
    file.seek(position)
    while position < stop:
        window = file.read(_WINDOW)
        found = window.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(window)
    return stop


def _lines_before(piece: LineRange) -> int:
    lines, left = 0, piece.start
    with _open(piece.path) as file:
        while left > 0 and (window := file.read(min(_WINDOW, left))):
            lines += window.count(b"\n")
            left -= len(window)
    return lines
