"""Typed config of the transformer: every choice of both reference recipes is a key. Free of torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from littlelm.config.base import ComponentConfig
from littlelm.registry import declare_kind, register_lazy

declare_kind(
    "model",
    "built with (config, vocab_size): an nn.Module, (B, T) tokens -> (B, T, D) hidden, with head_weight, logits(), "
    "logit_softcap, vocab_size, parameter_roles() and init_weights(generator)",
)

GATE_CHANNELS = 32  # the gate of a value embedding reads this much of the residual stream, as nanochat does


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


@register_lazy("model", "transformer", "littlelm.model.transformer:Transformer")
class TransformerConfig(ComponentConfig):
    """Decoder-only transformer: RMSNorm, RoPE, grouped-query attention, and switches for everything else."""

    vocab_size: int | None = Field(
        None, ge=1, description="tokens; null: the tokenizer's. When given it must equal the tokenizer's"
    )
    pad_vocab_multiple: int = Field(
        64, ge=1, description="embedding and head are padded to a multiple of this; padding is never predicted"
    )
    hidden_size: int = Field(ge=2, description="width of the residual stream")
    num_hidden_layers: int = Field(ge=1, description="number of blocks")
    num_attention_heads: int = Field(ge=1, description="query heads")
    num_key_value_heads: int | None = Field(
        None, ge=1, description="key/value heads, each shared by several query heads; null: as many as query heads"
    )
    head_dim: int | None = Field(None, ge=2, description="width of a head; null: hidden_size / num_attention_heads")
    intermediate_size: int | None = Field(
        None, ge=1, description="width of the MLP; null: 4 x hidden_size, or 8/3 x rounded up to 64 for swiglu"
    )
    mlp: Literal["relu2", "swiglu", "gelu"] = Field(
        "relu2", description="relu2: squared ReLU, two matrices; swiglu: gated, three matrices; gelu: two matrices"
    )
    max_position_embeddings: int = Field(2048, ge=1, description="longest context in tokens")
    rope_theta: float = Field(10_000.0, gt=0, description="base of the rotary frequencies")
    norm_weight: bool = Field(False, description="a learned weight in each RMSNorm")
    norm_eps: float = Field(1e-6, gt=0, description="added to the mean square inside RMSNorm")
    embedding_norm: bool = Field(True, description="normalise right after the token embedding")
    qk_norm: bool = Field(False, description="RMSNorm of queries and keys after the rotation, without weight")
    logit_softcap: float | None = Field(None, gt=0, description="logits become c * tanh(logits / c); null: no cap")
    residual_scalars: bool = Field(
        False, description="two learned scalars a layer: x = lambda * x + lambda0 * x0, x0 being the embedding"
    )
    value_embeddings: Literal["none", "alternate"] = Field(
        "none", description="ResFormer value embeddings: a table added to the values of every second layer"
    )
    value_embedding_gate: bool = Field(
        False, description="a gate per key/value head, from the first 32 channels, scales the value embedding"
    )
    tie_embeddings: bool = Field(False, description="the head is the token embedding")
    init_std: float | None = Field(
        None,
        gt=0,
        description="standard deviation of every weight (GPT-2: 0.02); null: 1/hidden_size^0.5 for matrices, 0 for the "
        "projections back into the residual stream, 1 for the embedding, 0.001 for the head",
    )

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def width_of_head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def mlp_width(self) -> int:
        if self.intermediate_size is not None:
            return self.intermediate_size
        return round_up(8 * self.hidden_size // 3, 64) if self.mlp == "swiglu" else 4 * self.hidden_size

    def has_value_embedding(self, layer: int) -> bool:
        """Alternating layers, the last one always among them."""
        return self.value_embeddings == "alternate" and (self.num_hidden_layers - 1 - layer) % 2 == 0

    @model_validator(mode="after")
    def _heads_divide(self) -> TransformerConfig:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} does not divide hidden_size {self.hidden_size}; "
                "change one of them, or give head_dim"
            )
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"num_key_value_heads {self.kv_heads} does not divide num_attention_heads {self.num_attention_heads}; "
                "every key/value head serves the same number of query heads"
            )
        if self.width_of_head % 2:
            raise ValueError(f"a head of width {self.width_of_head} cannot be rotated; it must be even")
        if self.value_embedding_gate and self.value_embeddings == "none":
            raise ValueError("value_embedding_gate needs value_embeddings: alternate")
        return self
