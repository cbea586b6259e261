"""Reading prepared shards: memory-mapped tokens, document lengths, content digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm.data.files import check_file
from littlelm.data.tokenize import DIGEST_BYTES

Digests = NDArray[np.void]


class Shard:
    """One shard of a prepared directory. Sizes are checked on opening, digests by `verify`."""

    def __init__(self, directory: Path, entry: dict[str, Any], dtype: np.dtype[Any]) -> None:
        self.directory = directory
        self.entry = entry
        self.dtype = dtype
        for file in entry["files"]:
            check_file(directory / file["name"], file, digest=False)
        self.tokens: NDArray[Any] = self._map("tokens", dtype)

    def _map(self, suffix: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        path = self.directory / f"{self.entry['name']}.{suffix}"
        if path.stat().st_size == 0:
            return np.empty(0, dtype=dtype)
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # still mapped; np.memmap's own slicing is slow

    def lengths(self) -> NDArray[np.int64]:
        """(documents,) tokens of each document, BOS included."""
        return np.asarray(self._map("lengths", np.dtype(np.int64)))

    def digests(self) -> Digests:
        """(documents,) content digests."""
        return np.asarray(self._map("digests", np.dtype(f"V{DIGEST_BYTES}")))

    def verify(self) -> None:
        """Raise UserError naming the first file whose sha256 is not the recorded one."""
        for file in self.entry["files"]:
            check_file(self.directory / file["name"], file, digest=True)
