"""Bits per byte: the loss in a unit that does not depend on the tokenizer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

IGNORE = -100


@torch.no_grad()
def evaluate_bits_per_byte(
    model: Any, loss: Any, validation: Any, token_bytes: NDArray[np.int32], rows_at_a_time: int, world: Any
) -> dict[str, Any]:
    """Sum of the negative log-likelihood of all targets, in bits, over the UTF-8 bytes they stand for.

    Control tokens stand for no byte; they are left out of both sums. Rows are dealt to the ranks in blocks of
    `rows_at_a_time`; sums are taken in float64.

    Args:
        model: a Transformer; its mode is put back afterwards.
        loss: a loss component; only its nll sum is used.
        validation: `num_rows`, `batch(start, stop)`, `sha256`.
        token_bytes: int32 (vocab_size,), bytes of each token.
        world: the processes, `rank`, `size`, `device`, `sum(values)`.

    Returns:
        bits_per_byte, loss (nats a target), targets, bytes, validation_sha256.
    """
    training = model.training
    model.eval()
    nll = 0.0
    targets_seen = bytes_seen = 0
    step = rows_at_a_time * world.size
    for start in range(rows_at_a_time * world.rank, validation.num_rows, step):
        inputs, targets = validation.batch(start, min(start + rows_at_a_time, validation.num_rows))
        lengths = np.where(targets == IGNORE, 0, token_bytes[np.maximum(targets, 0)])
        counted = np.where(lengths > 0, targets, IGNORE)
        hidden = model(torch.from_numpy(inputs).to(world.device))
        flat = torch.from_numpy(counted).to(world.device).flatten()
        nll += float(loss(hidden.flatten(0, 1), model.head_weight, flat, model.vocab_size, model.logit_softcap)[1])
        targets_seen += int(np.count_nonzero(lengths))
        bytes_seen += int(lengths.sum())
    model.train(training)
    nll, targets_sum, bytes_sum = world.sum([nll, float(targets_seen), float(bytes_seen)])
    return {
        "bits_per_byte": nll / math.log(2) / max(1.0, bytes_sum),
        "loss": nll / max(1.0, targets_sum),
        "targets": int(targets_sum),
        "bytes": int(bytes_sum),
        "validation_sha256": validation.sha256,
    }
