"""Rows of a step, as a pure function of the step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm.data.permutation import permute
from littlelm.data.plans import Plans
from littlelm.data.rows import assemble, split_targets
from littlelm.data.shards import Shard
from littlelm.errors import UserError


class Loader:
    """The rows of global step s, for given shards, plan, seed and batch, depend on s alone.

    Row i of the run is row i mod `rows_per_epoch` of epoch i div `rows_per_epoch`; each epoch has its own permutation
    of all rows. There is no iterator and no state: any process may ask for any row of any step.

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
        self._ends = np.cumsum([len(filled) for filled in plans.filled])
        self.num_rows = int(self._ends[-1]) if len(self._ends) else 0
        if self.num_rows < global_batch_rows:
            raise UserError(
                f"the corpus gives {self.num_rows} rows of {sequence_length} tokens, fewer than one global batch of "
                f"{global_batch_rows} rows; lower train.global_batch_tokens to at most "
                f"{self.num_rows * sequence_length}, shorten data.sequence_length, or add text"
            )

    @property
    def rows_per_epoch(self) -> int:
        return self.num_rows

    def _rows(self, step: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(shard, row in shard) of rows [start, stop) of the step's global batch."""
        position = step * self.global_batch_rows + np.arange(start, stop, dtype=np.int64)
        epoch, index = np.divmod(position, self.num_rows)
        row = np.empty_like(index)
        for each in np.unique(epoch):
            chosen = epoch == each
            key = (self.seed * 0x2545F4914F6CDD1D + int(each) * 0xDA942042E4DD58B5 + 1) % 2**64
            row[chosen] = permute(index[chosen], self.num_rows, key)
        shard = np.searchsorted(self._ends, row, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])
        return shard, row - starts[shard]

    def batch(self, step: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows [start, stop) of the global batch: inputs and targets, int64 (n, T); targets are -100 on padding."""
        pieces: list[Any] = []
        for shard, row in zip(*self._rows(step, start, stop), strict=True):
            plan = self._plans.arrays[shard]
            pieces.append((self._shards[shard].tokens, plan["first"], plan["start"], plan["length"], int(row)))
        return split_targets(*assemble(pieces, self.row_length, self.bos_id))

    def num_targets(self, step: int) -> int:
        """Counted targets of the whole global batch: what the loss is divided by."""
        shard, row = self._rows(step, 0, self.global_batch_rows)
        total = 0
        for each in np.unique(shard):
            filled = self._plans.filled[each][row[shard == each]].astype(np.int64)
            total += int(np.maximum(filled - 1, 0).sum())
        return total
