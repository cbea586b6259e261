"""Fetching a bundle once: with retries, under its pinned digest, whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from littlelm.data.hub.client import RETRY_STATUS, Patience
from littlelm.data.hub.locks import locked
from littlelm.errors import UserError
from littlelm.filesystem import disk, make_directories, sha256_of_file, sync_directory

_READ = 2**20
_WRONG = 2  # times a file may come with a wrong digest: a proxy that alters bytes will go on doing so


def fetch(url: str, sha256: str, directory: Path, say: Callable[[str], None], patience: Patience | None = None) -> Path:
    """The file of `url` in `directory`, fetched unless it lies there with this digest.

    Args:
        url: http:// or https://.
        sha256: 64 hex digits of the whole file.
        directory: made when it is not there; any number of processes may ask for one file, one of them fetches it.
        say: hears why it waits.

    Raises:
        UserError: it cannot be had, or is not the file of this digest.
    """
    patience = patience or Patience(retries=6)
    path = directory / f"{sha256[:16]}.zip"
    make_directories(directory)
    with locked(directory / f".{path.name}.lock"):
        if path.is_file() and sha256_of_file(path)[1] == sha256:
            return path
        partial = path.with_name(f"{path.name}.part")
        failures = wrong = 0
        while True:
            try:
                digest = _download(url, partial, patience.stall)
            except urllib.error.HTTPError as error:
                if error.code not in RETRY_STATUS:
                    raise UserError(f"{url}: the server answered HTTP {error.code}; check the address") from None
                reason = f"HTTP {error.code} {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.filename is not None:
                    raise  # our own disk, not the network
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            else:
                if digest == sha256:
                    disk.rename(partial, path)
                    sync_directory(directory)
                    return path
                wrong += 1
                if wrong >= _WRONG:
                    raise UserError(
                        f"{url}: its sha256 is {digest}, not the pinned {sha256}; the file was replaced, or altered on "
                        "its way. Pin the new digest only if you know why it changed"
                    )
                reason = "the bytes are not those of the pinned digest"
            failures += 1
            if failures > patience.retries:
                raise UserError(
                    f"{url}: {reason} ({failures} attempts); check the network, or give a local zip or directory"
                )
            seconds = patience.seconds(failures, None)
            say(f"{url}: {reason}; trying again in {seconds:.0f} s")
            time.sleep(seconds)


def _download(url: str, partial: Path, stall_seconds: float) -> str:
    """Write the file and return its sha256. Raises OSError or HTTPException when it does not arrive whole."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=stall_seconds) as response, partial.open("wb") as file:
        expected = response.headers.get("Content-Length")
        while piece := response.read(_READ):
            digest.update(piece)
            file.write(piece)
        if expected is not None and file.tell() != int(expected):
            raise http.client.IncompleteRead(b"", int(expected) - file.tell())
        file.flush()
        disk.sync(file.fileno())
    return digest.hexdigest()
