"""What every source of documents shares: finding its files, and dividing them among worker processes in order.

A source is cut into units, one shard of tokens each. How it is cut depends on the source alone (not on the machine, the
workers or what the cache holds), so the shards are the same wherever and however often they are made.
"""

from __future__ import annotations

import glob
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from littlelm.errors import UserError
from littlelm.registry import did_you_mean

_COMPRESSED = {".parquet", ".gz", ".zst"}
_COMPRESSION = 3  # text bytes a compressed byte holds, roughly
_UNIT_BYTES = 8_000_000  # text of a unit of a small corpus: enough units to keep the workers busy
_SMALL_UNITS = 16
_BYTES_PER_TOKEN = 4


class Record(NamedTuple):
    """One record of a file, in the file's order: a document, or what stands in its place and why it is left out."""

    text: str | None
    file: int = 0  # index into the part's `file_names()`
    position: int = 0  # row of a parquet file; byte at which the document begins in other files
    reason: str = ""  # of a record without text: empty | null | invalid_utf8


class SourcePart(Protocol):
    """A contiguous run of a source's documents; picklable, so that a worker process can read it alone.

    A part may also have `records() -> Iterator[Record]` (documents with their places, and what is left out) and
    `file_names() -> list[str]`; `records_of` and `file_names_of` do without.
    """

    def documents(self) -> Iterator[str]:
        """Yield the run's documents in the source's order."""
        ...


def records_of(part: SourcePart) -> Iterator[Record]:
    """The records of a part; one that only has `documents()` numbers them, and leaves white space out.

    Raises UserError for a file that cannot be read.
    """
    own = getattr(part, "records", None)
    try:
        if own is not None:
            yield from own()
            return
        for position, text in enumerate(part.documents()):
            yield Record(text, 0, position) if text.strip() else Record(None, 0, position, "empty")
    except OSError as error:
        raise UserError(
            f"{error.filename or file_names_of(part)[0]}: cannot be read: {error.strerror or error}"
        ) from None


def file_names_of(part: SourcePart) -> list[str]:
    """Names that `Record.file` counts through."""
    own = getattr(part, "file_names", None)
    return list(own()) if own is not None else [""]


class _HasPath(Protocol):
    @property
    def path(self) -> Path: ...


def number_files(pieces: Iterable[_HasPath]) -> dict[str, int]:
    """Name of each file of a part's pieces -> its number, in order."""
    names = dict.fromkeys(str(piece.path) for piece in pieces)
    return {name: number for number, name in enumerate(names)}


class RecordPart(ABC):
    """A part that gives records."""

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield every record of the run, those that are left out too."""

    @abstractmethod
    def file_names(self) -> list[str]:
        """The files of the run."""

    def documents(self) -> Iterator[str]:
        """Yield the run's documents."""
        for record in self.records():
            if record.text is not None:
                yield record.text


class Remote(Protocol):
    """A file that lies elsewhere. `fetch` may be called from any thread; a fetched file is whole and checked."""

    name: str
    size: int  # bytes
    local: Path

    def is_here(self) -> bool:
        """Whether it was fetched and is still there."""
        ...

    def fetch(self, progress: Callable[[int], None]) -> None:
        """Fetch it, going on where an earlier attempt stopped; `progress` hears the bytes as they come."""
        ...

    def remove(self) -> None:
        """Delete the local copy."""
        ...


@dataclass(frozen=True)
class Unit:
    """What becomes one shard of tokens."""

    part: SourcePart
    size: int  # bytes of raw data
    remote: Remote | None = None  # what must be fetched first; several units may share it


class Source(ABC):
    """A corpus: documents in a fixed order. Documents that are empty or only white space are left out."""

    tokens_per_raw_byte = 0.25  # a guess of how many tokens a byte of its files holds; for sources that are downloaded

    @abstractmethod
    def split(self, n: int) -> list[SourcePart]:
        """At most `n` parts of about equal size whose concatenation is `documents()`."""

    @abstractmethod
    def files(self) -> list[Path]:
        """The local files that hold the documents, in order."""

    @abstractmethod
    def describe(self) -> str:
        """One line for the user: what it is and how large."""

    def resolve(self, cache_dir: Path, say: Callable[[str], None]) -> None:  # noqa: B027 (nothing to find out)
        """Find out what the source consists of, where that takes more than looking at the disk."""

    def identity(self) -> Any:
        """What tells this content from any other, for the key of the prepared shards; JSON-able."""
        return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in self.files()]

    def size(self) -> int:
        """Bytes of raw data."""
        return sum(path.stat().st_size for path in self.files())

    def text_bytes(self) -> int:
        """Bytes of text, roughly where files are compressed."""
        return sum(path.stat().st_size * (_COMPRESSION if path.suffix in _COMPRESSED else 1) for path in self.files())

    def units(self, shard_tokens: int) -> list[Unit]:
        """The source cut into units of about `shard_tokens` tokens, or a few smaller ones when it is small."""
        size = self.text_bytes()
        small = min(_SMALL_UNITS, -(-size // _UNIT_BYTES))
        parts = self.split(max(1, small, -(-size // (_BYTES_PER_TOKEN * shard_tokens))))
        return [Unit(part, self.size() // max(1, len(parts))) for part in parts]

    def held_out(self) -> Source | None:
        """The documents that the corpus itself sets apart for validation, if it does. They are never in `units`."""
        return None

    def documents(self) -> Iterator[str]:
        """Yield every document in order. Raises UserError when there is none at all."""
        empty = True
        for part in self.split(1):
            for document in part.documents():
                empty = False
                yield document
        if empty:
            raise self.empty_error()

    def empty_error(self) -> UserError:
        """The error for a source without a single document; for readers that go through `split`."""
        names = ", ".join(str(path) for path in self.files()[:3]) + (", ..." if len(self.files()) > 3 else "")
        return UserError(
            f"the corpus is empty: {names} hold no document (white space only does not count); "
            "name files with text under `files`"
        )


def find_files(patterns: Sequence[str]) -> list[Path]:
    """Absolute paths of the files that match, pattern by pattern, sorted within each, none twice.

    Raises UserError for a pattern that matches nothing (with the nearest name in its directory) or only a directory.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        expanded = str(Path(pattern).expanduser())
        is_literal = Path(expanded).exists()  # a file whose own name holds brackets or a star
        matches = [expanded] if is_literal else sorted(glob.glob(expanded, recursive=True))  # noqa: PTH207 (absolute patterns)
        paths = [Path(match).absolute() for match in matches if Path(match).is_file()]
        if not paths and Path(expanded).is_dir():
            raise UserError(f"'{pattern}' is a directory; name its files, e.g. '{pattern.rstrip('/')}/*'")
        if not paths:
            raise UserError(f"no file matches '{pattern}' (looked in {Path.cwd()}){_nearest_name(Path(expanded))}")
        found.update(dict.fromkeys(paths))
    return list(found)


def _nearest_name(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; the directory '{path.parent}' does not exist" if not glob.has_magic(str(path.parent)) else ""
    if glob.has_magic(path.name):
        return f"; the directory '{path.parent}' holds no such file"
    return did_you_mean(path.name, sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())[:200])


def contiguous_groups(weights: Sequence[int], n: int) -> list[range]:
    """Cut items 0..len(weights) into at most `n` non-empty runs of about equal weight, in order."""
    if not weights:
        return []
    ends = list(accumulate(weights))
    total = max(ends[-1], 1)
    # an item belongs to the run in which its middle falls
    owner = [min(n - 1, (2 * end - weight) * n // (2 * total)) for end, weight in zip(ends, weights, strict=True)]
    cuts = [0, *(i for i in range(1, len(owner)) if owner[i] != owner[i - 1]), len(owner)]
    return [range(start, stop) for start, stop in pairwise(cuts)]


def count_files(paths: Sequence[Path]) -> str:
    """`3 files, 12.4 MB`."""
    size = sum(path.stat().st_size for path in paths)
    return f"{len(paths)} file{'s' if len(paths) != 1 else ''}, {size / 1e6:,.1f} MB"
