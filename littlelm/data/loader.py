"""Rows of a step, as a pure function of the step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from littlelm.data.permutation import permute
from littlelm.data.plans import Plans
from littlelm.data.rows import Piece, assemble, split_targets
from littlelm.data.shards import Shard
from littlelm.errors import UserError

_BLOCK_ROWS = 4096  # positions whose rows are worked out at a time: one by one, the calls into numpy cost more
_BLOCKS_KEPT = 4


class Loader:
    """The rows of global step s, for given shards, plan, seed and batch, depend on s alone.

    Row i of the run is row i mod `rows_per_epoch` of epoch i div `rows_per_epoch`; each epoch has its own permutation
    of all rows. There is no iterator and no state (but for the places of the last rows asked for, kept because the next
    ones are near): any process may ask for any row of any step.

    Raises:
        UserError: there are fewer rows than one global batch.
    """

    def __init__(
        self,
        shards: list[Shard],
        plans: Plans,
        *,
        sequence_length: int,
        global_batch_rows: int,
        bos_id: int,
        seed: int,
    ) -> None:
        self.row_length = sequence_length + 1
        self.global_batch_rows = global_batch_rows
        self.bos_id = bos_id
        self.seed = seed
        self._shards = shards
        self._plans = plans
        sizes = np.array([len(filled) for filled in plans.filled], dtype=np.int64)
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self.num_rows = int(self._ends[-1]) if len(self._ends) else 0
        self._blocks: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        if self.num_rows < global_batch_rows:
            raise UserError(
                f"the corpus gives {self.num_rows} rows of {sequence_length} tokens, fewer than one global batch of "
                f"{global_batch_rows} rows; lower train.global_batch_tokens to at most "
                f"{self.num_rows * sequence_length}, shorten data.sequence_length, or add text"
            )

    @property
    def rows_per_epoch(self) -> int:
        return self.num_rows

    def epoch(self, step: int) -> int:
        """Epoch, counted from 0, in which the step's global batch begins."""
        return step * self.global_batch_rows // self.num_rows

    def _place(self, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(shard, row in shard) of the rows at positions [block, block + 1) * _BLOCK_ROWS of the run."""
        kept = self._blocks.get(block)
        if kept is not None:
            return kept
        position = block * _BLOCK_ROWS + np.arange(_BLOCK_ROWS, dtype=np.int64)
        epoch, index = np.divmod(position, self.num_rows)
        row = np.empty_like(index)
        for each in np.unique(epoch):
            chosen = epoch == each
            key = (self.seed * 0x2545F4914F6CDD1D + int(each) * 0xDA942042E4DD58B5 + 1) % 2**64
            row[chosen] = permute(index[chosen], self.num_rows, key)
        shard = np.searchsorted(self._ends, row, side="right")
        place = (shard, row - self._starts[shard])
        newest = list(self._blocks.items())[1 - _BLOCKS_KEPT :]
        self._blocks = dict([*newest, (block, place)])  # replaced, never changed: other threads may be reading it
        return place

    def _rows(self, step: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(shard, row in shard) of rows [start, stop) of the step's global batch."""
        if not 0 <= start <= stop <= self.global_batch_rows:
            raise ValueError(f"rows {start}..{stop} are not within a global batch of {self.global_batch_rows} rows")
        begin, end = step * self.global_batch_rows + start, step * self.global_batch_rows + stop
        shards, rows = [], []
        for block in range(begin // _BLOCK_ROWS, -(-end // _BLOCK_ROWS)):
            within = slice(max(0, begin - block * _BLOCK_ROWS), end - block * _BLOCK_ROWS)
            shard, row = self._place(block)
            shards.append(shard[within])
            rows.append(row[within])
        if not shards:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        return np.concatenate(shards), np.concatenate(rows)

    def batch(self, step: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows [start, stop) of the global batch: inputs and targets, int64 (n, T); targets are -100 on padding.

        Raises ValueError for rows outside of the global batch.
        """
        shards, rows = self._rows(step, start, stop)
        pieces: list[Piece] = []
        for shard, row in zip(shards.tolist(), rows.tolist(), strict=True):
            plan = self._plans.arrays[shard]
            pieces.append((self._shards[shard].tokens, plan["first"], plan["start"], plan["length"], row))
        return split_targets(*assemble(pieces, self.row_length, self.bos_id))

    def num_targets(self, step: int) -> int:
        """Counted targets of the whole global batch: what the loss is divided by."""
        shard, row = self._rows(step, 0, self.global_batch_rows)
        total = 0
        for each in np.unique(shard):
            filled = self._plans.filled[each][row[shard == each]].astype(np.int64)
            total += int(np.maximum(filled - 1, 0).sum())
        return max(1, total)  # a batch of one row of one token has no target
