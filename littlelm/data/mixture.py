"""Which source each row of the run comes from, as a pure function of the row's position.

The positions of a run are cut into blocks. In a block each source has its exact share of places (the shares of all
blocks together never differ from the weights by more than one row), and a permutation given by seed and block spreads
them. The rows of a source are read in the order of its own epochs. So a mixture needs no state, does not depend on the
length of the run, and no source is ever ahead of its share by more than chance within one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from littlelm.data.permutation import permute
from littlelm.errors import UserError

BLOCK = 4096  # positions
_ONE = 1 << 40  # weights are whole numbers of this fraction, so that no rounding depends on the machine

Int = NDArray[np.int64]


def temperature_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """Weights size^(1/temperature): 1 is in proportion to size, larger lifts small sources (Devlin et al. 2019)."""
    largest = max(sizes)
    return [(size / largest) ** (1.0 / temperature) for size in sizes]


class Mixture:
    """Weights of sources turned into places. Raises UserError for a weight too small to have a place in each block."""

    def __init__(self, weights: Sequence[float], seed: int, names: Sequence[str]) -> None:
        total = sum(weights)
        if total <= 0:
            raise UserError("every weight of data.sources (or of a stage) is 0: give at least one of them more")
        for name, weight in zip(names, weights, strict=True):
            if 0 < weight / total < 2 / BLOCK:
                raise UserError(
                    f"the source '{name}' has {100 * weight / total:.3g} % of the mixture; the least is "
                    f"{200 / BLOCK:.2g} %. Raise its weight or leave it out"
                )
        # Cumulated shares. The number of places of source k among the first n positions is
        # floor(n c[k + 1] + 1/2) - floor(n c[k] + 1/2), which sums to n over the sources whatever n is.
        cumulated = np.cumsum(np.array(weights, dtype=np.float64) / total)
        self._shares = [0, *(round(float(share) * _ONE) for share in cumulated[:-1]), _ONE]
        self._seed = seed

    def counts(self, positions: int) -> list[int]:
        """Places of each source in whole blocks: among the first `positions` positions, a multiple of the block."""
        ends = [(positions * share + _ONE // 2) // _ONE for share in self._shares]
        return [end - start for start, end in pairwise(ends)]

    def block(self, number: int) -> tuple[Int, Int]:
        """(BLOCK,) source of each position of a block, and how many places the source had before it in the run."""
        before = self.counts(number * BLOCK)
        after = self.counts((number + 1) * BLOCK)
        ends = np.cumsum(np.array(after) - np.array(before))
        key = (self._seed * 0x2545F4914F6CDD1D + number * 0x9FB21C651E98DF25 + 0x1B873593) % 2**64
        source = np.searchsorted(ends, permute(np.arange(BLOCK), BLOCK, key), side="right")
        index = np.empty(BLOCK, dtype=np.int64)
        for each, start in enumerate(before):
            chosen = source == each
            index[chosen] = start + np.arange(int(chosen.sum()))
        return source.astype(np.int64), index

    def used(self, positions: int) -> list[int]:
        """Places of each source among the first `positions` positions."""
        whole, rest = divmod(positions, BLOCK)
        counts = self.counts(whole * BLOCK)
        if rest:
            source, _ = self.block(whole)
            counts = (np.array(counts) + np.bincount(source[:rest], minlength=len(counts))).tolist()
        return counts

    def position(self, source: int, index: int) -> int:
        """Where the place `index` (from 0) of a source is: the inverse of `block`. The source has a weight above 0."""
        low, high = 0, 1
        while self.counts(high * BLOCK)[source] <= index:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.counts(middle * BLOCK)[source] <= index:
                low = middle
            else:
                high = middle
        sources, indices = self.block(low)
        return low * BLOCK + int(np.flatnonzero((sources == source) & (indices == index))[0])


@dataclass(frozen=True)
class Stage:
    """A mixture from position `start` of the run on; `offsets` are the places its sources had before."""

    start: int
    mixture: Mixture
    offsets: tuple[int, ...]


class Stages:
    """Mixtures one after the other: (first position, weights) of each, the first at 0."""

    def __init__(self, stages: Sequence[tuple[int, Sequence[float]]], seed: int, names: Sequence[str]) -> None:
        self.sources = len(names)
        self._stages: list[Stage] = []
        offsets = [0] * len(names)
        for number, (start, weights) in enumerate(stages):
            if self._stages:
                last = self._stages[-1]
                offsets = [a + b for a, b in zip(offsets, last.mixture.used(start - last.start), strict=True)]
            self._stages.append(Stage(start, Mixture(weights, seed + 7919 * number, names), tuple(offsets)))

    def places(self, start: int, stop: int) -> tuple[Int, Int]:
        """(stop - start,) source of each position of the run, and its place among all rows read from that source."""
        sources, indices = [], []
        for stage, end in self._spans():
            begin, finish = max(start, stage.start), min(stop, end)
            if begin >= finish:
                continue
            offsets = np.array(stage.offsets)
            first = begin - stage.start
            last = finish - stage.start
            for number in range(first // BLOCK, -(-last // BLOCK)):
                source, index = stage.mixture.block(number)
                within = slice(max(0, first - number * BLOCK), last - number * BLOCK)
                sources.append(source[within])
                indices.append(index[within] + offsets[source[within]])
        empty = np.empty(0, dtype=np.int64)
        return (np.concatenate(sources), np.concatenate(indices)) if sources else (empty, empty)

    def used(self, positions: int) -> list[int]:
        """Rows of each source among the first `positions` positions of the run."""
        for stage, end in self._spans():
            if positions <= end:
                used = stage.mixture.used(positions - stage.start)
                return [a + b for a, b in zip(stage.offsets, used, strict=True)]
        raise AssertionError("the last stage has no end")

    def position(self, source: int, index: int) -> int | None:
        """Position of the run at which the source's row number `index` is read; None when it never is."""
        for stage, end in self._spans():
            within = index - stage.offsets[source]
            if within < 0:
                return None
            if stage.mixture.counts(BLOCK)[source] == 0:
                continue
            position = stage.start + stage.mixture.position(source, within)
            if position < end:
                return position
        return None

    def _spans(self) -> list[tuple[Stage, int]]:
        """Each stage and the position where it ends; the last never does."""
        ends = [stage.start for stage in self._stages[1:]] + [2**62]
        return list(zip(self._stages, ends, strict=True))
