"""A seeded permutation of 0..n-1 that needs no memory: any element can be asked for at any time.

A balanced Feistel network permutes the smallest even number of bits that holds n; results outside 0..n-1 are sent
through again until they fall inside (cycle walking), which keeps it a permutation (Black and Rogaway, 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_U64 = np.uint64


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: every output bit depends on every input bit."""
    value = (value ^ (value >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> _U64(27))) * _U64(0x94D049BB133111EB)
    return value ^ (value >> _U64(31))


def permute(indices: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Where the permutation of 0..size-1 given by `key` (64 bits) sends each index. Vectorised, pure."""
    half = _U64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = (_U64(1) << half) - _U64(1)
    keys = _mix(np.array([(key + i * 0x9E3779B97F4A7C15) % 2**64 for i in range(_ROUNDS)], dtype=_U64))
    result = indices.astype(_U64)
    outside = np.ones(result.shape, dtype=bool)
    while outside.any():
        values = result[outside]
        left, right = values >> half, values & mask
        for each in keys:
            left, right = right, left ^ (_mix(right + each) & mask)
        result[outside] = (left << half) | right
        outside = result >= _U64(size)
    return result.astype(np.int64)


def invert(images: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """The index that `permute` sends to each image: the network backwards, walked back into 0..size-1."""
    half = _U64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = (_U64(1) << half) - _U64(1)
    keys = _mix(np.array([(key + i * 0x9E3779B97F4A7C15) % 2**64 for i in range(_ROUNDS)], dtype=_U64))
    result = images.astype(_U64)
    outside = np.ones(result.shape, dtype=bool)
    while outside.any():
        values = result[outside]
        left, right = values >> half, values & mask
        for each in keys[::-1]:
            left, right = right ^ (_mix(left + each) & mask), left
        result[outside] = (left << half) | right
        outside = result >= _U64(size)
    return result.astype(np.int64)
