"""Plain text files as documents."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from littlelm.data.source_configs import TextSourceConfig
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


@dataclass(frozen=True)
class ByteRange:
    """Bytes [start, stop) of a file; they begin and end at document boundaries."""

    path: Path
    start: int
    stop: int


@dataclass(frozen=True)
class TextPart(RecordPart):
    """Whole files, or runs of documents between two separators."""

    ranges: tuple[ByteRange, ...]
    separator: str | None

    def file_names(self) -> list[str]:
        return list(number_files(self.ranges))

    def records(self) -> Iterator[Record]:
        """Yield the documents; only one of them is in memory at a time."""
        numbers = number_files(self.ranges)
        for piece in self.ranges:
            number = numbers[str(piece.path)]
            if self.separator is None:
                yield _record(piece.path.read_bytes(), number, 0)
                continue
            with _mapped(piece.path) as content:
                for start, stop in _spans(content, piece, self.separator.encode()):
                    yield _record(content[start:stop], number, start)


class TextSource(Source):
    """UTF-8 text files; see `TextSourceConfig`. Text is taken as it lies in the file: newlines stay as they are."""

    def __init__(self, config: TextSourceConfig) -> None:
        self.separator = config.separator
        self._files = find_files(config.files)

    def files(self) -> list[Path]:
        return self._files

    def describe(self) -> str:
        how = "one document a file" if self.separator is None else f"documents divided by {self.separator!r}"
        return f"text: {count_files(self._files)}, {how}"

    def split(self, n: int) -> list[SourcePart]:
        ranges = [ByteRange(path, 0, path.stat().st_size) for path in self._files]
        if self.separator is not None and n > 1:
            target = max(1, sum(piece.stop for piece in ranges) // n)
            ranges = [cut for piece in ranges for cut in _cut_at_separators(piece, self.separator.encode(), target)]
        groups = contiguous_groups([piece.stop - piece.start for piece in ranges], n)
        return [TextPart(tuple(ranges[i] for i in group), self.separator) for group in groups]


def _record(raw: bytes, number: int, offset: int) -> Record:
    if offset == 0 and raw.startswith(b"\xef\xbb\xbf"):  # a byte-order mark
        raw = raw[3:]
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return Record(None, number, offset, "invalid_utf8")
    return Record(text, number, offset) if text and not text.isspace() else Record(None, number, offset, "empty")


@contextmanager
def _mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        yield b""
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def _spans(content: bytes | mmap.mmap, piece: ByteRange, mark: bytes) -> Iterator[tuple[int, int]]:
    """Byte spans of the documents within a range; separators are matched from its start, as str.split does."""
    start = piece.start
    while (found := content.find(mark, start, piece.stop)) >= 0:
        yield start, found
        start = found + len(mark)
    yield start, piece.stop


def _cut_at_separators(piece: ByteRange, mark: bytes, target: int) -> Iterator[ByteRange]:
    """Cut a file into ranges of about `target` bytes that end just after a separator.

    The separators are walked from the start of the file, so overlapping candidates (a run of newlines) are matched
    the same way however many parts are asked for.
    """
    begin = piece.start
    with _mapped(piece.path) as content:
        for _, stop in _spans(content, piece, mark):
            end = min(stop + len(mark), piece.stop)
            if end - begin >= target:
                yield ByteRange(piece.path, begin, end)
                begin = end
    if begin < piece.stop:
        yield ByteRange(piece.path, begin, piece.stop)
