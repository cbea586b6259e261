"""From pieces of token streams to rows of inputs and targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

IGNORE = -100

Piece = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], int]  # tokens, first, start, length, row


def assemble(pieces: Sequence[Piece], row_length: int, bos_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Copy the pieces of each row together: (n, row_length) int64, padded with BOS, and (n,) tokens in each row."""
    table = np.full((len(pieces), row_length), bos_id, dtype=np.int64)
    filled = np.zeros(len(pieces), dtype=np.int64)
    for index, (tokens, first, start, length, row) in enumerate(pieces):
        position = 0
        line = table[index]
        span = slice(int(first[row]), int(first[row + 1]))
        for begin, size in zip(start[span].tolist(), length[span].tolist(), strict=True):
            line[position : position + size] = tokens[begin : begin + size]
            position += size
        filled[index] = position
    return table, filled


def split_targets(table: NDArray[np.int64], filled: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n, T + 1) rows -> inputs (n, T) and targets (n, T), each position's target being the next token."""
    inputs = table[:, :-1].copy()  # copies even of one row, where a slice would share memory with the targets
    targets = table[:, 1:].copy()
    for index in np.flatnonzero(filled < table.shape[1]):
        targets[index, max(0, filled[index] - 1) :] = IGNORE
    return inputs, targets
