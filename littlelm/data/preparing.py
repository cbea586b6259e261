"""What the steps of preparing share, and how much a run needs: tokens, files, gigabytes of disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from littlelm.data.configs import DataConfig
from littlelm.data.files import check_room
from littlelm.data.hub.estimate import Estimate, check_disk, estimate
from littlelm.data.pipeline import Pipeline, SourceShards
from littlelm.data.reading import source_shares
from littlelm.data.shards import Shard, read_entry, token_dtype
from littlelm.data.sources.base import Source
from littlelm.errors import UserError
from littlelm.tokenizers.base import Tokenizer

_BANDWIDTH = 125e6  # bytes a second, for the time that is said beforehand
_SPARE = 1.003  # tokens prepared beyond the run's, for padding and held-out documents
_CROP_SPARE = 2.5  # for a packing that throws tokens away


@dataclass
class Preparing:
    """What the steps of preparing share."""

    data: DataConfig
    cache: Path
    console: Console
    tokenizer: Tokenizer
    training: list[SourceShards]
    held_out: list[SourceShards]
    pipeline: Pipeline
    corpus_filters: list[tuple[str, Any]]
    train_rows: int | None

    def shard(self, shards: SourceShards, index: int) -> Shard:
        return Shard(shards.directory, shards.entries[index], token_dtype(self.tokenizer.vocab_size))


def is_remote(shards: SourceShards) -> bool:
    return bool(shards.units) and shards.units[0].remote is not None


def needed_tokens(state: Preparing, index: int) -> int | None:
    """Tokens that the run needs of a source that is downloaded; None: all there is."""
    if state.train_rows is None or not is_remote(state.training[index]):
        return None
    shares = source_shares(state.data)
    if shares is None:
        if len(state.training) > 1:
            raise UserError(
                f"data.sources: '{state.data.source_ids[index]}' is downloaded as far as the run needs it, so with "
                "several sources each needs a weight; give every source one"
            )
        shares = [1.0]
    spare = _CROP_SPARE if state.data.packing.name == "best_fit_crop" else _SPARE
    row_length = state.data.sequence_length + 1
    return int((state.train_rows * shares[index] * spare + 1) * row_length)


def check_all_room(state: Preparing) -> None:
    """Say what will be downloaded, and refuse before anything is made when the disk cannot hold it and the tokens."""
    itemsize = token_dtype(state.tokenizer.vocab_size).itemsize
    # At worst a token a byte; a vocabulary of thousands makes it one for three or more.
    bytes_per_text = itemsize / (3 if state.tokenizer.vocab_size > 1000 else 1)
    needed = 0.0
    for index, shards in enumerate(state.training):
        count = len(shards.units)
        done = {i: entry for i in range(count) if (entry := read_entry(shards.directory, shards.name(i))) is not None}
        if not is_remote(shards):
            needed += shards.source.text_bytes() * bytes_per_text * (count - len(done)) / max(1, count)
            continue
        need = remaining_need(shards, done, needed_tokens(state, index), itemsize, state.pipeline.workers.count)
        table = Table(box=None, show_header=False)
        for what, amount in need.lines():
            table.add_row(f"  {what}", f"{amount} at 1 Gbit/s" if what == "time to download" else amount)
        state.console.print(f"{state.data.source_ids[index]} needs")
        state.console.print(table)
        check_disk(need, state.cache, getattr(shards.source, "keep_raw", True))
    check_room(state.cache, int(needed))


def remaining_need(
    shards: SourceShards, done: dict[int, dict[str, Any]], tokens: int | None, bytes_per_token: int, workers: int
) -> Estimate:
    """What is still to be fetched and written of a source that is downloaded, beyond the shards that are `done`."""
    there = sum(entry["tokens"] for entry in done.values())
    raw = sum(shards.units[i].size for i in done)
    files = {id(unit.remote): unit.remote for i, unit in enumerate(shards.units) if i not in done}
    return estimate(
        _Files(shards.source, list(files.values())),
        None if tokens is None else max(0, tokens - there),
        bytes_per_token=bytes_per_token,
        tokens_per_raw_byte=there / raw if there else None,
        held_out=None if (held := shards.source.held_out()) is None else _Files(held, held.remotes()),  # type: ignore[attr-defined]
        bandwidth=_BANDWIDTH,
        workers=workers,
    )


class _Files:
    """Some of the files of a source that is downloaded, for an estimate."""

    def __init__(self, source: Source, remotes: list[Any]) -> None:
        self.tokens_per_raw_byte = source.tokens_per_raw_byte
        self.keep_raw = bool(getattr(source, "keep_raw", True))
        self.parallel_downloads = int(getattr(source, "parallel_downloads", 1))
        self._remotes = remotes

    def remotes(self) -> list[Any]:
        return self._remotes


def estimated_units(shards: SourceShards, start: int, tokens: float) -> int:
    """How many first units hold `tokens` tokens beyond those before `start`, by the shards there are or a guess."""
    raw = sum(shards.units[i].size for i in shards.entries)
    ratio = sum(entry["tokens"] for entry in shards.entries.values()) / raw if raw else 0.0
    ratio = ratio or shards.source.tokens_per_raw_byte
    count = start
    while count < len(shards.units) and tokens > 0:
        tokens -= shards.units[count].size * ratio
        count += 1
    while 0 < count < len(shards.units) and shards.units[count].remote is shards.units[count - 1].remote:
        count += 1  # all of a file, which then need not be kept
    return max(count, min(start + 1, len(shards.units)))
