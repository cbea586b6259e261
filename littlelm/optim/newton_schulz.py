"""Orthogonalisation of a stack of matrices by an odd polynomial iteration: only matrix products, all in one batch.

For G = U S V^T the iteration drives every singular value towards 1, so the result is close to U V^T, the orthogonal
matrix nearest to G. One iteration maps X to a X + (b A + c A A) X with A = X X^T, that is every singular value s to
a s + b s^3 + c s^5.
"""

from __future__ import annotations

import torch
from torch import Tensor

# One quintic for every iteration, tuned for slope at 0 and not for convergence: singular values from 1/300 of the
# norm up land in [0.68, 1.2]. Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks".
CLASSIC = (3.4445, -4.7750, 2.0315)

# The minimax-optimal quintic of each iteration: singular values from 1/1000 of the norm up land in [0.85, 1.14].
# Source: Amsel et al., "The Polar Express", 2025, arXiv:2505.16932, for 5 iterations, safety factor 2e-2, cushion 2
# (the table that the modded-nanogpt speedrun published).
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
POLAR_EXPRESS_SAFETY = 1.02  # the input's norm is pushed below 1 by this much, for the rounding errors of bf16

# On the CPU a stack is taken in blocks that stay in the cache from product to product: 1.15 times as fast for 24
# matrices of (384, 384), 1.2 times for 12 of (384, 1536), than the whole stack at once.
_CPU_BLOCK_BYTES = 2 * 2**20

_EPSILON = 1e-7  # keeps a zero matrix zero


def coefficients_of(name: str, steps: int) -> tuple[tuple[float, float, float], ...]:
    """The (a, b, c) of each of `steps` iterations; name is `classic` or `polar_express`."""
    return POLAR_EXPRESS[:steps] if name == "polar_express" else (CLASSIC,) * steps


def orthogonalize(stack: Tensor, coefficients: str = "polar_express", steps: int = 5) -> Tensor:
    """Orthogonalise every matrix of `stack` (K, rows, cols), in the stack's own dtype; same shape and dtype.

    A zero matrix stays zero. Wide and tall matrices both take the small product, (min, min).
    """
    if stack.device.type == "cpu":
        size = max(1, _CPU_BLOCK_BYTES // (stack.size(-2) * stack.size(-1) * stack.element_size()))
        if size < stack.size(0):
            return torch.cat([_iterate(block, coefficients, steps) for block in torch.split(stack, size)])
    return _iterate(stack, coefficients, steps)


def _iterate(stack: Tensor, coefficients: str, steps: int) -> Tensor:
    tall = stack.size(-2) > stack.size(-1)
    x = stack.mT if tall else stack  # (K, m, n), m <= n
    safety = POLAR_EXPRESS_SAFETY if coefficients == "polar_express" else 1.0
    # The Frobenius norm bounds the largest singular value. In fp32: a bf16 sum of many squares would stop growing.
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float32)  # (K, 1, 1)
    x = (x / (norm * safety).clamp(min=_EPSILON)).to(stack.dtype).contiguous()
    for a, b, c in coefficients_of(coefficients, steps):
        gram = torch.bmm(x, x.mT)  # (K, m, m)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x
