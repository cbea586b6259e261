"""Documents that are nearly the same: MinHash, found through bands of their signatures (Broder 1997; Leskovec et al.,
Mining of Massive Datasets, ch. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from littlelm.data.filters.configs import NearDuplicatesConfig
from littlelm.data.filters.duplicates import Mask, split_like
from littlelm.data.filters.text import whole_characters
from littlelm.errors import UserError

_SEED = 20_240_701
_PAIRS = 1 << 16  # candidates compared at a time: 64 MB of signatures


class NearDuplicates:
    """See `NearDuplicatesConfig`. The signatures are made by the package `rensa`: 5 microseconds for 600 n-grams.

    Raises UserError when the package is not installed.
    """

    def __init__(self, config: NearDuplicatesConfig) -> None:
        self.config = config
        self.signature_bytes = 4 * config.permutations
        try:
            import rensa  # noqa: F401  (said now, not in a worker process)
        except ImportError:
            raise UserError(
                "the filter `near_duplicates` needs the package 'rensa', not installed here: "
                "pip install 'little-lm[filters]'"
            ) from None

    def signature(self, text: str) -> bytes:
        """`permutations` uint32: the least hash of the text's word n-grams under each. A short text is one n-gram."""
        from rensa import RMinHash

        words, size = text.lower().split(), self.config.ngram_words
        grams = [" ".join(words[start : start + size]) for start in range(max(1, len(words) - size + 1))]
        made = RMinHash(num_perm=self.config.permutations, seed=_SEED)
        try:
            made.update(grams)
        except UnicodeEncodeError:  # half a surrogate pair is no Unicode text: it becomes U+FFFD, as in tokenizing
            made.update([whole_characters(gram) for gram in grams])
        return np.array(made.digest(), dtype="<u4").tobytes()

    def drop(self, digests: Sequence[NDArray[np.void]], signatures: Sequence[NDArray[np.uint8]]) -> list[Mask]:
        """Which documents of each shard (in corpus order) are nearly an earlier one.

        Similarity is carried on: of a chain of documents, each nearly the next, the first is kept.
        """
        if sum(map(len, signatures)) == 0:
            return [np.zeros(0, dtype=np.bool_) for _ in signatures]
        table = np.concatenate([np.ascontiguousarray(each) for each in signatures]).view("<u4")
        root = np.arange(len(table))
        bands, rows = band_shape(self.config.threshold, self.config.permutations)
        for band in range(bands):
            for left, right in _candidates(table[:, band * rows : (band + 1) * rows]):
                different = _roots(root, left) != _roots(root, right)
                left, right = left[different], right[different]
                similar = (table[left] == table[right]).mean(axis=1) >= self.config.threshold
                _join(root, left[similar], right[similar])
        return split_like(_roots(root, np.arange(len(table))) != np.arange(len(table)), signatures)


@cache
def band_shape(threshold: float, permutations: int) -> tuple[int, int]:
    """(bands, rows of a band) that miss the fewest pairs above the threshold and propose the fewest below it.

    A pair of similarity s shares a band with probability 1 - (1 - s^rows)^bands. Missing one weighs more: those that
    are proposed in vain are compared and passed over.
    """
    similarity = np.linspace(0, 1, 1001)
    above = similarity >= threshold
    best, least = (permutations, 1), np.inf
    for rows in range(1, permutations + 1):
        bands = permutations // rows
        found = 1 - (1 - similarity**rows) ** bands
        cost = 5 * (1 - found)[above].mean() + found[~above].mean()
        if cost < least:
            best, least = (bands, rows), cost
    return best


def _candidates(band: NDArray[np.uint32]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of documents that agree in a band: each with the first of its group and with the one before."""
    key = np.zeros(len(band), dtype=np.uint64)
    for column in band.T:
        key = key * np.uint64(0x9E3779B97F4A7C15) + column
        key ^= key >> np.uint64(29)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    others = np.flatnonzero(~is_first)
    left = np.concatenate([order[first[others]], order[others - 1]])
    right = np.concatenate([order[others], order[others]])
    return [(left[i : i + _PAIRS], right[i : i + _PAIRS]) for i in range(0, len(left), _PAIRS)]


def _roots(root: NDArray[np.int64], documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first document of each one's cluster. Paths are halved on the way: a chain of n takes log n rounds."""
    found = root[documents]
    while ((above := root[found]) != found).any():
        root[found] = root[above]
        found = root[found]
    root[documents] = found
    return found


def _join(root: NDArray[np.int64], left: NDArray[np.int64], right: NDArray[np.int64]) -> None:
    """Unite clusters under their earliest document."""
    while len(left):
        a, b = _roots(root, left), _roots(root, right)
        low, high = np.minimum(a, b), np.maximum(a, b)
        np.minimum.at(root, high, low)
        open_ = _roots(root, left) != _roots(root, right)
        left, right = left[open_], right[open_]
