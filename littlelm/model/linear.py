"""A matrix product without bias that keeps its master weight's dtype to itself."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """x @ weight.T in the dtype of x: precision is decided at the embedding, never by autocast."""

    roles: ClassVar[dict[str, str]] = {"weight": "matrix"}

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return F.linear(x, self.weight.to(x.dtype))


class Gate(Linear):
    """A tiny projection that scales something: trained like the other scalars, not orthogonalised."""

    roles: ClassVar[dict[str, str]] = {"weight": "scalar"}
