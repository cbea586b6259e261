"""Causal self-attention with grouped queries, rotary positions and value embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from littlelm.model.causal_attention import causal_attention
from littlelm.model.configs import GATE_CHANNELS, TransformerConfig
from littlelm.model.embeddings import rotate
from littlelm.model.linear import Gate, Linear

if TYPE_CHECKING:
    from littlelm.inference.cache import KVCache


class Attention(nn.Module):
    """softmax(q k^T / sqrt(head_dim)) v, causal, each key/value head shared by several query heads (GQA).

    With `qk_norm`, queries and keys are normalised after the rotation (Henry et al. 2020, arXiv:2010.04245), which
    bounds the logits. Documents packed into a row attend to each other: masking was tried upstream and removed.
    """

    def __init__(self, config: TransformerConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.heads = config.num_attention_heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.width_of_head
        self.qk_norm = config.qk_norm
        self.eps = config.norm_eps
        self.q = Linear(config.hidden_size, self.heads * self.head_dim)
        self.k = Linear(config.hidden_size, self.kv_heads * self.head_dim)
        self.v = Linear(config.hidden_size, self.kv_heads * self.head_dim)
        self.out = Linear(self.heads * self.head_dim, config.hidden_size)
        gated = config.value_embedding_gate and config.has_value_embedding(layer)
        self.gate = Gate(min(GATE_CHANNELS, config.hidden_size), self.kv_heads) if gated else None

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, value_embedding: Tensor | None, cache: KVCache | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D).

        cos, sin: (T, 1, head_dim / 2); value_embedding: (B, T, kv_heads * head_dim) or None. With a cache, keys and
        values are appended to it and the queries see everything in it.
        """
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, self.head_dim)
        k = self.k(x).view(batch, length, self.kv_heads, self.head_dim)
        v = self.v(x).view(batch, length, self.kv_heads, self.head_dim)
        if value_embedding is not None:
            added = value_embedding.view(batch, length, self.kv_heads, self.head_dim)
            if self.gate is not None:  # 2 sigmoid(0) = 1: a gate starts open halfway, scaling by one
                added = added * (2 * torch.sigmoid(self.gate(x[..., : self.gate.in_features]))).unsqueeze(-1)
            v = v + added
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.qk_norm:
            q = F.rms_norm(q, (self.head_dim,), eps=self.eps)
            k = F.rms_norm(k, (self.head_dim,), eps=self.eps)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, heads, T, head_dim)
        if cache is None:
            y = causal_attention(q, k, v)
        else:
            y = self._attend_to_cache(q, k, v, cache)
        return self.out(y.transpose(1, 2).reshape(batch, length, self.heads * self.head_dim))

    def _attend_to_cache(self, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
        before, length = cache.length, q.size(2)
        k, v = cache.append(self.layer, k, v)  # (B, kv_heads, before + T, head_dim)
        grouped = self.heads != self.kv_heads
        if before == 0:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        mask = None
        if length > 1:  # query i stands at position before + i
            mask = torch.ones(length, before + length, dtype=torch.bool, device=q.device).tril(before)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
