"""Looking into prepared data: which documents a row holds, where a text is, at which steps a document is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.data.contamination import ContaminationIndex, Example, Hits
from littlelm.data.loader import Loader
from littlelm.data.plans import Plan
from littlelm.data.prepared import PreparedData
from littlelm.data.shards import Shard, ShardWriter, token_dtype
from littlelm.tokenizers.base import Tokenizer

_BLOCK_TOKENS = 4_000_000  # decoded at a time


@dataclass(frozen=True)
class Piece:
    """A document, or a part of one, in a row."""

    shard: Shard
    document: int
    begin: int  # tokens of the document, BOS included, that the row holds: [begin, end)
    end: int
    tokens: int  # of the whole document
    text: str

    @property
    def origin(self) -> tuple[str, str]:
        return self.shard.origin(self.document)


def pieces_of_row(prepared: PreparedData, loader: Loader, step: int, row: int) -> list[Piece]:
    """What row `row` of the global batch of `step` (both from 0) consists of, in order."""
    place = loader.places(step, row, row + 1)
    stream = loader.streams[int(place.stream[0])]
    shard, plan = stream.shards[int(place.shard[0])], stream.plans[int(place.shard[0])]
    starts = np.concatenate([[0], np.cumsum(shard.lengths())])
    number = int(place.row[0])
    found = []
    for index in range(int(plan.first[number]), int(plan.first[number + 1])):
        begin = int(plan.start[index])
        end = begin + int(plan.length[index])
        while begin < end:  # a packing may lay several documents into one piece
            document = int(np.searchsorted(starts, begin, side="right")) - 1
            stop = min(end, int(starts[document + 1]))
            offset = int(starts[document])
            text = prepared.tokenizer.decode(np.asarray(shard.tokens[begin:stop]))
            found.append(
                Piece(shard, document, begin - offset, stop - offset, int(starts[document + 1]) - offset, text)
            )
            begin = stop
    return found


def find_in_shard(writer: ShardWriter, directory: Path, entry: dict[str, Any], needle: bytes) -> list[int]:
    """Documents of a shard whose text holds the bytes; a job of a worker process."""
    shard = Shard(directory, entry, writer.dtype)
    lengths = shard.lengths()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    found: list[int] = []
    document = 0
    while document < len(lengths):
        last = int(np.searchsorted(starts, int(starts[document]) + _BLOCK_TOKENS, side="right")) - 1
        last = max(last, document + 1)
        # BOS decodes to nothing, so documents are decoded one by one only where the block holds the text at all.
        if needle in writer.tokenizer.decode_bytes(np.asarray(shard.tokens[starts[document] : starts[last]])):
            for each in range(document, last):
                if needle in writer.tokenizer.decode_bytes(np.asarray(shard.tokens[starts[each] : starts[each + 1]])):
                    found.append(each)
        document = last
    return found


@dataclass
class Scanner:
    """What a worker process needs to look for a benchmark's items in a shard."""

    tokenizer: Tokenizer
    index: ContaminationIndex


def scan_shard(scanner: Scanner, directory: Path, entry: dict[str, Any]) -> Hits:
    """Items of a benchmark that stand in a shard's documents; a job of a worker process."""
    shard = Shard(directory, entry, token_dtype(scanner.tokenizer.vocab_size))

    def documents() -> Iterator[tuple[str, str]]:
        start = 0
        for document, length in enumerate(shard.lengths().tolist()):
            yield str(document), scanner.tokenizer.decode(np.asarray(shard.tokens[start : start + length]))
            start += length

    hits = scanner.index.scan(documents())
    hits.found = {
        item: Example(", ".join(shard.origin(int(example.reference))), example.words)
        for item, example in hits.found.items()
    }
    return hits


def rows_of_document(plan: Plan, shard: Shard, document: int) -> list[int]:
    """Rows of a shard that hold tokens of a document; none when it is held out or dropped."""
    lengths = shard.lengths()
    begin = int(lengths[:document].sum())
    end = begin + int(lengths[document])
    start, length = plan.start.astype(np.int64), plan.length.astype(np.int64)
    pieces = np.flatnonzero((start < end) & (start + length > begin))
    rows: list[int] = sorted({int(row) for row in np.searchsorted(plan.first, pieces, side="right") - 1})
    return rows


def steps_of_document(loader: Loader, shard: Shard, document: int, total_steps: int) -> list[tuple[int, int]]:
    """(step, row of its batch) at which the run reads a document, in order."""
    for number, stream in enumerate(loader.streams):
        for index, each in enumerate(stream.shards):
            if each is shard:
                epochs = math.ceil(loader.epochs(total_steps)[stream.name])
                found = [
                    loader.step_of(number, index, row, epoch)
                    for row in rows_of_document(stream.plans[index], shard, document)
                    for epoch in range(epochs)
                ]
                return sorted(place for place in found if place is not None and place[0] < total_steps)
    return []


def utilisation(
    writer: ShardWriter, directory: Path, entry: dict[str, Any], packing: ComponentConfig, row_lengths: list[int]
) -> list[dict[str, int]]:
    """Counts of packing a shard at each row length; a job of a worker process."""
    lengths = Shard(directory, entry, writer.dtype).lengths()
    packer = registry.build(packing)
    return [packer.plan(lengths, row_length).counts() for row_length in row_lengths]


def document_lengths(prepared: PreparedData) -> Iterator[np.ndarray]:
    """(documents,) tokens of the documents of each training shard."""
    for shard in prepared.shards:
        yield shard.lengths()
