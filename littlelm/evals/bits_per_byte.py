"""Bits per byte: the loss in a unit that does not depend on the tokenizer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from littlelm.errors import UserError

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

    Raises:
        UserError: no target stands for a byte, so there is nothing to divide by.
    """
    training = model.training
    model.eval()
    try:
        sums = _sums(model, loss, validation, token_bytes, rows_at_a_time, world)
    finally:
        model.train(training)
    nll, targets, octets = world.sum(sums)
    if octets == 0:
        raise UserError(
            f"the validation set's {validation.num_rows} rows hold no token that stands for text, so bits per byte are "
            "undefined; raise data.validation.documents"
        )
    return {
        "bits_per_byte": nll / math.log(2) / octets,
        "loss": nll / targets,
        "targets": int(targets),
        "bytes": int(octets),
        "validation_sha256": validation.sha256,
    }


def _sums(
    model: Any, loss: Any, validation: Any, token_bytes: NDArray[np.int32], rows_at_a_time: int, world: Any
) -> list[float]:
    """This rank's negative log-likelihood (nats), counted targets and bytes."""
    nll = torch.zeros((), dtype=torch.float64)
    targets_seen = bytes_seen = 0
    step = rows_at_a_time * world.size
    for start in range(rows_at_a_time * world.rank, validation.num_rows, step):
        inputs, targets = validation.batch(start, min(start + rows_at_a_time, validation.num_rows))
        lengths = np.where(targets == IGNORE, 0, token_bytes[np.maximum(targets, 0)])
        counted = np.where(lengths > 0, targets, IGNORE)
        hidden = model(torch.from_numpy(inputs).to(world.device))  # (B, T, D)
        flat = torch.from_numpy(counted).to(world.device).flatten()
        nll_sum = loss(hidden.flatten(0, 1), model.head_weight, flat, model.vocab_size, model.logit_softcap)[1]
        nll += nll_sum.double().cpu()
        targets_seen += int(np.count_nonzero(lengths))
        bytes_seen += int(lengths.sum())
    return [float(nll), float(targets_seen), float(bytes_seen)]
