"""Keys and values of what was read, so that each new token costs one position."""

from __future__ import annotations

import torch
from torch import Tensor

from littlelm.model.configs import TransformerConfig


class KVCache:
    """Preallocated (layers, B, kv_heads, capacity, head_dim), twice; sized by key/value heads, not by query heads."""

    def __init__(self, config: TransformerConfig, batch: int, capacity: int, dtype: torch.dtype, device: torch.device):
        shape = (config.num_hidden_layers, batch, config.kv_heads, capacity, config.width_of_head)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.capacity = capacity
        self.length = 0  # positions that every layer has

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write (B, kv_heads, T, head_dim) after what is there; return views of everything up to the new end."""
        stop = self.length + k.size(2)
        if stop > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions, {stop} are needed")
        self.keys[layer, :, :, self.length : stop] = k
        self.values[layer, :, :, self.length : stop] = v
        return self.keys[layer, :, :, :stop], self.values[layer, :, :, :stop]

    def advance(self, count: int) -> None:
        """Count `count` positions as read, once every layer has appended them."""
        self.length += count
