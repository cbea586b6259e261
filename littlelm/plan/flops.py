"""FLOPs of a training token, by formula. The formula is printed wherever a utilisation is."""

from __future__ import annotations

from dataclasses import dataclass

from littlelm.model.configs import TransformerConfig
from littlelm.plan.parameters import matmul_parameters

FORMULA = "6 x matmul parameters (head included) + 6 x layers x heads x head_dim x context (causal attention)"

OWN_MODEL_FORMULA = "6 x parameters in matrices and head (a model of one's own: attention not counted)"


def formula_of(model: object) -> str:
    """How the FLOPs of a token are counted for a model's config."""
    return FORMULA if isinstance(model, TransformerConfig) else OWN_MODEL_FORMULA


@dataclass(frozen=True)
class TokenFlops:
    """FLOPs of forward and backward for one token; a multiply-add is two.

    matmul: 2 forward + 4 backward for each parameter a token is multiplied with. attention: q k^T and the product with
    the values are 2 x 2 x heads x head_dim x (context / 2) forward, since on average half the context is visible, and
    twice that backward. Lookups, norms and softmax are not counted, nor is recomputation.
    """

    matmul: float
    attention: float

    @property
    def total(self) -> float:
        return self.matmul + self.attention


def flops_per_token(config: TransformerConfig, vocab_size: int, sequence_length: int) -> TokenFlops:
    """FLOPs of one training token at a context of `sequence_length` tokens."""
    width = config.num_attention_heads * config.width_of_head
    attention = 3 * 2 * 2 * config.num_hidden_layers * width * sequence_length / 2
    return TokenFlops(6.0 * matmul_parameters(config, vocab_size), attention)
