"""One prefix, many continuations: keys and values computed once, read by every row that continues them."""

from __future__ import annotations

import torch
from torch import Tensor

from littlelm.inference.cache import KVCache


class BranchedCache(KVCache):
    """A cache for rows that continue the prefixes in another cache, each row one of them, in one step.

    Nothing is kept of the rows themselves, and a prefix is copied a layer at a time: memory does not grow with the
    number of rows.

    Args:
        prefixes: cache of the prefixes, all of one length.
        owner: (rows,) int64, which prefix each row continues.
    """

    def __init__(self, prefixes: KVCache, owner: Tensor):
        self.prefixes = prefixes
        self.owner = owner
        self.keys, self.values = prefixes.keys, prefixes.values
        self.length = prefixes.length
        self.capacity = prefixes.length

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, kv_heads, T, head_dim) after each row's prefix; returns the whole, (rows, kv_heads, P + T, ...)."""
        length = self.prefixes.length
        return (
            torch.cat((self._spread(self.keys[layer, :, :, :length]), k), dim=2),
            torch.cat((self._spread(self.values[layer, :, :, :length]), v), dim=2),
        )

    def _spread(self, prefixes: Tensor) -> Tensor:
        if prefixes.size(0) == 1:
            return prefixes.expand(len(self.owner), -1, -1, -1)
        return prefixes.index_select(0, self.owner)
