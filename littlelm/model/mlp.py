"""The three feed-forward networks: squared ReLU, SwiGLU, GELU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from littlelm.model.configs import TransformerConfig
from littlelm.model.linear import Linear


class MLP(nn.Module):
    """Two matrices around an activation.

    relu2: relu(x)^2 (So et al. 2021, arXiv:2109.08668), cheap and sparse, no gate; gelu: as GPT-2 (tanh form).
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.squared_relu = config.mlp == "relu2"
        self.up = Linear(config.hidden_size, config.mlp_width)
        self.down = Linear(config.mlp_width, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = self.up(x)
        x = F.relu(x).square() if self.squared_relu else F.gelu(x, approximate="tanh")
        return self.down(x)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202): three matrices, as in Llama."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.gate = Linear(config.hidden_size, config.mlp_width)
        self.up = Linear(config.hidden_size, config.mlp_width)
        self.down = Linear(config.mlp_width, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.down(F.silu(self.gate(x)) * self.up(x))
