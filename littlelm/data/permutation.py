"""A seeded permutation of 0..n-1 that needs no memory: any element can be asked for at any time.

A balanced Feistel network permutes the smallest even number of bits that holds n; results outside 0..n-1 are sent
through again until they fall inside (cycle walking), which keeps it a permutation (Black and Rogaway, 2002).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_U64 = np.uint64
_Half = NDArray[np.uint64]


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: every output bit depends on every input bit."""
    value = (value ^ (value >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> _U64(27))) * _U64(0x94D049BB133111EB)
    return value ^ (value >> _U64(31))


def permute(indices: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Where the permutation of 0..size-1 given by `key` (64 bits) sends each index. Vectorised, pure."""
    return _walk(indices, size, key, _forwards)


def invert(images: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """The index that `permute` sends to each image."""
    return _walk(images, size, key, _backwards)


def _forwards(left: _Half, right: _Half, keys: _Half, mask: np.uint64) -> tuple[_Half, _Half]:
    for each in keys:
        left, right = right, left ^ (_mix(right + each) & mask)
    return left, right


def _backwards(left: _Half, right: _Half, keys: _Half, mask: np.uint64) -> tuple[_Half, _Half]:
    for each in keys[::-1]:
        left, right = right ^ (_mix(left + each) & mask), left
    return left, right


def _walk(
    values: NDArray[np.int64],
    size: int,
    key: int,
    network: Callable[[_Half, _Half, _Half, np.uint64], tuple[_Half, _Half]],
) -> NDArray[np.int64]:
    """Send values through the network until they fall into 0..size-1 again."""
    half = _U64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = (_U64(1) << half) - _U64(1)
    keys = _mix(np.array([(key + i * 0x9E3779B97F4A7C15) % 2**64 for i in range(_ROUNDS)], dtype=_U64))
    result = values.astype(_U64)
    outside = np.ones(result.shape, dtype=bool)
    while outside.any():
        left, right = network(result[outside] >> half, result[outside] & mask, keys, mask)
        result[outside] = (left << half) | right
        outside = result >= _U64(size)
    return result.astype(np.int64)
