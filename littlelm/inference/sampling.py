"""From logits to a token: temperature, top-k, top-p."""

from __future__ import annotations

import torch
from torch import Tensor

from littlelm.errors import UserError

COLDEST = 1e-6  # below, dividing by the temperature overflows, and only the likeliest token is left anyway


def filter_logits(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Set everything outside the k likeliest, and outside the likeliest of mass p, to -inf. (V,) -> (V,) fp32.

    Top-p keeps the token that crosses p, so at least one always remains (Holtzman et al. 2019, arXiv:1904.09751).
    """
    if top_k is not None and top_k < logits.numel():
        threshold = torch.topk(logits, top_k).values[-1]
        logits = logits.masked_fill(logits < threshold, float("-inf"))
    if top_p is not None and top_p < 1.0:
        ordered, order = torch.sort(logits, descending=True)
        probabilities = ordered.softmax(-1)
        mass_before = probabilities.cumsum(-1) - probabilities
        outside = mass_before >= max(top_p, 1e-12)
        outside[0] = False
        logits = logits.masked_fill(torch.zeros_like(outside).scatter(0, order, outside), float("-inf"))
    return logits


def pick(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> int:
    """One token id from (V,) fp32 logits; temperature 0 takes the likeliest.

    Raises:
        UserError: a logit is not a number: the weights are broken.
    """
    if logits.isnan().any():
        raise UserError("the model's logits are not numbers: its weights are broken; use an earlier checkpoint")
    if temperature < COLDEST:
        return int(logits.argmax())
    scaled = filter_logits(logits.float().cpu() / temperature, top_k, top_p)
    return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))
