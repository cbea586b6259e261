"""Typed configs of the losses: cross-entropy over the vocabulary, in one piece or in chunks. Free of torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from littlelm.config.base import ComponentConfig, Count
from littlelm.registry import declare_kind, register_lazy

declare_kind(
    "loss",
    "an nn.Module: (hidden (N, D), head_weight (V_padded, D), targets (N,) int64 with -100 = ignore, vocab_size, "
    "softcap) -> (objective_sum, nll_sum), both fp32 sums over the counted targets",
)


@register_lazy("loss", "full", "littlelm.loss.full:FullLoss")
class FullLossConfig(ComponentConfig):
    """Cross-entropy from all logits at once: the reference, simple and hungry (N x vocab in fp32, several times)."""

    z_loss: float = Field(
        0.0, ge=0, description="weight of the squared log-normaliser in the objective; keeps logits from drifting"
    )


@register_lazy("loss", "chunked", "littlelm.loss.chunked:ChunkedLoss")
class ChunkedLossConfig(ComponentConfig):
    """Cross-entropy chunk by chunk: the logits of all tokens never exist at once; the same values as `full`."""

    z_loss: float = Field(
        0.0, ge=0, description="weight of the squared log-normaliser in the objective; keeps logits from drifting"
    )
    chunk_tokens: Annotated[Count, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="tokens whose logits exist at one time; auto: chosen from the vocabulary and device"
    )
    compile: bool = Field(
        True, description="torch.compile the softmax of a chunk; falls back to eager, saying so, when it fails"
    )
