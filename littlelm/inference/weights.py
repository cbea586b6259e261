"""Weights for inference: cast once, not at each use."""

from __future__ import annotations

from typing import Any

import torch

from littlelm.model.transformer import Transformer


@torch.no_grad()
def cast_weights(model: Any) -> None:
    """Cast a Transformer's weights to its `compute_dtype`, in place; for inference only.

    Training keeps master weights and casts them for each product, which costs a token of generation more than the
    product itself. The result is the same to the bit, as the transformer uses no weight in another dtype. Models of
    users' own may, so they are left as they are.
    """
    if isinstance(model, Transformer):
        for parameter in model.parameters():
            parameter.data = parameter.data.to(model.compute_dtype)
