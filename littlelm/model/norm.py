"""RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), with or without a learned weight."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x), times a weight where there is one. Works in the dtype of x; torch accumulates in fp32."""

    roles: ClassVar[dict[str, str]] = {"weight": "norm"}

    def __init__(self, width: int, eps: float, has_weight: bool):
        super().__init__()
        self.width = width
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width)) if has_weight else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        weight = self.weight.to(x.dtype) if self.weight is not None else None
        return F.rms_norm(x, (self.width,), weight, self.eps)
