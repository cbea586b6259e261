"""The few file-system operations that checkpoints are made of, in one place.

Whatever must survive a kill goes through these functions, so that a test can stop the world at each of them
(`test_crash_at_every_write`). Every function that names a path raises plain OSError; callers say what it means.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

_CHUNK = 16 * 2**20

# Called before every operation with its name; a test replaces it to crash there. Returning "torn" from a write makes
# only half of the bytes arrive before the crash.
hook: Callable[[str, Path], str | None] | None = None


def _announce(operation: str, path: Path) -> str | None:
    return hook(operation, path) if hook is not None else None


def make_directory(path: Path) -> None:
    """Create one directory (and its parents)."""
    _announce("mkdir", path)
    path.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write, flush and fsync a new file. Returns (bytes, sha256), the digest taken of what was meant to be written."""
    digest = hashlib.sha256()
    size = 0
    _announce("open", path)
    with path.open("wb") as file:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            for start in range(0, len(view), _CHUNK):
                piece = view[start : start + _CHUNK]
                if _announce("write", path) == "torn":
                    file.write(piece[: len(piece) // 2])
                    file.flush()
                    os._exit(9)
                file.write(piece)
                digest.update(piece)
                size += len(piece)
        file.flush()
        _announce("fsync", path)
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def sync_directory(path: Path) -> None:
    """Make the names inside a directory durable."""
    _announce("fsync", path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename and make the new name durable."""
    _announce("rename", target)
    source.rename(target)
    sync_directory(target.parent)


def remove_tree(path: Path) -> None:
    """Delete a directory, file by file."""
    _announce("remove", path)
    shutil.rmtree(path)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file: the old or the new content is there, never a mixture."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_file(temporary, [data])
    _announce("rename", path)
    temporary.replace(path)
    sync_directory(path.parent)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
