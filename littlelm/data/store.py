"""Prepared shards on a shared or object store: machines prepare together, a training machine only fetches.

The store holds what the cache holds, `<source key>/<shard>.*`, under the same rule: a shard's `.json` is written last,
so a shard exists when it does. Keys are made of the content, so nothing is ever overwritten by something else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

from littlelm.data.files import check_file
from littlelm.data.shards import SCHEMA_VERSION
from littlelm.errors import UserError
from littlelm.filesystem import sha256_of_file, sync_directory, write_atomically

_EXTRA = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


class Store:
    """A directory or URL that fsspec understands. Raises UserError when its kind is unknown or not installed."""

    def __init__(self, url: str) -> None:
        self.url = url
        protocol = url.split("://")[0] if "://" in url else "file"
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except ImportError:
            package = _EXTRA.get(protocol, protocol)
            raise UserError(
                f"data.store: {url} needs the package '{package}', not installed here: pip install {package}"
            ) from None
        except ValueError:
            raise UserError(
                f"data.store: '{url}' is of an unknown kind; give a directory, s3://bucket/prefix, gs://bucket/prefix "
                "or another URL of fsspec"
            ) from None
        self._root = root.rstrip("/")
        self._is_local = protocol in ("file", "local")
        self._has_buckets = protocol in _EXTRA

    def get(self, key: str, name: str, directory: Path) -> dict[str, Any] | None:
        """Fetch a shard into `directory`, each file checked against its sha256; None when the store has it not.

        Raises UserError when the store cannot be reached, or holds a damaged file.
        """
        with self._explained():
            path = f"{self._root}/{key}/{name}.json"
            if not self._fs.exists(path):
                return None
            entry: dict[str, Any] = json.loads(self._fs.cat_file(path))
            if entry.get("schema_version") != SCHEMA_VERSION:
                raise UserError(
                    f"data.store: {path} has schema_version {entry.get('schema_version')}, this little-lm reads "
                    f"{SCHEMA_VERSION}; prepare into another store"
                )
            for file in entry["files"]:
                temporary = directory / f".{file['name']}.tmp"
                self._fs.get_file(f"{self._root}/{key}/{file['name']}", str(temporary))
                size, digest = sha256_of_file(temporary)
                if (size, digest) != (file["bytes"], file["sha256"]):
                    temporary.unlink()
                    raise UserError(
                        f"data.store: {self.url}: {key}/{file['name']} is damaged (its sha256 is not the recorded "
                        f"one); delete {key}/{name}.json there to have the shard made again"
                    )
                temporary.rename(directory / file["name"])
        sync_directory(directory)
        write_atomically(directory / f"{name}.json", json.dumps(entry, indent=1).encode())
        return entry

    def put(self, key: str, entry: dict[str, Any], directory: Path) -> None:
        """Copy a shard of `directory` to the store, its entry last; one that is there already stays."""
        with self._explained():
            path = f"{self._root}/{key}/{entry['name']}.json"
            if self._fs.exists(path):
                return
            if not self._has_buckets:  # there are no directories in a bucket, and one misspelt must not be created
                self._fs.makedirs(f"{self._root}/{key}", exist_ok=True)
            for file in entry["files"]:
                check_file(directory / file["name"], file, digest=False)
                self._fs.put_file(str(directory / file["name"]), f"{self._root}/{key}/{file['name']}")
            content = json.dumps(entry, indent=1).encode()
            if self._is_local:  # an object appears whole, a file does not
                self._fs.pipe_file(f"{path}.tmp", content)
                self._fs.mv(f"{path}.tmp", path)
            else:
                self._fs.pipe_file(path, content)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (UserError, KeyboardInterrupt):
            raise
        except Exception as error:  # each backend has its own errors: no bucket, no credentials, no network
            raise UserError(f"data.store: {self.url}: {type(error).__name__}: {error}") from error
