"""Waiting for a lock that another thread or process may hold for hours, without becoming deaf."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from littlelm.filesystem import make_directories

_POLL_SECONDS = 0.1
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP)


def take_lock(descriptor: int, listen: Callable[[], None]) -> None:
    """Lock an open file; calls `listen` while it waits, and what that raises ends the wait.

    The lock belongs to the opened file, so it keeps threads of one process apart as well, and it ends with its process.
    Where the file system has no locks (some network ones) nothing is locked.
    """
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            listen()
            time.sleep(_POLL_SECONDS)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, which is created when it is not there."""
    make_directories(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        take_lock(descriptor, lambda: None)
        yield
    finally:
        os.close(descriptor)
