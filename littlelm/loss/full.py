"""Cross-entropy from all logits at once: the reference that every faster loss is tested against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from littlelm.loss.configs import FullLossConfig

IGNORE = -100
"""Target of a token that is not counted."""


class FullLoss(nn.Module):
    """Sum of -log p(target) over the counted tokens, plus z_loss times the sum of squared log-normalisers.

    The product is taken in the dtype of `hidden`, everything after it in fp32. A softcap c replaces a logit x by
    c tanh(x / c) (Gemma 2, arXiv:2408.00118); the z-loss is that of PaLM (arXiv:2204.02311).
    """

    def __init__(self, config: FullLossConfig) -> None:
        super().__init__()
        self.z_loss = config.z_loss

    def forward(
        self, hidden: Tensor, head_weight: Tensor, targets: Tensor, vocab_size: int, softcap: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """(objective_sum, nll_sum), fp32 scalars; only the first is differentiable.

        Args:
            hidden: (N, D), fp32 or bf16.
            head_weight: (V_padded, D), any float dtype; rows from vocab_size on take no part.
            targets: (N,) int64, -100 = not counted.
            vocab_size: number of real tokens.
            softcap: None = none.
        """
        logits = F.linear(hidden, head_weight.to(hidden.dtype))[:, :vocab_size].float()  # (N, V)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        counted = targets != IGNORE
        normalizer = torch.logsumexp(logits, dim=-1)  # (N,)
        of_target = logits.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1)  # (N,)
        nll_sum = torch.where(counted, normalizer - of_target, 0.0).sum()
        if self.z_loss == 0.0:
            return nll_sum, nll_sum.detach()
        penalty = torch.where(counted, normalizer.square(), 0.0).sum()
        return nll_sum + self.z_loss * penalty, nll_sum.detach()
