"""How long preparing will take and what it needs, by arithmetic from sizes and one measurement of the tokenizer.

Download, tokenizing and packing run at the same time, so the slowest of them is the whole.
"""

from __future__ import annotations

import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.data.configs import DataConfig
from littlelm.data.hub.estimate import estimate
from littlelm.data.reading import source_shares
from littlelm.data.shards import ShardWriter, token_dtype
from littlelm.data.sources.base import Source
from littlelm.data.sources.text import ByteRange, TextPart
from littlelm.data.workers import WORKER_BYTES
from littlelm.tokenizers.base import Tokenizer

_MEASURED_FILES = 400
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class Machine:
    """What prepares: cores, bytes a second that come in, and that the disk writes and reads."""

    cores: int
    bandwidth: float
    disk: float


@dataclass(frozen=True)
class _File:
    size: int

    def is_here(self) -> bool:
        return False


class Published:
    """A source that is downloaded, by what is published of it instead of a listing."""

    def __init__(self, config: Any, files: int, size: int) -> None:
        self.tokens_per_raw_byte: float = config.tokens_per_raw_byte
        self.keep_raw: bool = config.keep_raw
        self.parallel_downloads: int = config.parallel_downloads
        self._files = [_File(size)] * files

    def remotes(self) -> list[_File]:
        return self._files


@dataclass(frozen=True)
class SourcePlan:
    """One source's part."""

    name: str
    files: int
    raw_bytes: int
    tokens: int
    token_bytes: int
    download_seconds: float
    tokenize_seconds: float


@dataclass(frozen=True)
class DataPlan:
    """The whole; seconds, bytes."""

    sources: list[SourcePlan]
    tokens_per_second_per_core: float
    engine: str
    seconds: float
    bottleneck: str
    disk_bytes: int
    memory_bytes: int
    is_enough: bool


def measure_tokenizer(tokenizer: Tokenizer) -> float:
    """Tokens/s of one core with everything a worker does, measured by writing a shard of Python's own sources."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))[:_MEASURED_FILES]
    part = TextPart(tuple(ByteRange(path, 0, path.stat().st_size) for path in files), None)
    tokenizer.encode_batch(["start the engine"], threads=1)
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        entry = ShardWriter(tokenizer).write(part, Path(directory), "00000")
        return int(entry["tokens"]) / (time.perf_counter() - started)


def plan_preparation(
    data: DataConfig,
    tokenizer_config: ComponentConfig,
    sources: Sequence[Source | Published],
    train_rows: int,
    machine: Machine,
) -> DataPlan:
    """Plan preparing `train_rows` rows of the sources (resolved). A tokenizer that is yet to be trained is taken to be
    as fast as GPT-2's."""
    tokenizer = _tokenizer(tokenizer_config)
    speed = measure_tokenizer(tokenizer)
    itemsize = token_dtype(tokenizer.vocab_size).itemsize
    wanted = train_rows * (data.sequence_length + 1)
    shares = source_shares(data)
    lines = []
    for index, (name, source) in enumerate(zip(data.source_ids, sources, strict=True)):
        needed = wanted * (shares[index] if shares is not None else 1.0)
        downloaded: Any = source if hasattr(source, "remotes") else None
        if isinstance(source, Source) and downloaded is None:
            tokens = source.text_bytes() // _BYTES_PER_TOKEN
            files, raw, download = len(source.files()), source.size(), 0
        else:
            need = estimate(downloaded, int(needed), bytes_per_token=itemsize)
            files, raw, tokens, download = need.files, need.raw, need.tokens, need.download
        lines.append(
            SourcePlan(
                name, files, raw, int(tokens), int(tokens * itemsize), download / machine.bandwidth,
                tokens / (speed * machine.cores),
            )
        )  # fmt: skip
    return _sum_up(lines, sources, speed, getattr(tokenizer, "engine", tokenizer.name), machine, wanted)


def _tokenizer(config: ComponentConfig) -> Tokenizer:
    trained_later = config.name == "bpe" and getattr(config, "path", None) is None
    tokenizer: Tokenizer = registry.build(registry.entry("tokenizer", "gpt2").config() if trained_later else config)
    return tokenizer


def _sum_up(
    lines: list[SourcePlan],
    sources: Sequence[Source | Published],
    speed: float,
    engine: str,
    machine: Machine,
    wanted: float,
) -> DataPlan:
    times = {
        "the download": sum(line.download_seconds for line in lines),
        "tokenizing": sum(line.tokenize_seconds for line in lines),
        # raw files are written and read, shards written and read once more to check their digests
        "the disk": sum(2 * line.raw_bytes + 2 * line.token_bytes for line in lines) / machine.disk,
    }
    bottleneck = max(times, key=lambda name: times[name])
    kept: Any = [
        line.raw_bytes for line, source in zip(lines, sources, strict=True) if getattr(source, "keep_raw", False)
    ]
    return DataPlan(
        lines,
        speed,
        engine,
        times[bottleneck],
        bottleneck,
        sum(kept) + sum(line.token_bytes for line in lines),
        machine.cores * WORKER_BYTES,
        sum(line.tokens for line in lines) >= wanted * 0.999,
    )
