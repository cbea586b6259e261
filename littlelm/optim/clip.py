"""Clipping the gradient to a global norm, without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale all gradients, in place, so that their joint Euclidean norm is at most `max_norm`.

    Args:
        parameters: those without a gradient are passed over.
        max_norm: None only measures.

    Returns:
        The norm before clipping, an fp32 scalar on the gradients' device, not yet waited for. When it is not finite
        neither are the gradients afterwards: the caller decides what becomes of such a step.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    # In fp32 whatever the gradients' dtype: a bf16 sum of squares stops growing.
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    if max_norm is not None:
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        # On the CPU there is nothing to wait for, and a product with 1 is a pass over all gradients for nothing.
        if total.device.type != "cpu" or factor != 1.0:
            torch._foreach_mul_(gradients, factor)
    return total
