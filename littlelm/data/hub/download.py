"""Fetching one file of a data set: it goes on where it stopped, and nobody sees it before its digest is the hub's.

    files/<digest>/<name>.part       what has come so far; locked by who writes it, so one writes and the others wait
    files/<digest>/<name>            the whole file, checked and on the disk
    files/<digest>/.<name>.checked   its size, time and inode when it was checked: nothing is hashed twice

The digest in the path is the hub's, so a file that stays the same from one commit to the next is not fetched again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

from littlelm.data.hub.client import PERMANENT, Hub, TryAgainError, explain, raise_if_passing, reason_of, wait
from littlelm.data.hub.listing import HubFile
from littlelm.data.hub.locks import take_lock
from littlelm.errors import UserError
from littlelm.filesystem import disk, free_bytes, make_directories, sync_directory, write_atomically

_WRONG = 4  # times a file may come with a wrong digest: a proxy that alters bytes will go on doing so
_PROGRESS = 1000  # an attempt counts as progress when it brings this part of a file
_SLOW_BYTES = 1000  # fewer than this in `stall` seconds is a stall too
_READ = 2**22
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RemoteFile:
    """One file of a data set at a commit, and where it lies when it is here; a `sources.base.Remote`, picklable.

    Args:
        hub: where it is fetched from.
        repo: name of the data set.
        commit: the commit, 40 hex digits.
        file: what the hub lists.
        directory: of the data set in the cache.
    """

    def __init__(self, hub: Hub, repo: str, commit: str, file: HubFile, directory: Path) -> None:
        self.hub, self.repo, self.commit, self.directory = hub, repo, commit, directory
        self.name, self.size, self.digest = file
        self._hex = file.digest.partition(":")[2]
        self.local = directory / "files" / self._hex[:16] / file.name

    def is_here(self) -> bool:
        """Whether it is here as it was when it was checked: no byte is read, its size, time and inode tell."""
        try:
            status = self.local.stat()
            return bool(json.loads(self._marker.read_bytes()) == self._seal(status))
        except (OSError, ValueError):
            return False

    def remove(self) -> None:
        """Delete it."""
        for path in (self._marker, self.local):
            if path.exists():
                disk.remove_file(path)

    def fetch(self, progress: Callable[[int], None]) -> None:
        """Fetch it unless it is here. Any number of threads and processes may ask; one of them does it.

        `progress` hears the bytes as they come, those of an earlier attempt at once, and a negative number when bytes
        turn out to be wrong; 0 while nothing comes. What it raises ends the download, which can go on later.

        Raises:
            UserError: it cannot be had: no network, no access, no such file, a full disk, bytes that are not the hub's.
        """
        while not self.is_here():
            make_directories(self.local.parent)
            descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                take_lock(descriptor, lambda: progress(0))
                if not self._is_still(descriptor):
                    continue  # who held the lock has finished, or started anew
                if self.is_here() or self._adopt():
                    disk.remove_file(self._partial)
                    return
                _Download(self, descriptor, progress).run()
                self._finish(descriptor)
            except OSError as error:
                if error.errno in _FULL:
                    raise UserError(
                        f"{self.local.parent}: no space left for {self.name} ({self.size / 1e9:.2f} GB, "
                        f"{free_bytes(self.directory) / 1e9:.2f} GB free); what came so far is kept. Free space, set "
                        "data.cache_dir to another disk, or `keep_raw: false`"
                    ) from None
                raise
            finally:
                os.close(descriptor)

    @property
    def _partial(self) -> Path:
        return self.local.with_name(f"{self.local.name}.part")

    @property
    def _marker(self) -> Path:
        return self.local.with_name(f".{self.local.name}.checked")

    def _seal(self, status: os.stat_result) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "digest": self.digest,
            "bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "inode": status.st_ino,
        }

    def _is_still(self, descriptor: int) -> bool:
        """Whether the open file is still the one of that name."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._partial.stat())
        except FileNotFoundError:
            return False

    def _adopt(self) -> bool:
        """Check a file that lies there without a marker (we were killed just then; a user put it there)."""
        try:
            descriptor = os.open(self.local, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(descriptor).st_size == self.size and self._hash(descriptor).hexdigest() == self._hex:
                self._mark(descriptor)
                return True
        finally:
            os.close(descriptor)
        disk.remove_file(self.local)
        return False

    def _finish(self, descriptor: int) -> None:
        """Give the checked file its name; its bytes and its marker are on the disk before."""
        self._mark(descriptor)
        disk.rename(self._partial, self.local)
        sync_directory(self.local.parent)

    def _mark(self, descriptor: int) -> None:
        disk.sync(descriptor)
        write_atomically(self._marker, json.dumps(self._seal(os.fstat(descriptor))).encode())

    def _new_hash(self) -> Any:
        if self.digest.startswith("git:"):  # git's own name of a file's content
            return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        return hashlib.sha256()

    def _hash(self, descriptor: int) -> Any:
        """Digest of what the open file holds; leaves its position at the end."""
        digest = self._new_hash()
        os.lseek(descriptor, 0, os.SEEK_SET)
        while block := os.read(descriptor, _READ):
            digest.update(block)
        return digest


class _Download:
    """Brings the partial file, which this thread has locked, to its full size with the right digest."""

    def __init__(self, remote: RemoteFile, descriptor: int, progress: Callable[[int], None]) -> None:
        self.remote = remote
        self.descriptor = descriptor
        self.progress = progress
        self.here = 0  # bytes in the partial file
        self.digest: Any = remote._new_hash()  # of those bytes

    def run(self) -> None:
        """Attempt after attempt. Raises UserError when there have been too many."""
        remote, patience = self.remote, self.remote.hub.patience
        self._continue()
        failures, furthest, wrong = 0, self.here, 0
        while True:
            asked, reason = None, ""
            try:
                if self.here < remote.size:
                    self._attempt()
                if self.here == remote.size:
                    if self.digest.hexdigest() == remote._hex:
                        return
                    wrong += 1
                    self._start_anew()
                    furthest = 0
                    if wrong >= _WRONG:
                        raise self._altered(wrong)
                    continue
                reason = "the answer ended early"
            except TryAgainError as error:
                asked, reason = error.asked, str(error)
            except PERMANENT as error:
                raise explain(error, remote.hub, remote.repo, remote.name) from None
            if self.here - furthest >= max(1, remote.size // _PROGRESS):
                failures, furthest = 0, self.here
            failures += 1
            if failures > patience.retries:
                raise UserError(
                    f"{remote.repo}: {remote.name} cannot be fetched: {reason} ({failures} attempts in a row brought "
                    f"nothing, {self.here:,} of {remote.size:,} bytes are here). Run it again when the network is "
                    "back, it goes on there; or set `endpoint` of the source to a mirror"
                )
            wait(patience.seconds(failures, asked), lambda: self.progress(0))

    def _continue(self) -> None:
        """Take up what an earlier attempt left."""
        self.here = os.fstat(self.descriptor).st_size
        if self.here > self.remote.size:
            os.ftruncate(self.descriptor, 0)
            self.here = 0
        self.digest = self.remote._hash(self.descriptor)
        self.progress(self.here)

    def _start_anew(self) -> None:
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        self.progress(-self.here)
        self.here, self.digest = 0, self.remote._new_hash()

    def _attempt(self) -> None:
        """One request for what is missing. Raises TryAgainError, or what will not change."""
        remote = self.remote
        url = f"{remote.hub.endpoint}/datasets/{remote.repo}/resolve/{remote.commit}/{quote(remote.name)}"
        headers = {**remote.hub.headers(url), "Accept-Encoding": "identity"}  # the file's own bytes
        if self.here:
            headers["Range"] = f"bytes={self.here}-"
        timeout = remote.hub.patience.timeout()
        try:
            with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
                self._receive(response)
        except httpx2.TransportError as error:
            raise TryAgainError(reason_of(error)) from None
        except (httpx2.TooManyRedirects, httpx2.DecodingError) as error:
            raise TryAgainError(str(error)) from None

    def _receive(self, response: httpx2.Response) -> None:
        if response.status_code == 416:  # there is nothing after what is here: then that is not this file
            self._start_anew()
            raise TryAgainError("the hub has less of it than is here")
        raise_if_passing(response)
        hf_raise_for_status(response)
        begin = self._first_byte(response)
        if begin > self.here:
            raise TryAgainError("the answer begins after what is here")
        if "Content-Encoding" in response.headers:
            raise TryAgainError(f"the answer is encoded ({response.headers['Content-Encoding']})")
        since, count = time.monotonic(), 0
        patience = self.remote.hub.patience
        for block in response.iter_raw():
            self._take(memoryview(block)[max(0, self.here - begin) :])
            begin += len(block)
            count += len(block)
            if (now := time.monotonic()) - since > patience.stall:
                if count < _SLOW_BYTES:
                    raise TryAgainError("the connection brought almost nothing")
                since, count = now, 0

    def _first_byte(self, response: httpx2.Response) -> int:
        """Where in the file the answer begins; from a server that ignores ranges it is the beginning."""
        remote = self.remote
        if response.status_code != 206:
            length = response.headers.get("Content-Length", "")
            if length.isdigit() and int(length) != remote.size:
                raise TryAgainError(f"the answer has {int(length):,} bytes, the file {remote.size:,}")
            return 0
        kind, _, value = response.headers.get("Content-Range", "").partition(" ")
        first = value.partition("-")[0]
        total = value.rpartition("/")[2]
        if kind != "bytes" or not first.isdigit() or total not in ("*", str(remote.size)):
            raise TryAgainError(f"the answer has the range '{value}' of a file of {remote.size:,} bytes")
        return int(first)

    def _take(self, block: memoryview) -> None:
        """Append bytes. More than the file has are wrong bytes; which ones only a new start can tell."""
        if not block:
            self.progress(0)
            return
        if self.here + len(block) > self.remote.size:
            self._start_anew()
            raise TryAgainError("more bytes came than the file has")
        while block:
            written = disk.write(self.descriptor, block)
            self.digest.update(block[:written])
            self.here += written
            block = block[written:]
            self.progress(written)

    def _altered(self, times: int) -> UserError:
        remote = self.remote
        return UserError(
            f"{remote.repo}: {remote.name} came {times} times from {remote.hub.endpoint}, each time with other bytes "
            f"than those the hub lists ({remote.digest}); nothing of it is kept. A proxy or a mirror on the way "
            "alters it: use another network, or another `endpoint`"
        )
