"""Durable writing of prepared data: digests taken while writing, then fsync."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from littlelm.errors import UserError
from littlelm.filesystem import sha256_of_file


class DigestedFile:
    """A file being written; `close` fsyncs it and gives its size and sha256."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, array: NDArray[Any]) -> None:
        """Append the array's bytes."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def close(self) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"name": self.path.name, "bytes": self._size, "sha256": self._digest.hexdigest()}


def write_array(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    """Write the raw bytes of an array durably; returns name, bytes, sha256."""
    file = DigestedFile(path)
    file.write(array)
    return file.close()


def save_array(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    """Write an array as .npy durably; returns name, bytes, sha256."""
    with path.open("wb") as file:
        np.save(file, array)
        file.flush()
        os.fsync(file.fileno())
    size, digest = sha256_of_file(path)
    return {"name": path.name, "bytes": size, "sha256": digest}


def read_json(path: Path, schema_version: int) -> dict[str, Any]:
    """Read a JSON object of ours. Raises UserError when it is damaged or of another version."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{path}: damaged; delete it to have it made anew")
    if value.get("schema_version") != schema_version:
        raise UserError(
            f"{path}: its schema_version is {value.get('schema_version')}, this little-lm reads {schema_version}; "
            "delete it to have it made anew"
        )
    return value


def check_file(path: Path, entry: dict[str, Any], digest: bool) -> None:
    """Raise UserError unless the file has the recorded size (and, if asked, sha256)."""
    mend = f"delete {path.parent / path.name.split('.')[0]}.json to have this shard prepared anew"
    if not path.is_file():
        raise UserError(f"{path}: missing from the prepared data; {mend}")
    if path.stat().st_size != entry["bytes"]:
        raise UserError(f"{path}: {path.stat().st_size} bytes instead of {entry['bytes']}; {mend}")
    if digest and sha256_of_file(path)[1] != entry["sha256"]:
        raise UserError(f"{path}: damaged (its sha256 is not the recorded one); {mend}")


@contextlib.contextmanager
def exclusive(path: Path, console: Console) -> Iterator[None]:
    """Hold a lock file; a second process waits and says so. The lock dies with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("another process prepares the same data; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP):
                raise
            console.print(f"{path.parent}: a file system without locks; prepare here from one process at a time")
        yield


@contextlib.contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Turn failures of the disk into one clear UserError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"{directory}: no space left on the disk while preparing data; finished shards are kept. Free space "
                "or set data.cache_dir to another disk"
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise UserError(
                f"{error.filename or directory}: {error.strerror}; set data.cache_dir to a place you can write"
            ) from None
        raise


def check_room(directory: Path, needed: int) -> None:
    """Raise UserError when the disk has less than `needed` bytes free."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise UserError(
            f"{directory}: preparing this corpus needs about {needed / 1e9:.1f} GB, the disk has {free / 1e9:.1f} GB "
            "free; free space or set data.cache_dir to another disk"
        )
