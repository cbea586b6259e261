"""The stream of all documents, cut every row length."""

from __future__ import annotations

import numpy as np

from littlelm.data.configs import ConcatConfig
from littlelm.data.packing.plan import Int, RowPlan


class Concat:
    """Nothing is lost or searched; a row is one piece. The last row may be padded."""

    def __init__(self, config: ConcatConfig) -> None:
        self.config = config

    def plan(self, document_lengths: Int, row_length: int) -> RowPlan:
        """Cut the documents' stream (tokens, in order) into rows."""
        lengths = np.asarray(document_lengths, dtype=np.int64)
        total = int(lengths.sum())
        start = np.arange(0, total, row_length, dtype=np.int64)
        ends = np.cumsum(lengths)
        split = np.count_nonzero((ends - 1) // row_length != (ends - lengths) // row_length)
        return RowPlan(
            row_length,
            np.arange(len(start) + 1, dtype=np.int64),
            start,
            np.minimum(row_length, total - start),
            documents=len(lengths),
            documents_split=int(split),
            tokens=total,
        )
