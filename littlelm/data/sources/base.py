"""What every source of documents shares: finding its files, and dividing them among worker processes in order."""

from __future__ import annotations

import glob
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Protocol

from littlelm.errors import UserError
from littlelm.registry import did_you_mean


class SourcePart(Protocol):
    """A contiguous run of a source's documents; picklable, so that a worker process can read it alone."""

    def documents(self) -> Iterator[str]:
        """Yield the run's documents in the source's order."""
        ...


class Source(ABC):
    """A corpus: documents in a fixed order. Documents that are empty or only white space are left out."""

    @abstractmethod
    def split(self, n: int) -> list[SourcePart]:
        """At most `n` parts of about equal size whose concatenation is `documents()`."""

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that hold the documents, in order."""

    @abstractmethod
    def describe(self) -> str:
        """One line for the user: what it is and how large."""

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


def decode_utf8(raw: bytes, path: Path, offset: int = 0) -> str:
    """Decode a document exactly as it lies in the file. Raises UserError with the place of a wrong byte.

    `offset` is where `raw` starts in the file, in bytes. A byte-order mark at the start of the file is dropped.
    """
    if offset == 0 and raw.startswith(b"\xef\xbb\xbf"):
        raw, offset = raw[3:], 3
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not valid UTF-8 at byte {offset + error.start} (0x{raw[error.start]:02x}); convert it first, "
            f"e.g. `iconv -f latin1 -t utf-8 {path.name}`, if that is its encoding"
        ) from None


def count_files(paths: Sequence[Path]) -> str:
    """`3 files, 12.4 MB`."""
    size = sum(path.stat().st_size for path in paths)
    return f"{len(paths)} file{'s' if len(paths) != 1 else ''}, {size / 1e6:,.1f} MB"
