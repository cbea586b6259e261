"""Embeddings: of tokens, of values (ResFormer), of positions (rotary)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A table (padded vocabulary, width); the lookup is in the table's dtype, the caller casts."""

    roles: ClassVar[dict[str, str]] = {"weight": "embedding"}

    def __init__(self, vocab_size: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, width)."""
        return F.embedding(tokens, self.weight)


class ValueEmbedding(TokenEmbedding):
    """A second table whose rows are added to the attention's values (Zhou et al. 2024, arXiv:2410.17897)."""

    roles: ClassVar[dict[str, str]] = {"weight": "value_embedding"}


class Head(nn.Module):
    """The output matrix (padded vocabulary, width); the loss multiplies with it, chunk by chunk."""

    roles: ClassVar[dict[str, str]] = {"weight": "head"}

    def __init__(self, vocab_size: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, width))


def rotary_tables(length: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, (length, head_dim / 2) fp32 (Su et al. 2021, arXiv:2104.09864)."""
    # On the CPU in fp64 whatever the device, so that every rank and every machine rotates alike.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
    positions = torch.arange(length, dtype=torch.float64, device="cpu")
    angles = torch.outer(positions, theta**-exponents)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head's first half against its second (the convention of Llama's Hugging Face weights).

    x: (B, T, heads, head_dim); cos, sin: (T, 1, head_dim / 2) in the dtype of x.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
