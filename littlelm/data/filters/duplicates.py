"""Documents with the same text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm.data.filters.configs import ExactDuplicatesConfig

Mask = NDArray[np.bool_]


class ExactDuplicates:
    """See `ExactDuplicatesConfig`. Compares the digests that every shard has: it needs no signature."""

    signature_bytes = 0

    def __init__(self, config: ExactDuplicatesConfig) -> None:
        self.config = config

    def signature(self, text: str) -> bytes:
        """Nothing: the digest is enough."""
        return b""

    def drop(self, digests: Sequence[NDArray[np.void]], signatures: Sequence[NDArray[np.uint8]]) -> list[Mask]:
        """Which documents of each shard (in corpus order) have the text of an earlier one."""
        if sum(map(len, digests)) == 0:
            return [np.zeros(0, dtype=np.bool_) for _ in digests]
        everything = np.concatenate([np.asarray(each) for each in digests])
        halves = np.ascontiguousarray(everything).view(np.uint64).reshape(len(everything), 2)
        order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable: equal documents stay in corpus order
        ordered = halves[order]
        is_copy = np.zeros(len(everything), dtype=np.bool_)
        is_copy[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
        return split_like(is_copy, digests)


def split_like(values: Mask, shards: Sequence[Any]) -> list[Mask]:
    """Cut a mask over all documents into one a shard."""
    return np.split(values, np.cumsum([len(each) for each in shards])[:-1])
