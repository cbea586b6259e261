"""Rounding fp32 values to the dtype in which weights are kept: to nearest, or stochastically.

bf16 keeps 8 significant bits. Rounded to nearest, an update smaller than 1/512 of the weight is lost, every step, and
late in training most updates are. Rounded up or down at random, with the probabilities that make the expected value
exact, it survives on average (Gupta et al. 2015, arXiv:1502.02551).
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator_for(device: torch.device, seed: int, step: int, name: str) -> torch.Generator:
    """The random stream of one parameter's rounding at one step: a pure function of (seed, step, name).

    Stateless, so resuming needs nothing saved, and the same on every rank, so replicas stay equal.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest, "little") >> 1)


def stochastic_round_to_bf16(values: Tensor, generator: torch.Generator) -> Tensor:
    """Round fp32 `values` (any shape) to one of the two nearest bf16 values, unbiased; exact values stay.

    Adding 16 random bits below the kept ones and cutting them off carries with probability (cut part) / 2^16. The
    magnitude is what grows, so both signs are treated alike. Infinities and NaN stay what they are.
    """
    bits = values.view(torch.int32)
    noise = torch.randint(0, 1 << 16, values.shape, generator=generator, device=values.device, dtype=torch.int32)
    rounded = noise.add_(bits).bitwise_and_(-(1 << 16)).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)


def write_rounded(target: Tensor, values: Tensor, *, stochastic: bool, seed: int, step: int, name: str) -> None:
    """Store fp32 `values` in `target` in place, in the dtype of `target`."""
    if stochastic and target.dtype == torch.bfloat16:
        values = stochastic_round_to_bf16(values, generator_for(target.device, seed, step, name))
    target.copy_(values)
