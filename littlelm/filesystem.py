"""Every operation of ours that changes a disk, in one place, and the durable writes made of them.

A file system may lose or reorder whatever was not fsynced when the power goes: a file's bytes until `fsync(file)`, its
name until `fsync(directory)`. A rename within a directory is atomic. So whatever must be all-or-nothing is written
under a temporary name, fsynced, renamed, and the rename fsynced (Pillai et al., "All File Systems Are Not Created
Equal", OSDI 2014, on which orderings applications may rely on: none but these).

The primitive operations are methods of one object, `disk`, so that a test can put another in its place that dies,
tears a write in two or reports a full disk at the k-th operation, for every k.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from littlelm.errors import UserError

PIECE = 16 * 2**20  # bytes of one write, so that writing and hashing overlap piece by piece
_INLINE = 2**18  # bytes below which handing a piece to the hashing thread costs more than it saves


class Disk:
    """The primitive operations that change a disk, one method each."""

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def create(self, path: Path) -> int:
        """Open a new or emptied file for writing; returns its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`; returns the number of bytes written."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Return once the file's bytes, or the directory's names, are on the disk."""
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves them in the drive's cache
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove_file(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()


disk = Disk()


def sync_directory(path: Path) -> None:
    """Make the names in a directory (created, renamed, removed) durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        disk.sync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems know no fsync of directories
            raise
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, durably."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        try:
            disk.make_directory(each)
        except FileExistsError:
            if not each.is_dir():
                raise
        sync_directory(each.parent)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[disk.write(descriptor, data) :]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell an OSError from writing `path` as what it is to a user. Raises UserError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{path}: cannot be written: {reason}; make room there or check its permissions") from error


def write_file(path: Path, chunks: Iterable[memoryview | bytes]) -> tuple[int, str]:
    """Write a file from its chunks and fsync it. Returns its size in bytes and its SHA-256 (hex).

    Nothing is copied. The hash of a piece is taken in a second thread while the piece is written (hashlib releases
    the interpreter lock), so the slower of the two is all it costs. The caller makes the file's name durable.
    """
    digest, size = hashlib.sha256(), 0
    descriptor = disk.create(path)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="sha256") as hashing:  # its thread starts with the first piece
            for chunk in chunks:
                whole = memoryview(chunk).cast("B")
                size += len(whole)
                for start in range(0, len(whole), PIECE):
                    piece = whole[start : start + PIECE]
                    if len(piece) < _INLINE:
                        digest.update(piece)
                        _write_all(descriptor, piece)
                    else:
                        hashed = hashing.submit(digest.update, piece)
                        _write_all(descriptor, piece)
                        hashed.result()
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
    return size, digest.hexdigest()


def write_atomically(path: Path, data: bytes, many_writers: bool = False) -> None:
    """Replace a file's whole content durably: after a crash at any point it holds the old bytes or the new ones.

    The temporary name is fixed, so what a killed process left is overwritten by the next one; for one writer at a time.
    With `many_writers` each process has a name of its own: the last one to finish wins.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid() if many_writers else 'tmp'}")
    try:
        write_file(temporary, [data])
        disk.rename(temporary, path)
    except OSError:
        if many_writers:
            with contextlib.suppress(OSError):  # there may be nothing to clear away
                disk.remove_file(temporary)
        raise
    sync_directory(path.parent)


def remove_tree(path: Path) -> None:
    """Delete a directory and everything in it. Links are removed, not followed."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            disk.remove_file(entry)
    disk.remove_directory(path)


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write to the file system that holds `path`."""
    return shutil.disk_usage(path).free


def sha256_of_file(path: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 (hex) of a file, read in pieces."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def hold_lock(path: Path) -> int | None:
    """Take the lock of a file or directory without waiting; returns a descriptor, or None when a live process has it.

    The lock ends with the descriptor, so a killed process holds none: this tells leftovers from work in progress,
    which process numbers cannot once they are reused or the container is another one. Where the file system has no
    such locks (some network ones), everything counts as free.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP):
            os.close(descriptor)
            raise
    return descriptor
