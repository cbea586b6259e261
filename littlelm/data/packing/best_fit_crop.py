"""nanochat's packing: rows begin with a document and end full; what does not fit is thrown away."""

from __future__ import annotations

import bisect

import numpy as np

from littlelm.data.configs import BestFitCropConfig
from littlelm.data.packing.plan import Int, RowPlan


class BestFitCrop:
    """From a buffer of documents, take the longest that fits entirely; when none does, crop the shortest to fill.

    No padding, but a third of all tokens or more is lost. Kept for comparison.

    Longer documents than a row pile up in the buffer, since the shortest is what gets cropped: the loss grows along
    the stream until the buffer holds nothing else, so a figure from the first tokens of a corpus, or from shards of
    few documents, is too low.
    """

    def __init__(self, config: BestFitCropConfig) -> None:
        self.buffer_documents = config.buffer_documents

    def plan(self, document_lengths: Int, row_length: int) -> RowPlan:
        """Pack documents of the given lengths (tokens, in stream order); the last row that cannot be filled is left."""
        lengths = [int(length) for length in document_lengths]
        starts = np.concatenate([[0], np.cumsum(document_lengths)[:-1]]).astype(np.int64).tolist() if lengths else []
        buffer: list[tuple[int, int]] = []  # (length, document), ascending
        upcoming = 0
        first, start, length = [0], [], []
        cropped: set[int] = set()
        while True:
            row: list[tuple[int, int]] = []
            space = row_length
            while space:
                while len(buffer) < self.buffer_documents and upcoming < len(lengths):
                    bisect.insort(buffer, (lengths[upcoming], upcoming))
                    upcoming += 1
                if not buffer:
                    break
                position = bisect.bisect_right(buffer, (space, len(lengths))) - 1
                size, document = buffer.pop(position if position >= 0 else 0)
                part = min(size, space)
                if part < size:
                    cropped.add(document)
                row.append((starts[document], part))
                space -= part
            if space:
                break
            start += [piece[0] for piece in row]
            length += [piece[1] for piece in row]
            first.append(len(start))
        return RowPlan(
            row_length,
            np.array(first, dtype=np.int64),
            np.array(start, dtype=np.int64),
            np.array(length, dtype=np.int64),
            documents=len(lengths),
            documents_split=len(cropped),
            tokens=sum(lengths),
        )
