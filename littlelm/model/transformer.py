"""The one transformer: each choice a config value, from the 858M Llama baseline to the 3.8B recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from littlelm.errors import UserError
from littlelm.model.attention import Attention
from littlelm.model.configs import TransformerConfig, round_up
from littlelm.model.embeddings import Head, TokenEmbedding, ValueEmbedding, rotary_tables
from littlelm.model.init import initialise
from littlelm.model.mlp import MLP, SwiGLU
from littlelm.model.norm import RMSNorm
from littlelm.model.roles import parameter_roles

if TYPE_CHECKING:
    from littlelm.inference.cache import KVCache


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: TransformerConfig, layer: int):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps, config.norm_weight)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, config.norm_weight)
        self.mlp = SwiGLU(config) if config.mlp == "swiglu" else MLP(config)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, value_embedding: Tensor | None, cache: KVCache | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.attention(self.attention_norm(x), cos, sin, value_embedding, cache)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Decoder-only transformer.

    Construct it under `torch.device("meta")` to count without allocating; `init_weights` fills parameters and the
    rotary tables. `compute_dtype` is the dtype of the activations, set from outside before the first use; the
    parameters keep their own.

    Raises:
        UserError: `config.vocab_size` is given and is not the tokenizer's.
    """

    roles: ClassVar[dict[str, str]] = {"residual_lambda": "scalar", "embedding_lambda": "scalar"}
    cos: Tensor
    sin: Tensor

    def __init__(self, config: TransformerConfig, vocab_size: int):
        super().__init__()
        if config.vocab_size is not None and config.vocab_size != vocab_size:
            raise UserError(
                f"model.vocab_size is {config.vocab_size}, but the tokenizer has {vocab_size} tokens; remove the key "
                "(the tokenizer's size is taken) or use the tokenizer it was meant for"
            )
        self.config = config
        self.vocab_size = vocab_size
        self.padded_vocab_size = round_up(vocab_size, config.pad_vocab_multiple)
        self.logit_softcap = config.logit_softcap
        self.compute_dtype = torch.float32
        layers, kv_width = config.num_hidden_layers, config.kv_heads * config.width_of_head
        self.embedding = TokenEmbedding(self.padded_vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, config.norm_weight)
        self.head = None if config.tie_embeddings else Head(self.padded_vocab_size, config.hidden_size)
        self.value_embeddings = nn.ModuleDict(
            {
                str(layer): ValueEmbedding(self.padded_vocab_size, kv_width)
                for layer in range(layers)
                if config.has_value_embedding(layer)
            }
        )
        if config.residual_scalars:
            self.residual_lambda = nn.Parameter(torch.empty(layers))
            self.embedding_lambda = nn.Parameter(torch.empty(layers))
        # Tables are computed, never trained and never saved; fp32 whatever the weights' dtype.
        shape = (config.max_position_embeddings, config.width_of_head // 2)
        self.register_buffer("cos", torch.empty(shape, dtype=torch.float32), persistent=False)
        self.register_buffer("sin", torch.empty(shape, dtype=torch.float32), persistent=False)

    @property
    def head_weight(self) -> Tensor:
        """(V_padded, D): the head's own matrix, or the token embedding when tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def parameter_roles(self) -> dict[str, str]:
        """Name -> role of every parameter."""
        return parameter_roles(self)

    def init_weights(self, generator: torch.Generator) -> None:
        """Fill parameters (see `littlelm.model.init`) and rotary tables, in place."""
        initialise(self, self.parameter_roles(), self.config, generator)
        cos, sin = rotary_tables(
            self.config.max_position_embeddings, self.config.width_of_head, self.config.rope_theta, self.cos.device
        )
        self.cos.copy_(cos)
        self.sin.copy_(sin)

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T) int64 -> (B, T, D) in `compute_dtype`, after the final norm.

        With a cache the tokens continue what is in it. Raises ValueError when they go beyond
        `max_position_embeddings`.
        """
        start = 0 if cache is None else cache.length
        stop = start + tokens.size(1)
        if stop > self.config.max_position_embeddings:
            raise ValueError(f"{stop} positions, but max_position_embeddings is {self.config.max_position_embeddings}")
        cos = self.cos[start:stop, None].to(self.compute_dtype)  # (T, 1, head_dim / 2)
        sin = self.sin[start:stop, None].to(self.compute_dtype)
        x = self.embedding(tokens).to(self.compute_dtype)
        if self.config.embedding_norm:
            x = F.rms_norm(x, (x.size(-1),), eps=self.config.norm_eps)
        x0 = x
        for layer, block in enumerate(self.blocks):
            if self.config.residual_scalars:
                x = self.residual_lambda[layer].to(x.dtype) * x + self.embedding_lambda[layer].to(x.dtype) * x0
            value_embedding = None
            if self.config.has_value_embedding(layer):
                value_embedding = self.value_embeddings[str(layer)](tokens).to(x.dtype)
            x = block(x, cos, sin, value_embedding, cache)
        if cache is not None:
            cache.advance(tokens.size(1))
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., vocab_size) fp32, softcapped, the padding cut off. For inference; losses do their own."""
        logits = F.linear(hidden, self.head_weight.to(hidden.dtype)).float()[..., : self.vocab_size]
        if self.logit_softcap is not None:
            logits = self.logit_softcap * torch.tanh(logits / self.logit_softcap)
        return logits
