"""The initial weights, and why they are what they are.

- Matrices read a normalised input of variance 1, so a uniform distribution of standard deviation 1/sqrt(hidden_size)
  gives outputs of variance 1; uniform rather than normal has no outliers (nanochat's choice).
- Projections back into the residual stream start at zero: each block starts as the identity, and depth costs nothing
  at the start (Zhang et al. 2019, arXiv:1901.09321).
- The token embedding has standard deviation 1 (it is normalised right away), the head 0.001: the first logits are
  near zero and the first loss is log(vocab_size).
- Value embeddings start with the deviation of the matrices that make the values they are added to. Gates start at
  zero, which is a factor of 1.
- Residual scalars: 1 for the stream, 0.1 for the embedding.
- With `init_std` all weights are normal with that deviation, projections into the stream scaled by 1/sqrt(2 layers),
  as GPT-2 and Llama do; norm weights are 1 in both.

Numbers are drawn on the CPU, in the order of the parameters: the same seed gives the same weights on every device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from littlelm.model.configs import TransformerConfig

_BACK_TO_STREAM = (".attention.out.weight", ".mlp.down.weight")


def _normal(weight: Tensor, std: float, generator: torch.Generator) -> Tensor:
    return torch.empty(weight.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)


def _uniform(weight: Tensor, std: float, generator: torch.Generator) -> Tensor:
    bound = math.sqrt(3.0) * std  # a uniform distribution on [-b, b] has the deviation b / sqrt(3)
    return torch.empty(weight.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)


def _initial(name: str, role: str, weight: Tensor, config: TransformerConfig, generator: torch.Generator) -> Tensor:
    into_stream = name.endswith(_BACK_TO_STREAM)
    if role == "norm":
        return torch.ones(weight.shape)
    if role == "scalar":
        return torch.full(weight.shape, {"residual_lambda": 1.0, "embedding_lambda": 0.1}.get(name, 0.0))
    if config.init_std is not None:
        shrink = math.sqrt(2 * config.num_hidden_layers) if into_stream else 1.0
        return _normal(weight, config.init_std / shrink, generator)
    if into_stream:
        return torch.zeros(weight.shape)
    if role == "embedding":
        # A tied table is also the head: small, so that the first logits are; the norm after the lookup undoes it.
        return _normal(weight, 0.02 if config.tie_embeddings else 1.0, generator)
    if role == "head":
        return _normal(weight, 0.001, generator)
    return _uniform(weight, config.hidden_size**-0.5, generator)


@torch.no_grad()
def initialise(model: nn.Module, roles: dict[str, str], config: TransformerConfig, generator: torch.Generator) -> None:
    """Fill every parameter in place, drawing from `generator` (a CPU generator)."""
    for name, parameter in model.named_parameters():
        parameter.copy_(_initial(name, roles[name], parameter, config, generator))
