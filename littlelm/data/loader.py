"""Rows of a step, as a pure function of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from littlelm.data.mixture import Stages
from littlelm.data.permutation import invert, permute
from littlelm.data.plans import Plan
from littlelm.data.rows import Piece, assemble, split_targets
from littlelm.data.shards import Shard
from littlelm.errors import UserError

_BLOCK_ROWS = 4096  # positions whose rows are worked out at a time: one by one, the calls into numpy cost more
_BLOCKS_KEPT = 4

Int = NDArray[np.int64]


class Stream:
    """The rows of one source (or of several that are read as one), each epoch in its own order."""

    def __init__(self, name: str, shards: Sequence[Shard], plans: Sequence[Plan], seed: int) -> None:
        self.name = name
        self.shards = list(shards)
        self.plans = list(plans)
        sizes = np.array([plan.rows for plan in plans], dtype=np.int64)
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self.rows = int(self._ends[-1]) if len(self._ends) else 0
        self._seed = seed

    def _key(self, epoch: int) -> int:
        return (self._seed * 0x2545F4914F6CDD1D + epoch * 0xDA942042E4DD58B5 + 1) % 2**64

    def locate(self, index: Int) -> tuple[Int, Int]:
        """(shard, row in shard) of the source's rows number `index`, counted through all epochs."""
        epoch, within = np.divmod(index, self.rows)
        row = np.empty_like(within)
        for each in np.unique(epoch):
            chosen = epoch == each
            row[chosen] = permute(within[chosen], self.rows, self._key(int(each)))
        shard = np.searchsorted(self._ends, row, side="right")
        return shard, row - self._starts[shard]

    def index_of(self, shard: int, row: int, epoch: int) -> int:
        """The inverse of `locate`: the number of a row in an epoch, counted through all epochs."""
        place = np.array([int(self._starts[shard]) + row])
        return epoch * self.rows + int(invert(place, self.rows, self._key(epoch))[0])


@dataclass(frozen=True)
class Places:
    """(n,) where rows are: the stream, the shard in it, the row in that."""

    stream: Int
    shard: Int
    row: Int

    def __getitem__(self, within: slice) -> Places:
        return Places(self.stream[within], self.shard[within], self.row[within])


class Loader:
    """The rows of global step s, for given streams, mixture, seed and batch, depend on s alone.

    Row i of the run comes from the stream and place that `stages` says, or, without, from the only stream's row i.
    There is no iterator and no state (but for the places of the last rows asked for, kept because the next ones are
    near): any process may ask for any row of any step.

    Raises:
        UserError: there are fewer rows than one global batch.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        stages: Stages | None,
        *,
        sequence_length: int,
        global_batch_rows: int,
        bos_id: int,
        total_steps: int | None = None,
    ) -> None:
        self.row_length = sequence_length + 1
        self.global_batch_rows = global_batch_rows
        self.bos_id = bos_id
        self.streams = list(streams)
        self.stages = stages
        self.total_steps = total_steps  # as many as the data is meant for; None: as many as anybody asks for
        self.num_rows = sum(stream.rows for stream in streams)
        self._blocks: dict[int, Places] = {}
        if self.num_rows < global_batch_rows:
            raise UserError(
                f"the corpus gives {self.num_rows} rows of {sequence_length} tokens, fewer than one global batch of "
                f"{global_batch_rows} rows; lower train.global_batch_tokens to at most "
                f"{self.num_rows * sequence_length}, shorten data.sequence_length, or add text"
            )

    @property
    def rows_per_epoch(self) -> int:
        """Rows of all streams together."""
        return self.num_rows

    def epochs(self, steps: int) -> dict[str, float]:
        """Times each stream is read in the first `steps` steps."""
        rows = steps * self.global_batch_rows
        used = self.stages.used(rows) if self.stages is not None else [rows]
        return {stream.name: n / max(1, stream.rows) for stream, n in zip(self.streams, used, strict=True)}

    def epoch(self, step: int) -> int:
        """Epoch, counted from 0, of the stream that is furthest at the step."""
        return int(max(self.epochs(step).values()))

    def _places_of_block(self, block: int) -> Places:
        """Places of the rows at positions [block, block + 1) * _BLOCK_ROWS of the run."""
        kept = self._blocks.get(block)
        if kept is not None:
            return kept
        start = block * _BLOCK_ROWS
        if self.stages is None:
            stream = np.zeros(_BLOCK_ROWS, dtype=np.int64)
            index = np.arange(start, start + _BLOCK_ROWS, dtype=np.int64)
        else:
            stream, index = self.stages.places(start, start + _BLOCK_ROWS)
        shard, row = np.empty_like(index), np.empty_like(index)
        for number, each in enumerate(self.streams):
            chosen = stream == number
            if chosen.any():
                shard[chosen], row[chosen] = each.locate(index[chosen])
        places = Places(stream, shard, row)
        newest = list(self._blocks.items())[1 - _BLOCKS_KEPT :]
        self._blocks = dict([*newest, (block, places)])  # replaced, never changed: other threads may be reading it
        return places

    def places(self, step: int, start: int, stop: int) -> Places:
        """Where rows [start, stop) of the step's global batch are. Raises ValueError for rows outside of it."""
        if not 0 <= start <= stop <= self.global_batch_rows:
            raise ValueError(f"rows {start}..{stop} are not within a global batch of {self.global_batch_rows} rows")
        begin, end = step * self.global_batch_rows + start, step * self.global_batch_rows + stop
        parts = [
            self._places_of_block(block)[max(0, begin - block * _BLOCK_ROWS) : end - block * _BLOCK_ROWS]
            for block in range(begin // _BLOCK_ROWS, -(-end // _BLOCK_ROWS))
        ]
        if len(parts) == 1:
            return parts[0]
        empty = [np.empty(0, dtype=np.int64)]
        streams, shards, rows = ([getattr(p, n) for p in parts] or empty for n in ("stream", "shard", "row"))
        return Places(np.concatenate(streams), np.concatenate(shards), np.concatenate(rows))

    def batch(self, step: int, start: int, stop: int) -> tuple[Int, Int]:
        """Rows [start, stop) of the global batch: inputs and targets, int64 (n, T); targets are -100 on padding.

        Raises ValueError for rows outside of the global batch.
        """
        places = self.places(step, start, stop)
        pieces: list[Piece] = []
        for number, shard, row in zip(places.stream.tolist(), places.shard.tolist(), places.row.tolist(), strict=True):
            stream = self.streams[number]
            plan = stream.plans[shard]
            pieces.append((stream.shards[shard].tokens, plan.first, plan.start, plan.length, row))
        return split_targets(*assemble(pieces, self.row_length, self.bos_id))

    def num_targets(self, step: int) -> int:
        """Counted targets of the whole global batch: what the loss is divided by."""
        places = self.places(step, 0, self.global_batch_rows)
        total = 0
        for number, stream in enumerate(self.streams):
            mine = places.stream == number
            for shard in np.unique(places.shard[mine]):
                filled = stream.plans[shard].filled[places.row[mine & (places.shard == shard)]].astype(np.int64)
                total += int(np.maximum(filled - 1, 0).sum())
        return max(1, total)  # a batch of one row of one token has no target

    def step_of(self, stream: int, shard: int, row: int, epoch: int) -> tuple[int, int] | None:
        """(step, row of its batch) at which a row of a shard is read for the `epoch`th time (from 0), if ever."""
        index = self.streams[stream].index_of(shard, row, epoch)
        position = index if self.stages is None else self.stages.position(stream, index)
        return None if position is None else divmod(position, self.global_batch_rows)
