"""What a packer returns: which pieces of which documents make up each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]


@dataclass(frozen=True)
class RowPlan:
    """Rows of `row_length` tokens over one shard, in CSR form.

    Row r consists of pieces first[r] .. first[r + 1]; piece p is the tokens start[p] .. start[p] + length[p] of the
    stream in which the documents stand one after the other. What is left of a row is padding at its end.
    """

    row_length: int
    first: Int  # (rows + 1,)
    start: Int  # (pieces,)
    length: Int  # (pieces,)
    documents: int
    documents_split: int
    tokens: int  # of all documents, packed or cropped

    @property
    def rows(self) -> int:
        return len(self.first) - 1

    @property
    def row_tokens(self) -> Int:
        """(rows,) tokens in each row, padding not counted."""
        ends = np.concatenate([[0], np.cumsum(self.length)])
        filled: Int = ends[self.first[1:]] - ends[self.first[:-1]]
        return filled

    def counts(self) -> dict[str, int]:
        """What `summarise` adds up."""
        return {
            "rows": self.rows,
            "slots": self.rows * self.row_length,
            "packed": int(self.length.sum()),
            "tokens": self.tokens,
            "documents": self.documents,
            "documents_split": self.documents_split,
        }

    def report(self) -> dict[str, Any]:
        return summarise([self.counts()])


def summarise(counts: Iterable[dict[str, int]]) -> dict[str, Any]:
    """Utilisation, padding and crop in percent, documents split, of several shards together."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    slots, packed, tokens = total["slots"], total["packed"], total["tokens"]
    return {
        "rows": total["rows"],
        "tokens": tokens,
        "documents": total["documents"],
        "documents_split": total["documents_split"],
        "utilisation_percent": 100.0 * packed / max(1, slots),
        "padding_percent": 100.0 * (slots - packed) / max(1, slots),
        "crop_percent": 100.0 * (tokens - packed) / max(1, tokens),
    }
